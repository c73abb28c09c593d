"""``dllm diff A B``: where two decodes part, of two traces or two run folders, and what they differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dllm.app.command_line.program import command
from dllm.common.errors import UserError
from dllm.common.terminal import VisibleParser, say

_DOES = "The settings that differ, the first forward and position that differ and what each decode knew there, and the \
score and the forwards of two runs with paired intervals."
MOST_DIFFERENT_SETTINGS = 12  # printed ones


def run_diff(arguments: Sequence[str]) -> None:
    """Print the comparison. Raises UserError for what is neither a trace nor a run folder, and for two models."""
    parser = VisibleParser(command("diff"), description=_DOES)
    for name in ("one", "other"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help="a trace file, or the folder of a run")
    options = parser.parse_args(arguments)
    for line in diff_lines(read_side(options.one), read_side(options.other)):
        say(line)


@dataclass(frozen=True)
class Side:
    place: Path  # the file or the folder
    config: Mapping[str, Any]  # the settings of its decodes
    checkpoint: str | None  # fingerprint of the weights (None: not noted)
    rows: Mapping[Any, Mapping[str, Any]]  # finished samples by key, of a folder
    traces: Mapping[Any, Any]  # traces by the same keys


def read_side(place: Path) -> Side:
    """Raises UserError for what is neither a trace nor a run folder."""
    from dllm.app.runs.destinations import config_in
    from dllm.app.runs.folder import trace_name
    from dllm.record.folders import TRACES, key_of, read_all_results, read_environment
    from dllm.record.trace import read_trace

    def checkpoint(folder: Path) -> str | None:
        content = read_environment(folder).get("content", {}).get("checkpoint")
        return None if content is None else str(content)

    if not place.exists():
        raise UserError(f"{place} is not there. Name a trace file or the folder of a run.")
    if place.is_dir():
        rows = {key_of(row): row for row in read_all_results(place)}
        files = {key: place / TRACES / trace_name(key) for key in rows}
        traces = {key: read_trace(file)[1] for key, file in files.items() if file.is_file()}
        return Side(place, config_in(place), checkpoint(place), rows, traces)
    data, trace = read_trace(place)
    key = (str(data["id"]), int(data["sample"]))
    return Side(place, data["config"] or {}, checkpoint(place.resolve().parent.parent), {}, {key: trace})


def diff_lines(first: Side, second: Side) -> Iterator[str]:
    refuse_other_models(first, second)
    yield from _setting_lines(first, second)
    if first.rows and second.rows:
        yield from row_lines(first, second)
        return
    if len(first.traces) != 1 and len(second.traces) != 1:
        raise UserError(f"{first.place} and {second.place} hold no trace. Decode with trace=true.")
    yield from trace_lines(first, second)


def refuse_other_models(first: Side, second: Side) -> None:
    """Raise UserError for decodes of two checkpoints, as far as it is noted which they are."""
    names = [str((side.config.get("model") or {}).get("path")) for side in (first, second)]
    if first.checkpoint is not None and second.checkpoint is not None:
        same = first.checkpoint == second.checkpoint
    else:
        same = not (first.config and second.config) or Path(names[0]).name == Path(names[1]).name
    if not same:
        raise UserError(
            f"{first.place} was decoded by {names[0]} and {second.place} by {names[1]}, other weights: their forwards "
            "part for that alone. Compare decodes of one checkpoint."
        )


def _setting_lines(first: Side, second: Side) -> Iterator[str]:
    from dllm.app.runs.folder import setting_differences
    from dllm.compose.comparisons import COMPARED_GROUPS
    from dllm.record.folders import relevant

    settings = [relevant(side.config) for side in (first, second)]
    both = settings[0].keys() & settings[1].keys()  # a trace from Python keeps fewer
    both |= {key for side in settings for key in side if key.partition(".")[0] in COMPARED_GROUPS}
    common = [{key: value for key, value in side.items() if key in both} for side in settings]
    differences = list(setting_differences(*common))
    yield "Settings that differ (one | other):" if differences else "Settings: the same."
    for name, was, now in differences[:MOST_DIFFERENT_SETTINGS]:
        yield f"  {name}: {was} | {now}"
    if len(differences) > MOST_DIFFERENT_SETTINGS:
        yield f"  and {len(differences) - MOST_DIFFERENT_SETTINGS} more"


def trace_lines(one: Side, other: Side) -> Iterator[str]:
    ((_, first),), second = list(one.traces.items())[:1], next(iter(other.traces.values()))
    if first.prompt[: first.start] != second.prompt[: second.start]:
        raise UserError(f"{one.place} and {other.place} decode other prompts. Compare decodes of one prompt.")
    yield from parting_lines(first, second)
    yield f"Forwards: {len(first.turns)} | {len(second.turns)}"


def parting_lines(first: Any, second: Any) -> Iterator[str]:
    from dllm.record.parting import parting

    part = parting(first, second)
    if part is None:
        yield "The decodes are equal, forward by forward."
        return
    yield f"They part in forward {part.forward}, at position {part.position} of the answer:"
    for name, facts in zip(("one", "other"), part.states, strict=True):
        yield f"  {name}: {facts}"


def row_lines(first: Side, second: Side) -> Iterator[str]:
    """How many answers are equal, where the first that is not parts, and what the runs cost and score."""
    from dllm.record.parting import parting, parting_of_rows

    pairs = {
        key: (row, second.rows[key])
        for key, row in first.rows.items()
        if key in second.rows and row["prompt_tokens"] == second.rows[key]["prompt_tokens"]
    }
    if not pairs:
        raise UserError(f"{first.place} and {second.place} share no sample of one prompt. Compare runs of one task.")
    same = {key: (row["canvas"], row["turns"]) == (its["canvas"], its["turns"]) for key, (row, its) in pairs.items()}
    unequal = [key for key, equal in same.items() if not equal]
    texts = sum(row["tokens"] == its["tokens"] for row, its in pairs.values())
    yield f"Answers: {texts} of {len(pairs)} equal; {len(pairs) - len(unequal)} forward by forward"
    if unequal:
        key = unequal[0]
        row, its = pairs[key]
        yield f"The first that differs is {key[0]}{f' (sample {key[1]})' if key[1] else ''}."
        if key in first.traces and key in second.traces and parting(first.traces[key], second.traces[key]) is not None:
            yield from parting_lines(first.traces[key], second.traces[key])
        else:
            forward, position = parting_of_rows(row["canvas"], its["canvas"], (row["turns"], its["turns"]))
            traced = key in first.traces and key in second.traces
            more = (
                "Their traces are equal, so a results.jsonl was edited."
                if traced
                else ("For what each knew there, decode with trace=true.")
            )
            yield f"They part in forward {forward}, at position {position} of the answer. {more}"
    yield from measure_lines(list(pairs.values()))


def measure_lines(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[str]:
    """Forwards, time and score of both, and the differences with their intervals."""
    from dllm.record.paired import paired_difference

    for name, words in (("nfe", "Forwards an answer"), ("cpu_seconds", "CPU seconds an answer")):
        first, second = ([float(row[name]) for row in side] for side in zip(*pairs, strict=True))
        apart = [after - before for before, after in zip(first, second, strict=True)]
        yield f"{words}: {fmean(first):.3g} | {fmean(second):.3g}{paired_interval(apart)}"
    groups: dict[str, list[float]] = {}
    for row, its in pairs:
        scores = [(side.get("scores") or {}).get("score") for side in (row, its)]
        if scores[0] is not None and scores[1] is not None:
            groups.setdefault(str(row.get("task")), []).append(scores[1] - scores[0])
    if groups:
        difference = paired_difference(list(groups.values()))
        mean, low, high = (f"{100 * value:+.1f}" for value in (difference.mean, difference.low, difference.high))
        yield f"Score: {mean} points from one to other (95 % interval {low} to {high}), {difference.items} items"


def paired_interval(differences: Sequence[float]) -> str:
    """The mean of paired differences with its 95 % interval (Student's t); nothing for a single pair."""
    from dllm.record.measures import quantile_of_t

    if len(differences) < 2:  # noqa: PLR2004
        return ""
    mean, half = fmean(differences), quantile_of_t(len(differences) - 1) * stdev(differences) / sqrt(len(differences))
    return f", difference {mean:+.3g} (95 % interval {mean - half:+.3g} to {mean + half:+.3g})"
