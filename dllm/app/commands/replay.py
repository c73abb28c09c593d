"""``task=replay trace=FILE``: decode again what a trace recorded, and compare every turn.

A trace may come from a stranger, so what it says is data: it chooses among the classes of the shipped parts, and those
of packages that the user names by ``task.packages``. Nothing else is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dllm.app.command_line.options import checked_settings
from dllm.app.runs.folder import trace_name
from dllm.app.runs.plan import RunPlan
from dllm.common.coerce import coerce
from dllm.common.errors import UserError
from dllm.common.terminal import say
from dllm.compose.parts import part_of
from dllm.compose.trusted import refuse_strangers
from dllm.contract.canvas import Request
from dllm.record.trace import ADVICE, Trace, read_trace
from dllm.record.turns import Commits, ShownMixtures, TurnRecord
from dllm.view.page import PARTS

TOLERANCE = 1e-6  # of confidences
REPLAY_SETTINGS = frozenset({"task", "task.packages", "trace", "model.path", "model.device"})
# What a trace's configuration says of its decode; the rest of a run's is not read.
OF_A_DECODE = frozenset({*PARTS, "length", "model", "sampling", "gen_length", "batch_size", "seed", "stop", "chat",
                         "runtime", "lag", "kernels"})  # fmt: skip


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Print ``equal`` or the first difference; the exit code is 1 when there is one."""
    extra = [name for name in names if name not in REPLAY_SETTINGS]
    if extra:
        raise UserError(f"task=replay takes its settings from the trace, so {extra[0]} cannot be set. Drop it.")
    if not isinstance(config["trace"], str):
        raise UserError(f"task=replay needs trace=FILE. {ADVICE}")
    file = Path(config["trace"])
    data, recorded = read_trace(file)
    plan = RunPlan.of(settings_of_trace(data["config"], config, names))
    difference = next(trace_differences(recorded, decoded_again(plan, file, data)), None)
    if difference is not None:
        say(f"{file}: {difference}")
        raise SystemExit(1)
    turns = len(recorded.turns)
    say(f"{file}: {'its one turn is equal' if turns == 1 else f'all {turns} turns equal'}")


