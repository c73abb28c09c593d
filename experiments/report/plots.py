"""Pictures of quality against speed. A method has a colour-blind-safe colour (Okabe and Ito 2008) and a marker.

Both are needed: nobody can tell 35 colours, or 35 markers, apart. Whether a marker is filled says something of a point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from dllm.errors import not_installed

try:
    import matplotlib
except ImportError:
    raise not_installed("a report", "matplotlib", "report") from None
matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.report.cells import Cell
from experiments.report.figures import lossless_tpf, pareto, tpf_of
from experiments.report.methods import Method, baseline, by_model
from experiments.report.tables import plain

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#555555"
# Ten, and seven colours: cycled together they make 70 pairs, since the numbers have no common divisor. Left out are
# markers that look alike where they are small ("p", "h", "8"). A black "X", which resembles CROSS, is the last pair.
MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "d", "X")
STYLE: dict[RcKeyType, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.6, "svg.fonttype": "none", "figure.dpi": 100, "savefig.dpi": 200,
    "axes.axisbelow": True,
}  # fmt: skip
# Marks that are no method's; their names in the legend.
STAR, FILLED, CROSS = "one token per step", "filled: Pareto-optimal", "crossed: busy machine"
LOSSLESS = "lossless minimum"
PAD = 6.0  # dots of a figure that a legend leaves free above and below
STAR_MARK: dict[str, Any] = {"marker": "*", "markersize": 12, "linestyle": "none"}
X = Callable[[Cell], float]


class Look(NamedTuple):
    """How a method is drawn. is_curve: it has several settings, which a line may join."""

    colour: str
    marker: str
    is_curve: bool


Styles = dict[str, Look]  # by method


def styles(cells: Sequence[Cell]) -> Styles:
    """The look of each method, the same in all pictures of a report. 70 methods look different, curves first."""
    found = sorted((m for group in by_model(cells).values() for m in group), key=lambda m: (-len(m.cells), m.name))
    curves = {method.name for method in found if len(method.cells) > 1}
    names = dict.fromkeys(method.name for method in found)
    return {
        name: Look(colour, marker, name in curves)
        for name, colour, marker in zip(names, cycle(COLOURS), cycle(MARKERS), strict=False)
    }


def tradeoff(cells: Sequence[Cell], x: X, label: str, timed: bool = False) -> Figure:
    """Quality against ``x``: a panel for each model, a line for each method, Pareto-optimal points filled.

    timed: ``x`` is a speed. A cell whose times are in doubt is crossed and never filled, and no speed-up refers to it.
    Else ``x`` is useful tokens per forward, at which the lossless minimum of an oracle's cell has its place, too.
    """
    with plt.rc_context(STYLE):
        groups, style = by_model(cells), styles(cells)
        figure, axes = plt.subplots(
            1, len(groups), figsize=(0.3 + 3.6 * len(groups), 3.7), sharey=True, squeeze=False, layout="constrained"
        )
        drawn: set[str] = set()
        for axis, (model, found) in zip(axes[0], groups.items(), strict=True):
            drawn |= panel(axis, found, x, style, timed)
            axis.set(title=model, xlabel=label)
            speedups(axis, found, x, timed)
        lows = [cell.interval[0] for found in groups.values() for one in found for cell in one.cells if x(cell) > 0]
        axes[0][0].set_ylim(min(50.0, *lows) - 2, 103)  # of all panels
        axes[0][0].set_ylabel("score, mean over tasks (%)")
        legend(figure, style, drawn)
    return figure


def panel(axis: Axes, found: Sequence[Method], x: X, style: Styles, timed: bool = False) -> set[str]:
    """Draw the points of a model. Returns what was drawn: methods by name, and the marks STAR, LOSSLESS, FILLED, CROSS.

    Cells without forwards, whose answers were chosen by likelihood, have no place on a log axis. The star stands in for
    its cell's own marker, and lies below others of the same place. Hollow markers are see-through: methods that commit
    the same tokens have the same place.
    """
    found = [shown for method in found if (shown := method.only(lambda cell: x(cell) > 0)).cells]
    every, start = [cell for method in found for cell in method.cells], baseline(found)
    if not every:
        return set()
    drawn = {method.name for method in found if method.only(lambda cell: cell is not start).cells}
    chosen = [cell for method in found if not method.is_reference for cell in method.cells]
    best = dict(zip(map(id, chosen), optimal(chosen, x, timed), strict=True))
    for method in found:
        colour, marker, _ = style[method.name]
        line = joined(method, x)
        axis.plot([x(c) for c in line], [c.quality for c in line], color=colour, linewidth=1.1, alpha=0.7)
        for cell in method.cells:
            low, high = cell.interval
            axis.plot([x(cell)] * 2, [low, high], color=colour, linewidth=0.7, alpha=0.45)
            if cell is not start:
                axis.plot(
                    x(cell), cell.quality, marker=marker, color=colour, markersize=5.5, markeredgewidth=1.1,
                    markerfacecolor=colour if best.get(id(cell)) else "none", zorder=3,
                )  # fmt: skip
                drawn |= {FILLED} if best.get(id(cell)) else set()
            if timed and cell.measures.doubt:
                drawn.add(CROSS)
                axis.plot(x(cell), cell.quality, marker="x", color="black", markersize=7, zorder=4)
    if start is not None:
        drawn.add(STAR)
        axis.plot(x(start), start.quality, color="black", zorder=2.5, **STAR_MARK)
    for cell in every if not timed else ():
        if "lossless" in cell.rows[0]:
            drawn.add(LOSSLESS)
            axis.plot(lossless_tpf(cell), cell.quality, color="black", markerfacecolor="white", zorder=2.5, **STAR_MARK)
    axis.set_xscale("log", base=2)
    low, high = axis.get_xlim()
    # Powers of two, if the axis shows several.
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=9) if high / low >= 4 else MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    return drawn


def optimal(cells: Sequence[Cell], x: X, timed: bool) -> list[bool]:
    """Whether each cell is Pareto-optimal. A speed in doubt is too low: it may beat others, but is never optimal."""
    best = pareto([(x(cell), cell.quality) for cell in cells])
    return [one and not (timed and cell.measures.doubt) for one, cell in zip(best, cells, strict=True)]


def joined(method: Method, x: X) -> list[Cell]:
    """The cells that a line joins: all of a curve, and the Pareto-optimal ones of a grid over several numbers."""
    if len(method.differing) < 2:
        return method.cells
    best = pareto([(x(cell), cell.quality) for cell in method.cells])
    return sorted((cell for cell, is_best in zip(method.cells, best, strict=True) if is_best), key=x)


def speedups(axis: Axes, found: Sequence[Method], x: X, timed: bool = False) -> None:
    """A second axis: how many times as fast as one token per forward."""
    start = baseline(found)
    if start is None or not x(start) > 0 or (timed and start.measures.doubt):
        return
    unit = x(start)
    above = axis.secondary_xaxis("top", functions=(lambda v: np.asarray(v) / unit, lambda v: np.asarray(v) * unit))
    above.set_xscale("log", base=2)
    above.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    above.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    above.xaxis.set_minor_formatter(NullFormatter())
    above.set_xlabel("times one token per step (star)", fontsize=8, color="#444444")
    above.tick_params(labelsize=7, colors="#444444")


def legend(figure: Figure, style: Styles, drawn: set[str]) -> None:
    """Entries for what was drawn, beside the panels: methods, hollow where filled ones have a meaning, and marks.

    In as few columns as the figure's height allows. The figure grows in width by them, so that panels keep their size.
    """
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=5.5, linewidth=1.1 * look.is_curve, label=name,
               markerfacecolor="none" if FILLED in drawn else look.colour)
        for name, look in style.items()
    ]  # fmt: skip
    star, hollow = (
        Line2D([], [], color="black", marker="*", markersize=9, linestyle="none", label=label, markerfacecolor=face)
        for label, face in ((STAR, "black"), (LOSSLESS, "white"))
    )
    full = Line2D([], [], color=GREY, marker="o", markersize=5.5, linestyle="none", label=FILLED)
    cross = Line2D([], [], color="black", marker="x", markersize=7, linestyle="none", label=CROSS)
    entries = [handle for handle in (*handles, star, hollow, full, cross) if handle.get_label() in drawn]
    for columns in range(1, len(entries) + 1):
        box = figure.legend(
            handles=entries, loc="outside right upper", ncols=columns, frameon=False, handlelength=2.2
        )
        extent = box.get_window_extent()
        if extent.height <= figure.bbox.height - 2 * PAD:
            figure.set_figwidth((figure.bbox.width + extent.width) / figure.dpi)
            return
        box.remove()


def curves_of_tasks(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Score of each sub-task against tokens per forward, a picture for each model and a panel for each sub-task."""
    return {model: _task_panels(model, found, styles(cells)) for model, found in by_model(cells).items()}


