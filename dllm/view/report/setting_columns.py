"""``dllm report FOLDER --columns``: a table with chosen columns, each of a setting alone or beside another one.

A column of your own is a function that takes the setting and the one beside it (None: there is none) and returns the
cell's text; its dotted name is the column's word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import sqrt
from pkgutil import resolve_name

from dllm.common.errors import UserError, nearest
from dllm.common.grouping import grouped
from dllm.record.measures import scores_by_item, wilson
from dllm.view.report.differences import Comparison
from dllm.view.report.figures import limits, pairs
from dllm.view.report.methods import each_setting, methods, setting_words
from dllm.view.report.page_pieces import ReportTable, text
from dllm.view.report.pooling import SampleRow, SettingResults
from dllm.view.scores import speed_text

ColumnCell = Callable[[SettingResults, SettingResults | None], str]


@dataclass(frozen=True)
class Column:
    head: str  # what the table calls it
    cell: ColumnCell  # its text for a setting and the setting beside it


def ratio(rows: Sequence[SampleRow], top: str, bottom: str | None = None) -> tuple[float, float]:
    """A sum over another, and half of its 95 % interval (normal, linearised); answers to one item go together. bottom:
    None is how many answers there are."""
    return ratio_of([(row, row[top], 1 if bottom is None else row[bottom]) for row in rows])


def ratio_of(parts: Sequence[tuple[SampleRow, float, float]]) -> tuple[float, float]:
    """The same of numbers that belong to rows."""
    items: dict[tuple[str, str], tuple[float, float]] = {}
    for row, top, bottom in parts:
        key = (str(row["task"]), str(row["id"]))
        before = items.get(key, (0.0, 0.0))
        items[key] = before[0] + top, before[1] + bottom
    tops, bottoms = (sum(values) for values in zip(*items.values(), strict=True))
    quotient, count = tops / max(bottoms, 1), len(items)
    square = sum((top - quotient * bottom) ** 2 for top, bottom in items.values()) / max(1, count - 1)
    return quotient, 1.96 * sqrt(square / count) / (max(bottoms, 1) / count)


def plus_minus(value: tuple[float, float], digits: int, unit: str = "") -> str:
    return f"{value[0]:.{digits}f}{unit} ±{value[1]:.{digits}f}"


def _score(setting: SettingResults, _: SettingResults | None = None) -> str:
    ends = "" if setting.interval is None else f" ({setting.interval[0]:.0f}-{setting.interval[1]:.0f})"
    return f"{setting.quality:.0f}{ends}" if setting.scores else ""


def _same(setting: SettingResults, base: SettingResults | None) -> str:
    """The share of equal answers, with Wilson's interval."""
    equal = [
        {**row, "scores": {"score": float(row["tokens"] == other["tokens"])}} for row, other in _pairs(setting, base)
    ]
    if not equal:
        return ""
    right, count = sum(map(sum, groups := scores_by_item(equal))), sum(map(len, groups))
    low, high = wilson(right, count)
    return f"{100 * right / count:.0f} ({100 * low:.0f}-{100 * high:.0f})"


def _difference(setting: SettingResults, base: SettingResults | None) -> str:
    """Points of score, on the same items."""
    whole = None if base is None or base is setting else Comparison.of(setting, base).whole
    if whole is None:
        return ""
    return f"{100 * whole.mean:+.1f} ({100 * whole.low:+.1f} to {100 * whole.high:+.1f})"


def _fewer(setting: SettingResults, base: SettingResults | None) -> str:
    """Forwards saved, in percent of those beside."""
    if base is setting or not (both := _pairs(setting, base)):
        return ""
    quotient, half = ratio_of([(row, row["nfe"], other["nfe"]) for row, other in both])
    return plus_minus((100 * (1 - quotient), 100 * half), 1, " %")


def _pairs(setting: SettingResults, base: SettingResults | None) -> list[tuple[SampleRow, SampleRow]]:
    return [] if base is None else pairs(setting, base)


def _ratio_cell(top: str, bottom: str | None, digits: int) -> ColumnCell:
    """A sum over another; empty where no forwards are known."""
    return lambda setting, _: plus_minus(ratio(setting.rows, top, bottom), digits) if setting.measures.forwards else ""


def _share(name: str) -> ColumnCell:
    """A sum as a share of that of the setting beside."""

    def cell(setting: SettingResults, base: SettingResults | None) -> str:
        mine, theirs = setting.column(name), base and base.column(name)
        return f"{100 * mine / theirs:.0f} %" if mine is not None and theirs else ""

    return cell


def _commit_share(name: str) -> ColumnCell:
    """Commits of one sort, in percent of all; empty where they were not counted."""

    def cell(setting: SettingResults, _: SettingResults | None) -> str:
        value = limits(setting, [])[name]
        return "" if value is None else f"{value:.0f} %"

    return cell


def _refresh_share(setting: SettingResults, _: SettingResults | None) -> str:
    if any("refreshed" not in row for row in setting.rows):  # of an older version
        return ""
    return f"{100 * ratio(setting.rows, 'refreshed', 'nfe')[0]:.0f} %"


def _refresh_shares(setting: SettingResults, _: SettingResults | None) -> str:
    counts = [row["refreshed_by_layer"] for row in setting.rows if row.get("refreshed_by_layer")]
    forwards, layers = sum(row["nfe"] for row in setting.rows), max(map(len, counts), default=0)
    wide = [row if len(row) == layers else row * layers for row in counts]
    return " ".join(f"{100 * sum(layer) / max(1, forwards):.0f}" for layer in zip(*wide, strict=True))


