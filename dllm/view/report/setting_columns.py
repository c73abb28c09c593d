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
from dllm.compose.naming import value_text
from dllm.record.measures import scores_by_item, wilson
from dllm.view.report.differences import Compared
from dllm.view.report.figures import limits, pairs
from dllm.view.report.methods import each_setting, methods
from dllm.view.report.page_pieces import ReportTable
from dllm.view.report.pooling import SampleRow, SettingResults, Suite

ColumnCell = Callable[[SettingResults, SettingResults | None], str]


@dataclass(frozen=True)
class Column:
    """A column of numbers."""

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
    found, count = tops / max(bottoms, 1), len(items)
    square = sum((top - found * bottom) ** 2 for top, bottom in items.values()) / max(1, count - 1)
    return found, 1.96 * sqrt(square / count) / (max(bottoms, 1) / count)


def plus_minus(value: tuple[float, float], digits: int, unit: str = "") -> str:
    return f"{value[0]:.{digits}f}{unit} ±{value[1]:.{digits}f}"


def _score(one: SettingResults, _: SettingResults | None = None) -> str:
    ends = "" if one.interval is None else f" ({one.interval[0]:.0f}-{one.interval[1]:.0f})"
    return f"{one.quality:.0f}{ends}" if one.scores else ""


def _same(one: SettingResults, base: SettingResults | None) -> str:
    """The share of equal answers, with Wilson's interval."""
    equal = [{**row, "scores": {"score": float(row["tokens"] == other["tokens"])}} for row, other in _pairs(one, base)]
    if not equal:
        return ""
    right, count = sum(map(sum, groups := scores_by_item(equal))), sum(map(len, groups))
    low, high = wilson(right, count)
    return f"{100 * right / count:.0f} ({100 * low:.0f}-{100 * high:.0f})"


def _difference(one: SettingResults, base: SettingResults | None) -> str:
    """Points of score, on the same items."""
    whole = None if base is None or base is one else Compared.of(one, base).whole
    return (
        ""
        if whole is None
        else "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * value for value in (whole.mean, whole.low, whole.high)))
    )


def _fewer(one: SettingResults, base: SettingResults | None) -> str:
    """Forwards saved, in percent of those beside."""
    if base is one or not (both := _pairs(one, base)):
        return ""
    found, half = ratio_of([(row, row["nfe"], other["nfe"]) for row, other in both])
    return plus_minus((100 * (1 - found), 100 * half), 1, " %")


def _pairs(one: SettingResults, base: SettingResults | None) -> list[tuple[SampleRow, SampleRow]]:
    return [] if base is None else pairs(one, base)


def _share(name: str) -> ColumnCell:
    """A sum as a share of that of the setting beside."""

    def cell(one: SettingResults, base: SettingResults | None) -> str:
        mine, theirs = one.column(name), base and base.column(name)
        return f"{100 * mine / theirs:.0f} %" if mine is not None and theirs else ""

    return cell


def _useful(one: SettingResults, _: SettingResults | None) -> str:
    return f"{100 * ratio(one.rows, 'useful_tokens', 'query_tokens')[0]:.1f} %"


def _forced(one: SettingResults, _: SettingResults | None) -> str:
    return f"{limits(one, [])['forced']:.0f} %"


REPORT_COLUMNS = {
    "score": Column("score", _score),
    "difference": Column("score less that beside", _difference),
    "nfe": Column("NFE", lambda one, _: plus_minus(ratio(one.rows, "nfe"), 1)),
    "fewer": Column("forwards saved", _fewer),
    "tpf": Column("TPF", lambda one, _: plus_minus(ratio(one.rows, "useful_tokens", "nfe"), 2)),
    "same": Column("same answers", _same),
    "queries": Column("query tokens", lambda one, _: f"{ratio(one.rows, 'query_tokens')[0]:.0f}"),
    "queries_share": Column("query tokens, share", _share("query_tokens")),
    "flops_share": Column("FLOPs, share", _share("flops")),
    "useful": Column("useful", _useful),
    "forced": Column("forced", _forced),
}
# What needs a setting with sampler=oracle among the others.
OF_ORACLE = {"oracle": ("oracle / NFE", "closeness"), "lossless": ("lossless minimum / NFE", "lossless")}


