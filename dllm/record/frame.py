"""The results of sweeps and runs as one table of pandas: settings as columns, a row per item or per cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.common.errors import UserError, in_choices
from dllm.compose.naming import typed_name
from dllm.record.folders import relevant
from dllm.record.measures import Measures, mean, score_over_tasks, scores_by_task, scores_of
from dllm.record.results import ResultRow
from dllm.record.stored import StoredCell, refuse_versions, stored_cells
from dllm.record.trace_data import data_frame

if TYPE_CHECKING:
    from pandas import DataFrame

Entries = dict[str, Any]  # of a row, by column
# Groups whose settings are before all others.
SETTINGS_FIRST = ("model", "task", "sampler", "blocks", "cache", "eos", "length", "constraint")
# Keys of results.jsonl. Lists (tokens, turns, bits, ...) stay in the file.
TEXTS = ("suite", "template", "data", "prompt", "text", "stop_reason")
COUNTS = ("useful_tokens", "nfe", "query_tokens", "computed_tokens", "idle_forwards", "flops", "bytes")
TIMES = ("seconds", "began", "cpu_seconds", "load", "device", "batch")
WAY_OUT = "Give mixed=True to have them in one table, where the column version tells them apart."


def results_frame(*folders: str | os.PathLike[str], by: str = "item", mixed: bool = False) -> DataFrame:
    """The results of sweeps or runs as a pandas table.

    Args:
        folders: of sweeps or runs, or folders above them.
        by: ``item``, a line for each sample, or ``cell``, a line for each configuration.
        mixed: take cells of several versions of dllm.

    Returns:
        Settings are columns by the names that users type: ``sampler``, ``sampler.threshold``, ``cache``. The page
        docs/evaluation.md has all measures.

    Raises:
        UserError: a folder without results, a broken file, cells of several versions, or pandas is not installed.

    >>> from dllm import results_frame
    >>> frame = results_frame("runs/grid", by="cell")
    >>> frame.pivot_table("score", index="sampler", columns="cache")  # doctest: +ELLIPSIS
    cache...
    """
    rows_of: dict[str, Callable[[StoredCell], list[Entries]]] = {
        "item": lambda c: list(map(item_row, c.rows)),
        "cell": lambda c: [cell_row(c)],
    }
    in_choices("by", by, rows_of)
    if not folders:
        raise UserError("results_frame needs a folder, such as results_frame('runs/grid').")
    all_cells = [cell for folder in folders for cell in stored_cells(Path(folder).expanduser())]
    cells = list({cell.folder.resolve(): cell for cell in all_cells}.values())  # each once, though folders may overlap
    if not mixed:
        refuse_versions(cells, WAY_OUT)
    settings = [settings_of(cell) for cell in cells]
    rows = [(mine, entries) for mine, cell in zip(settings, cells, strict=True) for entries in rows_of[by](cell)]
    columns = [*setting_columns(settings), *dict.fromkeys(key for _, entries in rows for key in entries)]
    return data_frame("results_frame", [mine | entries for mine, entries in rows], columns)


def settings_of(cell: StoredCell) -> Entries:
    """Which cell it is, who decoded it, and its settings."""
    return {"cell": str(cell.folder), "version": " and ".join(cell.versions), **dict(typed_settings(cell.config))}


def typed_settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The model, and every setting that can change an outcome, by the names that users type."""
    model = config["model"]
    yield from (("model", model.get("name")), *((f"model.{key}", model.get(key)) for key in ("path", "adapter")))
    for key, entry in relevant(config).items():
        name, value = typed_setting(config, key, entry)
        yield name, value if not isinstance(value, list) else f"[{','.join(map(str, value))}]"


def typed_setting(config: Mapping[str, Any], key: str, value: Any) -> tuple[str, Any]:
    """A setting by the name that one types: a part's class by the part's."""
    place, _, last = key.rpartition(".")
    return (place.replace(".", "/"), typed_name(config, place)) if last == "_target_" else (key, value)


def setting_columns(settings: Sequence[Entries]) -> list[str]:
    """The columns of the settings: the cell, then group by group, then the rest."""
    places = {group: place for place, group in enumerate(("cell", "version", *SETTINGS_FIRST))}

    def place(column: str) -> tuple[int, bool]:
        group = column.replace("/", ".").partition(".")[0]
        return places.get(group, len(places)), column != group

    return sorted(dict.fromkeys(key for mine in settings for key in mine), key=place)


def item_row(row: ResultRow) -> Entries:
    """The row of a sample; the keys are those of ``results.jsonl``, without its lists."""
    scores = {"score" if name == "score" else f"scores.{name}": value for name, value in row["scores"].items()}
    which = {"id": row["id"], "sample": row["sample"], "subtask": row["task"], "sample_seed": row.get("seed")}
    tpf = row["useful_tokens"] / row["nfe"] if row["nfe"] else None
    more = {name: row.get(name) for name in (*TEXTS, *COUNTS, *TIMES)}
    return {**which, **scores, "tpf": tpf, **more, **({"lossless": row["lossless"]} if "lossless" in row else {})}


def cell_row(cell: StoredCell) -> Entries:
    """The score with its 95 % interval, tokens per forward and per second, latencies, and means of counts."""
    rows, measures = cell.rows, Measures.of(cell.rows)
    (_, low, high), quality = score_over_tasks(rows), mean([*scores_by_task(rows, cell.totals).values()])
    score = None if quality is None else quality / 100
    if any("score" in mine for mine in cell.totals.values()):
        low = high = None  # of answers' means alone
    kinds = (row["scores"] for row in rows), cell.totals.values()
    others = dict.fromkeys(name for kind in kinds for mine in kind for name in mine if name != "score")
    tpf = measures.tpf if measures.forwards else None
    means = {name: mean([row[name] for row in rows if row.get(name) is not None]) for name in COUNTS}
    return {
        "n": measures.samples,
        "judged": measures.judged,
        "score": score,
        "score_low": low,
        "score_high": high,
        **{f"scores.{name}": _metric(cell, name) for name in others},
        "tpf": tpf,
        **means,
        "tokens_per_second": measures.speed,
        "p50": measures.p50,
        "p95": measures.p95,
        "warning": measures.warning,
    }


def _metric(cell: StoredCell, name: str) -> float | None:
    """The mean over answers; of a metric over all answers, over sub-tasks."""
    totals = [value for mine in cell.totals.values() if (value := mine.get(name)) is not None]
    return mean(totals or scores_of(cell.rows, name))