def _task_panels(model: str, found: Sequence[Method], style: Styles) -> Figure:
    names = list(dict.fromkeys(task for method in found for cell in method.cells for task in cell.scores))
    curves = [method for method in found if len(method.cells) > 1] or list(found)
    columns = ceil(sqrt(len(names))) + (len(names) > 4)
    lines = -(-len(names) // columns)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            lines, columns, figsize=(2.0 * columns + 0.5, 1.65 * lines + 0.4), sharex=True, sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        drawn: set[str] = set()
        for axis, task in zip(axes.flat, names, strict=False):
            for method in curves:
                here = [(tpf_of(cell, task), cell.scores[task]) for cell in method.cells if task in cell.scores]
                points = sorted(point for point in here if point[0] > 0)
                drawn |= {method.name} if points else set()
                colour, marker, _ = style[method.name]
                xs, ys = zip(*points, strict=True) if points else ((), ())
                width = 1.0 if len(method.differing) < 2 else 0.0
                axis.plot(xs, ys, color=colour, marker=marker, markersize=3.2, linewidth=width)
            axis.set_title(plain(task), fontsize=9)
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_ylim(-5, 105)
        for axis, above in zip(axes.flat[len(names) :], axes.flat[len(names) - columns :], strict=False):
            axis.set_visible(False)
            above.tick_params(labelbottom=True)
        figure.supxlabel("useful tokens per forward", fontsize=9)
        figure.supylabel("score (%)", fontsize=9)
        figure.suptitle(model, fontsize=10, x=0.01, ha="left")
        legend(figure, style, drawn)
    return figure


def save(figure: Figure, path: Any) -> None:
    with plt.rc_context(STYLE):  # whose resolution is read when saving
        figure.savefig(path)
    plt.close(figure)
