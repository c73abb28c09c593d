"""Pictures of quality against speed: a panel for each model, or for each sub-task of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, sqrt

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.report.figures import lossless_tpf, pareto, tpf_of
from experiments.report.look import (
    CROSS,
    FILLED,
    LOSSLESS,
    STAR,
    STAR_MARK,
    STYLE,
    Styles,
    legend,
    styles,
)
from experiments.report.methods import Method, baseline, by_model, each
from experiments.report.settings import Setting
from experiments.report.table import plain

X = Callable[[Setting], float]


def tradeoff(settings: Sequence[Setting], x: X, label: str, timed: bool = False) -> Figure:
    """Quality against ``x``: a panel for each model, a line for each method, Pareto-optimal points filled.

    timed: ``x`` is a speed. A setting whose times are in doubt is crossed and never filled; no speed-up refers to it.
    Else ``x`` is useful tokens per forward, at which the lossless minimum of an oracle has its place, too.
    """
    with plt.rc_context(STYLE):
        groups, style = by_model(settings), styles(settings)
        figure, axes = plt.subplots(
            1, len(groups), figsize=(0.3 + 3.6 * len(groups), 3.7), sharey=True, squeeze=False, layout="constrained"
        )
        drawn: set[str] = set()
        for axis, (model, found) in zip(axes[0], groups.items(), strict=True):
            drawn |= panel(axis, found, x, style, timed)
            axis.set(title=model, xlabel=label)
            speedups(axis, found, x, timed)
        lows = [one.interval[0] for found in groups.values() for _, one in each(found) if x(one) > 0]
        axes[0][0].set_ylim(min(50.0, *lows) - 2, 103)  # of all panels
        axes[0][0].set_ylabel("score, mean over tasks (%)")
        legend(figure, style, drawn)
    return figure


def panel(axis: Axes, found: Sequence[Method], x: X, style: Styles, timed: bool = False) -> set[str]:
    """Draw the points of a model. Returns what was drawn: methods by name, and the marks STAR, LOSSLESS, FILLED, CROSS.

    Settings without forwards, whose answers were chosen by likelihood, have no place on a log axis. The star stands in
    for its setting's own marker, and lies below others of the same place. Hollow markers are see-through: methods that
    commit the same tokens have the same place. Beside a highlighted method others are faint.
    """
    found = [shown for method in found if (shown := method.only(lambda one: x(one) > 0)).settings]
    every, start = [one for _, one in each(found)], baseline(found)
    if not every:
        return set()
    drawn = {method.name for method in found if method.only(lambda one: one is not start).settings}
    chosen = [one for method, one in each(found) if not method.is_reference]
    best = dict(zip(map(id, chosen), optimal(chosen, x, timed), strict=True))
    for method in found:
        colour, marker, _ = style[method.name]
        line, bold, faint = joined(method, x), method.is_highlighted, faintness(method, found)
        axis.plot(
            [x(one) for one in line], [one.quality for one in line], color=colour, linewidth=2.4 if bold else 1.1,
            alpha=0.7 * faint, zorder=3 if bold else 2,
        )  # fmt: skip
        for one in method.settings:
            axis.plot([x(one)] * 2, one.interval, color=colour, linewidth=0.7, alpha=0.45 * faint)
            if one is not start:
                axis.plot(
                    x(one), one.quality, marker=marker, color=colour, markersize=7.5 if bold else 5.5,
                    markeredgewidth=1.1, markerfacecolor=colour if best.get(id(one)) else "none", alpha=faint,
                    zorder=3.5 if bold else 3,
                )  # fmt: skip
                drawn |= {FILLED} if best.get(id(one)) else set()
            if timed and one.measures.warning:
                drawn.add(CROSS)
                axis.plot(x(one), one.quality, marker="x", color="black", markersize=7, zorder=4)
    if start is not None:
        drawn.add(STAR)
        axis.plot(x(start), start.quality, color="black", zorder=2.5, **STAR_MARK)
    for one in every if not timed else ():
        if "lossless" in one.rows[0]:
            drawn.add(LOSSLESS)
            axis.plot(lossless_tpf(one), one.quality, color="black", markerfacecolor="white", zorder=2.5, **STAR_MARK)
    axis.set_xscale("log", base=2)
    low, high = axis.get_xlim()
    # Powers of two, if the axis shows several.
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=9) if high / low >= 4 else MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    return drawn


def faintness(method: Method, found: Sequence[Method]) -> float:
    """How opaque a method is drawn: others than the highlighted one step back."""
    return 1.0 if method.is_highlighted or not any(one.is_highlighted for one in found) else 0.35


def optimal(settings: Sequence[Setting], x: X, timed: bool) -> list[bool]:
    """Whether each setting is Pareto-optimal. A speed in doubt is too low: it may beat others, but is never optimal."""
    best = pareto([(x(one), one.quality) for one in settings])
    return [is_best and not (timed and one.measures.warning) for is_best, one in zip(best, settings, strict=True)]


def joined(method: Method, x: X) -> list[Setting]:
    """The settings that a line joins: all of a curve, and the Pareto-optimal ones of a grid over several numbers."""
    if not method.is_grid:
        return method.settings
    best = pareto([(x(one), one.quality) for one in method.settings])
    return sorted((one for one, is_best in zip(method.settings, best, strict=True) if is_best), key=x)


def speedups(axis: Axes, found: Sequence[Method], x: X, timed: bool = False) -> None:
    """A second axis: how many times as fast as one token per forward."""
    start = baseline(found)
    if start is None or not x(start) > 0 or (timed and start.measures.warning):
        return
    unit = x(start)
    above = axis.secondary_xaxis("top", functions=(lambda v: np.asarray(v) / unit, lambda v: np.asarray(v) * unit))
    above.set_xscale("log", base=2)
    above.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    above.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    above.xaxis.set_minor_formatter(NullFormatter())
    above.set_xlabel("times one token per step (star)", fontsize=8, color="#444444")
    above.tick_params(labelsize=7, colors="#444444")


def curves_of_tasks(settings: Sequence[Setting]) -> dict[str, Figure]:
    """Score of each sub-task against tokens per forward, a picture for each model and a panel for each sub-task."""
    return {model: _task_panels(model, found, styles(settings)) for model, found in by_model(settings).items()}


def task_curve(axis: Axes, method: Method, task: str, style: Styles, faint: float) -> bool:
    """Draw a method's settings on one sub-task, see-through, since others may lie there. Returns whether it has any."""
    here = [(tpf_of(one, task), one.scores[task]) for one in method.settings if task in one.scores]
    points = sorted(point for point in here if point[0] > 0)
    colour, marker, _ = style[method.name]
    xs, ys = zip(*points, strict=True) if points else ((), ())
    bold = method.is_highlighted
    axis.plot(
        xs, ys, color=colour, marker=marker, markersize=4.6 if bold else 3.6, markerfacecolor="none", alpha=faint,
        zorder=3 if bold else 2, linewidth=0.0 if method.is_grid else 2.0 if bold else 1.0,
    )  # fmt: skip
    return bool(points)


def _task_panels(model: str, found: Sequence[Method], style: Styles) -> Figure:
    names = list(dict.fromkeys(task for _, one in each(found) for task in one.scores))
    columns = ceil(sqrt(len(names))) + (len(names) > 4)
    lines = -(-len(names) // columns)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            lines, columns, figsize=(2.0 * columns + 0.5, 1.65 * lines + 0.4), sharex=True, sharey=True, squeeze=False,
            layout="constrained",
        )  # fmt: skip
        drawn: set[str] = set()
        for axis, task in zip(axes.flat, names, strict=False):
            drawn |= {
                method.name for method in found if task_curve(axis, method, task, style, faintness(method, found))
            }
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
