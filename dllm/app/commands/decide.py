"""``task=decide``: answer the questions of a file about every state of another, and leave a run folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dllm.app.engines.base import refuse_engine
from dllm.app.runs.destinations import fresh_folder, writing
from dllm.app.runs.plan import RunPlan
from dllm.common.coerce import coerce
from dllm.common.errors import UserError
from dllm.common.links import follows
from dllm.common.terminal import say
from dllm.scoring.decisions.calibration import MIN_ERRORS, LabelledScores, fit_temperature, quality, write_calibration
from dllm.scoring.decisions.canvases import DecisionState
from dllm.scoring.decisions.protocol import DecisionOptions, deciding
from dllm.scoring.decisions.questions import Question, questions_of_file, text_of
from dllm.scoring.decisions.results import Decisions

DECISIONS, CALIBRATION = "decisions.jsonl", "calibration.json"
OPTION_KINDS = {"estimator": "str", "slot": "str", "free": "int", "temperature": "float | None"}
BATCH = 64  # states whose canvases share forwards
# Of parts a decision reads nothing; they are taken, and must fit the model.
ITS_OPTIONS = frozenset({"task", "model", "sampler", "blocks", "cache", "eos", "length", "engine", "runtime",
                         "kernels", "chat", "prompts", "output", "name", "experiment"})  # fmt: skip


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Answer what ``config`` asks."""
    refuse_engine(config, names)
    for name in names:
        if name.split(".")[0].split("/")[0] not in ITS_OPTIONS:
            raise UserError(f"{name} has no meaning for task=decide: nothing is decoded. Drop it.")
    plan, task = RunPlan.of(config), config["task"]
    if task["questions"] is None or plan.options.prompts is None:
        raise UserError("task=decide needs prompts=FILE (a state per line) and task.questions=FILE (a list). Add both.")
    questions = questions_of_file(str(task["questions"]))
    calibrate = coerce("task.calibrate", task["calibrate"], "bool")
    values = {name: coerce(f"task.{name}", task[name], kind) for name, kind in OPTION_KINDS.items()}
    options = DecisionOptions(**values, calibration=plan.calibration)
    lines = states_of(Path(plan.options.prompts), questions)
    if calibrate:
        check_truths([truth for _, truth in lines], questions)
    check_states(plan, lines, questions, options)
    decoder = plan.decoder(plan.load())
    folder = fresh_folder(Path(plan.options.output), plan.options.name)
    answers = list[Decisions]()
    place = Path(os.devnull) if follows() else folder / DECISIONS
    with writing(folder), place.open("w", encoding="utf-8") as file:
        for at in range(0, len(lines), BATCH):
            many = decoder.decide_many([state for state, _ in lines[at : at + BATCH]], questions, options=options)
            for number, decisions in enumerate(many, at + 1):
                truth = lines[number - 1][1]
                line = {"id": str(number), **decisions.to_json(), **({"truth": truth} if truth else {})}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            answers += many
    if not follows():
        report_decisions(decoder.model.name, questions, answers, [truth for _, truth in lines], folder, bool(calibrate))


def states_of(file: Path, questions: dict[str, Question]) -> list[tuple[DecisionState, dict[str, Any]]]:
    """States and what is true of them. Raises UserError for a line that cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise UserError(f"prompts={str(file)!r} cannot be read. Name a file of JSON lines.") from None
    states = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            state = next(entry[key] for key in ("prompt", "messages", "tokens") if key in entry)
            truth = dict(entry.get("truth", {}))
            if not isinstance(state, str | list):
                raise TypeError
        except (ValueError, TypeError, AttributeError, StopIteration):
            rule = '{"prompt": "...", "truth": {"NAME": "VALUE"}}'
            raise UserError(f"line {number} of prompts={str(file)!r} must be like {rule}. Correct it.") from None
        for name, value in truth.items():
            if name not in questions or place_of(questions[name], value) is None:
                place = f"line {number} of prompts={str(file)!r}"
                raise UserError(f"{place}: truth {name}={value!r} is not an alternative.")
        states.append((state, truth))
    if not states:
        raise UserError(f"prompts={str(file)!r} holds no line. Write a state in each.")
    return states


def check_truths(truths: Sequence[dict[str, Any]], questions: dict[str, Question]) -> None:
    """Raise UserError for fewer truths than a temperature needs, before anything is answered."""
    counts = Counter(questions[name].type for truth in truths for name in truth)
    if not counts:
        raise UserError("task.calibrate=true needs lines with truth, and there are none. Add them, or drop it.")
    for kind, count in counts.items():
        if count < MIN_ERRORS:
            raise UserError(
                f"task.calibrate=true: lines tell the truth of {count} answers to questions of type {kind}, and a "
                f"temperature needs at least {MIN_ERRORS} that are wrong. Give more lines, or drop it."
            )


def check_states(
    plan: RunPlan,
    lines: Sequence[tuple[DecisionState, dict[str, Any]]],
    questions: dict[str, Question],
    options: DecisionOptions,
) -> None:
    """Raise UserError for a state that the questions cannot be asked about, with its number, before weights are
    read."""
    for number, (state, _) in enumerate(lines, 1):
        try:
            next(deciding(plan.prompts, plan.prompts.ids, state, questions, options))
        except UserError as error:
            raise UserError(f"state {number} of prompts={plan.options.prompts!r}: {error}") from None


def place_of(question: Question, value: Any) -> int | None:
    """The place of a value among the alternatives; of a predicate, true is the first."""
    if question.type == "predicate" and isinstance(value, bool):
        return int(not value)
    texts = [text_of(each) for each in question.values]
    text = text_of(value) if isinstance(value, str | bool) else str(value)
    return texts.index(text) if text in texts else None


def report_decisions(
    model: str,
    questions: dict[str, Question],
    answers: Sequence[Decisions],
    truths: Sequence[dict[str, Any]],
    folder: Path,
    calibrate: bool,
) -> None:
    """Say how good the answers are, where their truth is known, and fit temperatures if asked to."""
    labelled: dict[str, list[LabelledScores]] = {}
    for name, question in questions.items():
        items = [
            LabelledScores(decisions[name].scores.scores, place)
            for decisions, truth in zip(answers, truths, strict=True)
            if name in truth and (place := place_of(question, truth[name])) is not None
        ]
        if items:
            labelled.setdefault(question.type, []).extend(items)
            temperature = answers[0][name].temperature
            measures = quality(items, temperature)
            say(
                f"{name}: {measures.items} labelled, accuracy {measures.accuracy:.3f}, NLL {measures.nll:.3f}, "
                f"Brier {measures.brier:.3f}, ECE {measures.ece:.3f}, T {temperature:.2f}"
            )
    if calibrate:
        fits = {kind: fit_temperature(kind, items) for kind, items in labelled.items()}
        write_calibration(folder / CALIBRATION, model, fits)
        for kind, fit in fits.items():
            say(
                f"{kind}: T {fit.temperature:.2f} from {fit.items} answers, NLL {fit.nll_before:.3f} to "
                f"{fit.nll_after:.3f}, in {folder / CALIBRATION}"
            )
    costs = {
        name: sum(getattr(decisions, name) for decisions in answers) for name in ("forwards", "rows", "query_tokens")
    }
    say(f"{len(answers)} states, {sum(map(len, answers))} answers, " + ", ".join(f"{n} {c}" for n, c in costs.items()))
    say(f"Run folder: {folder}")
