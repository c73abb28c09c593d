"""What the cells of a report were decoded with: every setting that is not the usual one, shared by all cells or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dllm.compose.auto_length import AUTO, with_auto_length
from dllm.compose.labels import NO_OUTCOME, usual_of
from dllm.compose.naming import inner_default, own_options, part_at, part_words, places_of, typed_name, value_text
from dllm.record.folders import relevant
from dllm.record.measures import by_task
from dllm.view.report.page_pieces import task_words
from dllm.view.report.pooling import POOLED_KEYS, CellResults

DECODING_GROUPS = ("sampler", "blocks", "cache", "constraint", "eos", "length")
RULES = ("sampler", "blocks")  # whose options a table hides where all are the usual ones
OWN_ROWS = (*POOLED_KEYS, "gen_length", "eos")  # what other lines of the report say of every cell


def unusual_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can change a sample and are not the usual ones, by the names that one types."""
    usual = usual_of(config)
    parts = {key: value for group in DECODING_GROUPS for key, value in _unusual_part(config, usual, group)}
    there = relevant(usual)
    rest = {key: value for key, value in relevant(config).items() if _head(key) not in (*DECODING_GROUPS, *NO_OUTCOME)}
    return parts | {key: value for key, value in rest.items() if key not in there or there[key] != value}


def _unusual_part(config: Mapping[str, Any], usual: Mapping[str, Any], group: str) -> Iterator[tuple[str, Any]]:
    """The name of a part, those of the parts inside it, and its options that are not the usual ones."""
    for place in places_of(config, group):
        name, (outer, _, key) = typed_name(config, place), place.rpartition(".")
        if name != (inner_default(group, typed_name(config, outer), key) if outer else typed_name(usual, group)):
            yield place.replace(".", "/"), name
        yield from ((f"{place}.{key}", value) for key, value in own_options(config, place).items())


def _head(key: str) -> str:
    return key.partition(".")[0]


def settings_text(cells: Sequence[CellResults]) -> str:
    """``sampling.temperature=0.5; cache=dual (36 of 72 cells)``: each setting with its values that are not usual. The
    number of cells is where others have the usual value."""
    values_of: dict[str, list[Any]] = {}
    for cell in cells:
        for key, value in unusual_settings(cell.config).items():
            if _head(key) not in OWN_ROWS:
                values_of.setdefault(key, []).append(value)
    texts = [f"{key}={_value_list(values)}{share(len(values), len(cells))}" for key, values in values_of.items()]
    return "; ".join(texts) or "all are the usual ones"


def _value_list(values: Sequence[Any]) -> str:
    """Each value once; numbers by size, the others as they come."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        values = sorted(values)
    return ", ".join(dict.fromkeys(map(value_text, values)))


def share(count: int, total: int) -> str:
    return "" if count == total else f" ({count} of {total} cells)"


def defaults_text(cells: Sequence[CellResults]) -> str:
    """``confidence(threshold=0.9); fixed(block_length=32)``: the options of rules and schedules, as they are where no
    one set them."""
    options_of: dict[str, dict[str, str]] = {}
    for config, place in (
        (cell.config, place) for cell in cells for group in RULES for place in places_of(cell.config, group)
    ):
        own, options = own_options(config, place), part_at(config, place)
        usual = {key: value_text(value) for key, value in options.items() if _is_option(key, value) and key not in own}
        options_of.setdefault(typed_name(config, place), {}).update(usual)
    texts = {name: ", ".join(f"{key}={value}" for key, value in usual.items()) for name, usual in options_of.items()}
    return "; ".join(f"{name}({options})" for name, options in texts.items() if options)


def _is_option(key: str, value: Any) -> bool:
    return not key.startswith("_") and value is not None and not isinstance(value, Mapping)


def length_of(cell: CellResults) -> str:
    """The length of its answers in tokens, or the rule that finds it. A task without ``gen_length`` gives each item its
    own."""
    if cell.config["gen_length"] == AUTO:
        config = with_auto_length(cell.config)
        return f"auto ({config['gen_length']} masks, then {part_words(config, 'length')})"
    if cell.config["gen_length"] is not None:
        return str(cell.config["gen_length"])
    lengths = sorted({len(row["canvas"]) for row in cell.rows})
    return (
        f"each item's own ({lengths[0]})" if len(lengths) == 1 else f"each item's own ({lengths[0]} to {lengths[-1]})"
    )


def items_of(cell: CellResults) -> str:
    """How many items of each sub-task were decoded: one number where it is the same everywhere."""
    counts = {task: len({str(row["id"]) for row in rows}) for task, rows in by_task(cell.rows).items()}
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return ", ".join(f"{task_words(task)} {count}" for task, count in counts.items())