def column_tables(settings: Sequence[SettingResults], words: Sequence[str], against: Sequence[str] = ()) -> str:
    """A Markdown table for each suite, with a line for each setting. words: of columns. against: the settings of what
    stands beside a line, such as ``cache=none``: of those that have them the one that differs least from the line.

    Raises UserError for a column that there is not, and where nothing, or no single setting, can stand beside.
    """
    found: dict[Suite, list[SettingResults]] = {}
    for _, one in each_setting(methods(settings)):
        found.setdefault(one.suite, []).append(one)
    return "\n".join(f"### {title(mine)}\n\n{_table(mine, words, against).markdown()}" for mine in found.values())


def title(settings: Sequence[SettingResults]) -> str:
    """The folder of the cells, the model, and how many items each setting answered."""
    folders = dict.fromkeys(cell.folder.resolve().parent.name for one in settings for cell in one.cells)
    counts = sorted({len({(row["task"], str(row["id"])) for row in one.rows}) for one in settings})
    items = f"{counts[0]} items" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} items"
    return f"{', '.join(folders)}: {', '.join(dict.fromkeys(one.model for one in settings))}, {items}"


def _table(settings: Sequence[SettingResults], words: Sequence[str], against: Sequence[str]) -> ReportTable:
    columns = [column_of(word, settings) for word in words]
    bases = [beside_of(one, settings, against) for one in settings]
    if against and not any(bases):
        raise UserError(f"--against {' '.join(against)} is not a setting here. Name settings that a line has.")
    names = line_names(settings)
    rows = [[name, *(column.cell(one, base) for column in columns)]
            for name, one, base in zip(names, settings, bases, strict=True)]  # fmt: skip
    return ReportTable(["setting", *(column.head for column in columns)], rows, words=1)


def line_names(settings: Sequence[SettingResults]) -> list[str]:
    """The model where there are several, the method, and what all lines of the table do not share."""
    shared = set.intersection(*(set(one.name.split(", ")) for one in settings)) if len(settings) > 1 else set()
    several = len({one.model for one in settings}) > 1
    return [(f"{one.model}: " if several else "") + _line_name(one, shared | {"defaults"}) for one in settings]


def _line_name(one: SettingResults, shared: Collection[str] = ()) -> str:
    return ", ".join([one.method, *(word for word in one.name.split(", ") if word not in shared)])


def column_of(word: str, settings: Sequence[SettingResults]) -> Column:
    if word in OF_ORACLE:
        head, key = OF_ORACLE[word]
        return Column(head, lambda one, _: _two_digits(limits(one, settings)[key]))
    if word in REPORT_COLUMNS:
        return REPORT_COLUMNS[word]
    known = [*REPORT_COLUMNS, *OF_ORACLE]
    if "." not in word:
        raise UserError(
            f"--columns {word} must be one of {', '.join(known)}, or a function as PACKAGE.NAME.{nearest(word, known)}"
        )
    try:
        return Column(word.rpartition(".")[2].replace("_", " "), resolve_name(word))
    except (ImportError, AttributeError) as error:
        raise UserError(f"--columns {word} cannot be imported: {error}. Name a function as PACKAGE.NAME.") from None


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def beside_of(one: SettingResults, every: Sequence[SettingResults], against: Sequence[str]) -> SettingResults | None:
    mine = [other for other in every if (other.suite, other.model) == (one.suite, one.model)]
    mine = [other for other in mine if set(against) <= _typed(other)] if against else []
    apart = {id(other): len(_typed(one) ^ _typed(other)) for other in mine}
    least = [other for other in mine if apart[id(other)] == min(apart.values())]
    if len(least) > 1:
        names = "; ".join(_line_name(other) for other in least)
        raise UserError(f"--against {' '.join(against)} means {names} for {_line_name(one)}. Name more settings.")
    return least[0] if least else None


def _typed(one: SettingResults) -> set[str]:
    return {f"{key}={value_text(value)}" for key, value in one.first.settings.items()}
