"""Metrics of lm-eval's tasks, by lm-eval's own evaluator on the same answers."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Evaluation, mean, scores_of

pytest.importorskip("lm_eval", reason="the extra [eval] is not installed")

import lm_eval.tasks  # noqa: E402
from jinja2 import Environment, meta  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.evaluator import evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from lm_eval.tasks._yaml_loader import load_yaml  # noqa: E402

from dllm.parts import (
    Harness,  # noqa: E402
    IFEval,  # noqa: E402
    stock_folder,  # noqa: E402
)
from dllm.tasks.standard import harness  # noqa: E402


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def written(file: Path, *rows: object) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


class Answers(LM):
    """A model of lm-eval's that gives these answers."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self.texts = texts

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        return [self.texts[request.doc_id] for request in requests]

    def loglikelihood(self, requests: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def by_lm_eval(task: Harness, texts: Sequence[str]) -> dict[str, float]:
    """Every metric and filter of these answers, by lm-eval's own evaluator."""
    found = evaluate(Answers(texts), task.parts, bootstrap_iters=0, log_samples=False)["results"][task.name]
    return {key.removesuffix(",none"): value for key, value in found.items() if "," in key and "_stderr" not in key}


def by_us(task: Harness, texts: Sequence[str]) -> dict[str, float | None]:
    """The same in lm-eval's units, from what results.jsonl keeps of each answer."""
    evaluation = object.__new__(Evaluation)
    evaluation.task = task
    rows = []
    for item, text in zip(task.items(), texts, strict=True):
        scores, parts = task.judged(item, text)
        rows.append(json.loads(json.dumps({"task": task.name, "sample": 0, "scores": scores, "parts": parts})))
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    totals = evaluation.totals(rows).get(task.name, {})
    units = {name: 100 if name.partition(",")[0] in ("bleu", "chrf", "ter") else 1 for name in totals}
    whole = {name: None if value is None else units[name] * value for name, value in totals.items()}
    found = {**{name: mean(scores_of(rows, name)) for name in names}, **whole}
    return {name: value for name, value in found.items() if name != "score"}


CB = [{"premise": f"p{at}", "hypothesis": "h", "label": label, "idx": at} for at, label in enumerate((0, 1, 2, 2))]
WMT = [
    {"translation": {"de": "Guten Morgen.", "en": "Good morning to you."}},
    {"translation": {"de": "Das Haus.", "en": "The house over there."}},
]
RULES = (["punctuation:no_comma"], ["punctuation:no_comma", "change_case:english_lowercase", "detectable_format:title"])
FOLLOW = [
    {"key": at, "prompt": f"p{at}", "instruction_id_list": ids, "kwargs": [{}] * len(ids)}
    for at, ids in enumerate(RULES)
]
TRUTHS = [
    {"question": question, "correct_answers": ["It is a bird."], "incorrect_answers": ["No."], "best_answer": "It"}
    for question in ("q", "r")
]


@pytest.mark.parametrize(
    ("name", "place", "docs", "texts"),
    [
        ("super_glue-cb-t5-prompt", "super_glue/cb/t5-prompt.yaml", CB, ["neutral"] * 4),
        (
            "super_glue-cb-t5-prompt",
            "super_glue/cb/t5-prompt.yaml",
            CB,
            ["entailment", "contradiction", "?", "neutral"],
        ),
        ("wmt16-de-en", "translation/wmt16_de-en.yaml", WMT, [" Good morning to him.", ""]),
        ("ifeval", "ifeval/ifeval.yaml", FOLLOW, ["Fine text without it", "Hello, World"]),
        ("truthfulqa_gen", "truthfulqa/truthfulqa_gen.yaml", TRUTHS, ["It is a big bird.", ""]),
    ],
)
def test_metrics_are_those_of_lm_evals_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, docs: list[Any], texts: list[str]
) -> None:
    """F1 over pairs, BLEU over pairs of texts, instructions over lists, and means of numbers beyond 1."""
    monkeypatch.setattr(harness, "task_file", lambda _: stock_folder() / place)
    task = (IFEval if name == "ifeval" else Harness)(name, path=written(tmp_path / "q", *docs), shots=0)
    truth = by_lm_eval(task, texts)
    assert by_us(task, texts) == pytest.approx(truth, nan_ok=True) and truth