REPORT_COLUMNS = {
    "score": Column("score", _score),
    "difference": Column("score less that beside", _difference),
    "nfe": Column("NFE", _ratio_cell("nfe", None, 1)),
    "fewer": Column("forwards saved", _fewer),
    "tpf": Column("TPF", _ratio_cell("useful_tokens", "nfe", 2)),
    "same": Column("same answers", _same),
    "queries": Column("query tokens", lambda setting, _: f"{ratio(setting.rows, 'query_tokens')[0]:.0f}"),
    "queries_share": Column("query tokens, share", _share("query_tokens")),
    "flops_share": Column("FLOPs, share", _share("flops")),
    "useful": Column("useful", lambda s, _: f"{100 * ratio(s.rows, 'useful_tokens', 'query_tokens')[0]:.1f} %"),
    "forced": Column("forced", _commit_share("forced")),
    "late": Column("late", _commit_share("late")),
    "refreshed": Column("forwards that refreshed", _refresh_share),
    "refreshed_by_layer": Column("the same by layer, %", _refresh_shares),
    "speed": Column("tokens / s", lambda setting, _: speed_text(setting.measures)),
    "seconds": Column("median seconds", lambda setting, _: f"{setting.measures.p50:.3f}"),
}
# What needs a setting with sampler=oracle among the others.
OF_ORACLE = {"oracle": ("oracle / NFE", "closeness"), "lossless": ("lossless minimum / NFE", "lossless")}


def column_tables(settings: Sequence[SettingResults], words: Sequence[str], against: Sequence[str] = ()) -> str:
    """A Markdown table for each suite, with a line for each setting. words: of columns. against: the settings of what
    a line is compared with, such as ``cache=none``: of those that have them the one that differs least from the line.

    Raises UserError for an unknown column, and where there is no single setting to compare with.
    """
    suites = grouped((setting.suite, setting) for _, setting in each_setting(methods(settings)))
    return "\n".join(f"### {title(mine)}\n\n{_table(mine, words, against).markdown()}" for mine in suites.values())


def title(settings: Sequence[SettingResults]) -> str:
    """The folder of the cells, the model, and how many items each setting answered."""
    folders = dict.fromkeys(cell.folder.resolve().parent.name for setting in settings for cell in setting.cells)
    counts = sorted({len({(row["task"], str(row["id"])) for row in setting.rows}) for setting in settings})
    items = f"{counts[0]} items" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} items"
    return f"{', '.join(folders)}: {', '.join(dict.fromkeys(setting.model for setting in settings))}, {items}"


def _table(settings: Sequence[SettingResults], words: Sequence[str], against: Sequence[str]) -> ReportTable:
    columns = [column_of(word, settings) for word in words]
    bases = [beside_of(setting, settings, against) for setting in settings]
    if against and not any(bases):
        raise UserError(f"--against {' '.join(against)} is not a setting here. Name settings that a line has.")
    names = line_names(settings)
    rows = [
        [name, *(column.cell(setting, base) for column in columns)]
        for name, setting, base in zip(names, settings, bases, strict=True)
    ]
    return ReportTable(["setting", *(column.head for column in columns)], rows, words=1)


def line_names(settings: Sequence[SettingResults]) -> list[str]:
    """The model where there are several, the method, and what all lines of the table do not share."""
    shared = set.intersection(*(set(setting.name.split(", ")) for setting in settings)) if len(settings) > 1 else set()
    several = len({setting.model for setting in settings}) > 1
    return [
        (f"{setting.model}: " if several else "") + _line_name(setting, shared | {"defaults"}) for setting in settings
    ]


def _line_name(setting: SettingResults, shared: Collection[str] = ()) -> str:
    return ", ".join([setting.method, *(word for word in setting.name.split(", ") if word not in shared)])


def column_of(word: str, settings: Sequence[SettingResults]) -> Column:
    if word in OF_ORACLE:
        head, key = OF_ORACLE[word]
        return Column(head, lambda setting, _: text(limits(setting, settings)[key], 2))
    if word in REPORT_COLUMNS:
        return REPORT_COLUMNS[word]
    names = [*REPORT_COLUMNS, *OF_ORACLE]
    if "." not in word:
        raise UserError(
            f"--columns {word} must be one of {', '.join(names)}, or a function as PACKAGE.NAME.{nearest(word, names)}"
        )
    try:
        return Column(word.rpartition(".")[2].replace("_", " "), resolve_name(word))
    except (ImportError, AttributeError) as error:
        raise UserError(f"--columns {word} cannot be imported: {error}. Name a function as PACKAGE.NAME.") from None


def beside_of(
    setting: SettingResults, every: Sequence[SettingResults], against: Sequence[str]
) -> SettingResults | None:
    mine = [other for other in every if (other.suite, other.model) == (setting.suite, setting.model)]
    mine = [other for other in mine if set(against) <= setting_words(other)] if against else []
    apart = {id(other): len(setting_words(setting) ^ setting_words(other)) for other in mine}
    least = [other for other in mine if apart[id(other)] == min(apart.values())]
    if len(least) > 1:
        names = "; ".join(_line_name(other) for other in least)
        raise UserError(f"--against {' '.join(against)} means {names} for {_line_name(setting)}. Name more settings.")
    return least[0] if least else None