def settings_of_trace(recorded: Any, config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings of the recorded decode, which become those of this run. Raises UserError for settings that are none,
    and for parts of a stranger."""
    packages = coerce("task.packages", config["task"]["packages"], "list[str]")
    sections = [recorded.get(key) for key in (*PARTS, "model")] if isinstance(recorded, Mapping) else [None]
    if not all(isinstance(section, Mapping) for section in sections):
        raise UserError(f"trace={config['trace']!r} does not hold the settings of its decode. {ADVICE}")
    changing = ("length",) if isinstance(recorded.get("length"), Mapping) and recorded["length"] else ()
    for group in (*PARTS, *changing):
        refuse_lacking(group, recorded[group])
        refuse_strangers("the trace", {group: recorded[group]}, packages)
    refuse_strangers("the trace", {"model": recorded["model"]}, packages)
    moved = {key: config["model"][key] for key in ("path", "device") if f"model.{key}" in names}
    decode_settings = {key: value for key, value in recorded.items() if key in OF_A_DECODE}
    model = {**config["model"], **recorded["model"], **moved}
    return checked_settings({**config, **decode_settings, "model": model, "trace": False, "resume": None})


def refuse_lacking(group: str, config: Mapping[str, Any]) -> None:
    """Raise UserError for an object of a program whose arguments the trace does not all know."""
    if lacking := config.get("_lacks_"):
        raise UserError(
            f"the trace cannot say how its {group} {config.get('_target_')!r} was made: no attribute holds "
            f"{', '.join(map(str, lacking))}. Keep each argument under its own name, or choose a part by its name."
        )


def decoded_again(plan: RunPlan, file: Path, data: dict[str, Any]) -> Trace:
    """The decode once more, beside the same rows as then where their traces are in the same folder."""
    place, requests = mates_of(file, data)
    trace = dict(plan.decoder(plan.load()).run(requests, trace=True))[place].trace
    assert trace is not None
    return trace


def mates_of(file: Path, data: dict[str, Any]) -> tuple[int, list[Request]]:
    """The requests of the batch, and which of them is the trace's own; alone when a mate's trace is missing."""
    key_of_trace = (data["id"], data["sample"])
    keys = [(str(name), int(sample)) for name, sample in data["batch"]]
    files = [file if key == key_of_trace else file.parent / trace_name(key) for key in keys]
    if key_of_trace not in keys or not all(mate.is_file() for mate in files):
        return 0, [request_of(data)]
    return keys.index(key_of_trace), [request_of(read_trace(mate)[0]) for mate in files]


def request_of(data: dict[str, Any]) -> Request:
    trace, constraint_data = data["trace"], data.get("constraint")
    constraint = None if constraint_data is None else part_of("constraint", constraint_data)
    masked = [not is_given for is_given in trace["given"]]
    start, begun = data.get("start", trace["start"]), data.get("begun", "")
    return Request(trace["prompt"], masked, data["seed"], start, constraint=constraint, answer_prefix=begun)


def trace_differences(recorded: Trace, again: Trace) -> Iterator[str]:
    """What differs between two traces of one request, turn by turn, as sentences."""
    pairs = zip(recorded.turns, again.turns, recorded.canvases(), again.canvases(), strict=False)
    for number, (then, now, canvas_then, canvas_now) in enumerate(pairs, 1):
        for at, (before, after) in enumerate(zip(canvas_then, canvas_now, strict=True)):
            if before != after:
                yield f"turn {number} sees token {before} in position {at} of the canvas in the trace, {after} now"
        yield from (f"turn {number} has {what}" for what in turn_differences(then, now))
    if len(recorded.turns) != len(again.turns):
        yield f"the trace has {len(recorded.turns)} turns, the decode now {len(again.turns)}"
    for at, (before, after) in enumerate(zip(list(recorded.canvases())[-1], list(again.canvases())[-1], strict=True)):
        if before != after:
            yield f"the final canvas has token {before} in position {at} in the trace, {after} now"


def turn_differences(then: TurnRecord, now: TurnRecord) -> Iterator[str]:
    for name in ("turn", "kept", "block", "queries", "remasked", "filled", "length"):
        if getattr(then, name) != getattr(now, name):
            yield f"{name}={getattr(then, name)} in the trace, {getattr(now, name)} now"
    if then.shown != now.shown:
        yield "other tokens that undecided positions show next in the trace than now"
    if not same_mixtures(then.mixtures, now.mixtures):
        yield "other mixtures that positions show next in the trace than now"
    for what, before, after in (("commit", then.candidates, now.candidates), ("edit", then.edited, now.edited)):
        if len(before) != len(after):
            yield f"{len(before)} candidates that {what} in the trace, {len(after)} now"
        for first, second in zip(before, after, strict=False):
            yield from commit_differences(what, first, second)


def same_mixtures(then: ShownMixtures | None, now: ShownMixtures | None) -> bool:
    """Whether positions show the same tokens, with weights that agree to ``TOLERANCE``."""
    if then is None or now is None:
        return then is now
    weights = zip(chain(*then.weights), chain(*now.weights), strict=False)
    return (
        then.positions == now.positions
        and then.tokens == now.tokens
        and all(abs(before - after) <= TOLERANCE for before, after in weights)
    )


def commit_differences(what: str, then: Commits, now: Commits) -> Iterator[str]:
    if then.positions != now.positions:
        yield f"{what}s at {then.positions} in the trace, at {now.positions} now"
        return
    for number, at in enumerate(then.positions):
        for name in ("tokens", "confidence", "forced"):
            before, after = getattr(then, name)[number], getattr(now, name)[number]
            near = None not in (before, after) and abs(before - after) <= (TOLERANCE if name == "confidence" else 0)
            if before is not after and not near:
                yield f"{name}={before} for its {what} at {at} in the trace, {after} now"