def test_the_score_is_the_metric_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "task_file", lambda _: stock_folder() / "translation/wmt16_de-en.yaml")
    task = Harness("wmt16-de-en", path=written(tmp_path / "q", *WMT), shots=0, score="chrf")
    evaluation, texts = object.__new__(Evaluation), [" Good morning to him.", ""]
    evaluation.task = task
    judged = [task.judged(item, text) for item, text in zip(task.items(), texts, strict=True)]
    rows = [{"task": task.name, "sample": 0, "scores": scores, "parts": parts} for scores, parts in judged]
    found = evaluation.totals(rows)[task.name]
    assert found["score"] == found["chrf"] == pytest.approx(by_lm_eval(task, texts)["chrf"] / 100) != found["bleu"]


DRAWN = 30
WORDS = ["one", "two", "three", "red", "house", "is", "small", "Paris", "3", "7", "yes", "no"]


def columns_of(config: Mapping[str, Any], place: Path) -> list[str]:
    """The columns that a task's templates and its functions name."""
    found = set()
    for key in ("doc_to_text", "doc_to_target", "description"):
        text = str(config.get(key))
        with suppress(Exception):
            found |= {text} if re.fullmatch(r"\w+", text) else meta.find_undeclared_variables(Environment().parse(text))
    for file in place.parent.glob("*.py"):
        found |= set(re.findall(r"""(?:doc|x|line|item)(?:\[|\.get\()["'](\w+)["']""", file.read_text()))
    return sorted(found)


def made_value(column: str, number: int, draw: random.Random) -> Any:
    if column in ("idx", "id", "label", "length"):
        return number
    words = [" ".join(draw.choices(WORDS, k=4)) for _ in range(2)]
    if column == "translation":
        return dict.fromkeys(("de", "en", "fr", "ro", "cs", "ru", "fi", "tr"), words[0])
    return words if column.endswith("s") else words[0]


def made_answers(task: Harness, draw: random.Random) -> Iterator[str]:
    """Right, longer, wrong and empty ones."""
    (part,) = task.parts.values()
    for doc in part.eval_docs:
        target = part.doc_to_target(doc)
        text = str(target[0] if isinstance(target, list) and target else target)
        yield draw.choice([text, f"{text} {draw.choice(WORDS)}", " ".join(draw.choices(WORDS, k=3)), ""])


@pytest.mark.program
def test_metrics_of_tasks_drawn_among_all_that_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks whose questions cannot be made from words are passed over."""
    manager = TaskManager()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", lambda: manager)
    draw, compared = random.Random(os.environ.get("LAWS_SEED", "0")), 0
    names = sorted(name for name, entry in manager.task_index.items() if entry.yaml_path is not None)
    for name in draw.sample(names, len(names)):
        place = Path(manager.task_index[name].yaml_path)
        config = load_yaml(place, resolve_func=False)
        if config.get("output_type", "generate_until") != "generate_until":
            continue
        columns = columns_of(config, place)
        docs = [{column: made_value(column, at, draw) for column in columns} for at in range(6)]
        try:
            task = Harness(name, path=written(tmp_path / "q", *docs), shots=0)
            texts = list(made_answers(task, draw))
            truth = by_lm_eval(task, texts)
            task.items()
        except Exception:
            continue
        found = by_us(task, texts)
        # a filter of one metric names it, and a filter named none nothing
        ours = {
            key: found.get(key, found.get(key.partition(",")[0], found.get(key.rpartition(",")[2]))) for key in truth
        }
        assert ours == pytest.approx(truth, nan_ok=True), name
        compared += 1
        if compared == DRAWN:
            return
    raise AssertionError(f"only {compared} tasks could be asked")
