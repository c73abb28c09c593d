"""Pictures of quality against speed: a panel for each model, or for each sub-task of a model.

A method has a colour-blind-safe colour (Okabe and Ito 2008) and a marker. Both are needed, since 35 colours or 35
markers cannot be told apart. A filled marker is a Pareto-optimal point. Imported by a report alone, which has asked
for matplotlib before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import ceil, inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dllm.common.atomic_write import whole_file
from dllm.view.report.figures import pareto, tpf_of
from dllm.view.report.methods import Method, baseline, by_model, each_setting
from dllm.view.report.page_pieces import DPI, PictureFile, file_name, task_words
from dllm.view.report.pooling import SettingResults

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
    "grid.color": "#dddddd", "grid.linewidth": 0.6, "svg.fonttype": "none", "svg.hashsalt": "dllm", "pdf.fonttype": 42,
    "figure.dpi": 100, "savefig.dpi": DPI, "axes.axisbelow": True,
}  # fmt: skip
# Marks that belong to no method; their names in the legend.
STAR, PARETO_FILL, CROSS = "one token per step", "filled: Pareto-optimal", "crossed: busy machine"
LOSSLESS = "lossless minimum"
FORWARD, SECOND, COMPUTE = "useful tokens per forward", "useful tokens per second", "useful tokens per TFLOP"
CAPTION = (
    "Score against {}; vertical lines: 95 % intervals; filled: nothing is better in both; star: one token per step;"
)
EACH = "Each sub-task's score as more tokens are decoded per forward"
PAD = 6.0  # dots of a figure that a legend leaves free above and below
DATES: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
STAR_MARK: dict[str, Any] = {"marker": "*", "markersize": 12, "linestyle": "none"}


class Look(NamedTuple):
    """How a method is drawn. is_curve: it has several settings, which a line may join."""

    colour: str
    marker: str
    is_curve: bool


Styles = dict[str, Look]  # by method
X = Callable[[SettingResults], float]  # where a setting has its place on the lower axis


def per_forward(setting: SettingResults) -> float:
    """Useful tokens over forwards."""
    return setting.measures.tpf


def per_teraflop(setting: SettingResults) -> float:
    """Useful tokens over 10^12 FLOPs: with these equal, what a budget of compute buys."""
    return 1e12 * setting.measures.tokens / (setting.column("flops") or inf)


def styles(settings: Sequence[SettingResults]) -> Styles:
    """The look of each method, the same in all pictures of a report. 70 methods look different, curves first."""
    every = [method for group in by_model(settings).values() for method in group]
    ranking = sorted(every, key=lambda m: (m.settings[0].rank, -len(m.settings), m.name))
    curves = {method.name for method in ranking if len(method.settings) > 1}
    names = dict.fromkeys(method.name for method in ranking)
    return {
        name: Look(colour, marker, name in curves)
        for name, colour, marker in zip(names, cycle(COLOURS), cycle(MARKERS), strict=False)
    }


def legend(figure: Figure, style: Styles, labels: set[str]) -> None:
    """Entries for what was drawn, beside the panels: methods, and marks.

    In as few columns as the figure's height allows. The figure grows in width by them, so that panels keep their size.
    """
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            marker=look.marker,
            markersize=5.5,
            linewidth=1.1 * look.is_curve,
            label=name,
            markerfacecolor="none",
        )
        for name, look in style.items()
    ]
    star, hollow = (
        Line2D([], [], color="black", marker="*", markersize=9, linestyle="none", label=label, markerfacecolor=face)
        for label, face in ((STAR, "black"), (LOSSLESS, "white"))
    )
    full = Line2D([], [], color=GREY, marker="o", markersize=5.5, linestyle="none", label=PARETO_FILL)
    cross = Line2D([], [], color="black", marker="x", markersize=7, linestyle="none", label=CROSS)
    entries = [handle for handle in (*handles, star, hollow, full, cross) if handle.get_label() in labels]
    for columns in range(1, len(entries) + 1):
        box = figure.legend(handles=entries, loc="outside right upper", ncols=columns, frameon=False, handlelength=2.2)
        extent = box.get_window_extent()
        if extent.height <= figure.bbox.height - 2 * PAD:
            figure.set_figwidth((figure.bbox.width + extent.width) / figure.dpi)
            return
        box.remove()


def save(figure: Figure, path: Path) -> None:
    """As PNG at ``path``, and beside it as PDF and SVG, whose bytes do not depend on the time. A
    reader finds each file whole."""
    with plt.rc_context(STYLE):  # whose resolution is read when saving
        for kind, metadata in DATES.items():
            with whole_file(path.with_suffix(f".{kind}")) as scratch:
                figure.savefig(scratch, format=kind, metadata=metadata)
    plt.close(figure)


def tradeoff(settings: Sequence[SettingResults], x: X, label: str, is_speed: bool = False) -> Figure:
    """Quality against ``x``: a panel for each model, a line for each method, Pareto-optimal points filled.

    is_speed: of ``x``. A setting whose times are in doubt is crossed and never filled; no speed-up refers to it.
    Of useful tokens per forward the lossless minimum of an oracle has its place, too.
    """
    with plt.rc_context(STYLE):
        groups, style = by_model(settings), styles(settings)
        figure, axes = plt.subplots(
            1, len(groups), figsize=(0.3 + 3.6 * len(groups), 3.7), sharey=True, squeeze=False, layout="constrained"
        )
        labels: set[str] = set()
        for axis, (model, group) in zip(axes[0], groups.items(), strict=True):
            labels |= panel(axis, group, x, style, is_speed)
            axis.set(title=model, xlabel=label)
            speedups(axis, group, x, is_speed)
        points = [s for group in groups.values() for _, s in each_setting(group) if x(s) > 0]
        ends = [end for s in points for end in (s.quality, *(s.interval or ()))]
        axes[0][0].set_ylim(min(50.0, *ends) - 2, max(100.0, *ends) + 3)  # of all panels
        axes[0][0].set_ylabel("score, mean over tasks (%)")
        legend(figure, style, labels)
    return figure


def panel(axis: Axes, group: Sequence[Method], x: X, style: Styles, is_speed: bool = False) -> set[str]:
    """Draw the points of a model. Returns the labels: methods by name, and marks (STAR, LOSSLESS ...).

    Settings without forwards, whose answers were chosen by likelihood, have no place on a log axis. The star is in
    for its setting's own marker, and is below others of the same place. Hollow markers are see-through: methods that
    commit the same tokens have the same place. Beside a highlighted method others are faint.
    """
    group = [some for method in group if (some := method.only(lambda setting: x(setting) > 0)).settings]
    every, start = [setting for _, setting in each_setting(group)], baseline(group)
    if not every:
        return set()
    labels = {method.name for method in group if method.only(lambda setting: setting is not start).settings}
    choices = [setting for method, setting in each_setting(group) if not method.is_reference]
    best = dict(zip(map(id, choices), optimal(choices, x, is_speed), strict=True))
    for method in group:
        colour, marker, _ = style[method.name]
        faint = faintness(method, group)
        _draw_line(axis, method, x, colour, faint)
        for setting in method.settings:
            ends = setting.interval or [setting.quality] * 2
            axis.plot([x(setting)] * 2, ends, color=colour, linewidth=0.7, alpha=0.45 * faint)
            if setting is not start:
                fill = colour if best.get(id(setting)) else "none"
                _draw_point(axis, setting, x, marker, colour, fill, faint, method.is_highlighted)
                labels |= {PARETO_FILL} if best.get(id(setting)) else set()
            if is_speed and setting.measures.warning:
                labels.add(CROSS)
                axis.plot(x(setting), setting.quality, marker="x", color="black", markersize=7, zorder=4)
    if start is not None:
        labels.add(STAR)
        axis.plot(x(start), start.quality, color="black", zorder=2.5, **STAR_MARK)
    for setting in every if x is per_forward else ():
        if "lossless" in setting.rows[0]:
            labels.add(LOSSLESS)  # useful tokens per forward at the oracle's fewest forwards
            lossless = setting.measures.tokens / max(1, sum(row["lossless"] for row in setting.rows))
            axis.plot(lossless, setting.quality, color="black", markerfacecolor="white", zorder=2.5, **STAR_MARK)
    _scale_by_two(axis)
    return labels


def _draw_line(axis: Axes, method: Method, x: X, colour: str, faint: float) -> None:
    line, bold = _line_settings(method, x), method.is_highlighted
    axis.plot(
        [x(s) for s in line],
        [s.quality for s in line],
        color=colour,
        linewidth=2.4 if bold else 1.1,
        alpha=0.7 * faint,
        zorder=3 if bold else 2,
    )


def _draw_point(
    axis: Axes, setting: SettingResults, x: X, marker: str, colour: str, fill: str, faint: float, bold: bool
) -> None:
    axis.plot(
        x(setting),
        setting.quality,
        marker=marker,
        color=colour,
        markersize=7.5 if bold else 5.5,
        markeredgewidth=1.1,
        markerfacecolor=fill,
        alpha=faint,
        zorder=3.5 if bold else 3,
    )


def _scale_by_two(axis: Axes) -> None:
    """A log axis of x, with powers of two where it shows several."""
    axis.set_xscale("log", base=2)
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=9) if high / low >= 4 else MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def faintness(method: Method, group: Sequence[Method]) -> float:
    """How opaque a method is drawn: others than the highlighted one step back."""
    return 1.0 if method.is_highlighted or not any(other.is_highlighted for other in group) else 0.35


def optimal(settings: Sequence[SettingResults], x: X, is_speed: bool) -> list[bool]:
    """Whether each setting is Pareto-optimal. A speed in doubt is too low: it may beat others, but is never optimal."""
    best = pareto([(x(s), s.quality) for s in settings])
    return [is_best and not (is_speed and s.measures.warning) for is_best, s in zip(best, settings, strict=True)]


def _line_settings(method: Method, x: X) -> list[SettingResults]:
    """The settings that a line joins: all of a curve, and the Pareto-optimal ones of a grid over several numbers."""
    if not method.is_grid:
        return method.settings
    best = pareto([(x(s), s.quality) for s in method.settings])
    return sorted((s for s, is_best in zip(method.settings, best, strict=True) if is_best), key=x)


def speedups(axis: Axes, group: Sequence[Method], x: X, is_speed: bool = False) -> None:
    """A second axis: how many times as fast as one token per forward."""
    start = baseline(group)
    if start is None or not x(start) > 0 or (is_speed and start.measures.warning):
        return
    unit = x(start)
    above = axis.secondary_xaxis("top", functions=(lambda v: np.asarray(v) / unit, lambda v: np.asarray(v) * unit))
    above.set_xscale("log", base=2)
    above.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    above.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    above.xaxis.set_minor_formatter(NullFormatter())
    above.set_xlabel("times one token per step (star)", fontsize=8, color="#444444")
    above.tick_params(labelsize=7, colors="#444444")


def curves_of_tasks(settings: Sequence[SettingResults]) -> dict[str, Figure]:
    """Score of each sub-task against tokens per forward, a picture for each model and a panel for each sub-task."""
    return {model: _task_panels(model, group, styles(settings)) for model, group in by_model(settings).items()}


def task_curve(axis: Axes, method: Method, task: str, style: Styles, faint: float) -> bool:
    """Draw a method's settings on one sub-task, see-through, since others may be there. Returns whether it has any."""
    here = [(tpf_of(s, task), s.scores[task]) for s in method.settings if task in s.scores]
    points = sorted(point for point in here if point[0] > 0)
    colour, marker, _ = style[method.name]
    xs, ys = zip(*points, strict=True) if points else ((), ())
    bold = method.is_highlighted
    axis.plot(
        xs,
        ys,
        color=colour,
        marker=marker,
        markersize=4.6 if bold else 3.6,
        markerfacecolor="none",
        alpha=faint,
        zorder=3 if bold else 2,
        linewidth=0.0 if method.is_grid else 2.0 if bold else 1.0,
    )
    return bool(points)


def _task_panels(model: str, group: Sequence[Method], style: Styles) -> Figure:
    names = list(dict.fromkeys(task for _, setting in each_setting(group) for task in setting.scores))
    columns = ceil(sqrt(len(names))) + (len(names) > 4)
    lines = -(-len(names) // columns)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            lines,
            columns,
            figsize=(2.0 * columns + 0.5, 1.65 * lines + 0.4),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        labels: set[str] = set()
        for axis, task in zip(axes.flat, names, strict=False):
            labels |= {
                method.name for method in group if task_curve(axis, method, task, style, faintness(method, group))
            }
            axis.set_title(task_words(task), fontsize=9)
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_ylim(-5, 105)
        for axis, above in zip(axes.flat[len(names) :], axes.flat[len(names) - columns :], strict=False):
            axis.set_visible(False)
            above.tick_params(labelbottom=True)
        figure.supxlabel("useful tokens per forward", fontsize=9)
        figure.supylabel("score (%)", fontsize=9)
        figure.suptitle(model, fontsize=10, x=0.01, ha="left")
        legend(figure, style, labels)
    return figure


def pictures_of(settings: Sequence[SettingResults], out: Path, mark: str) -> list[PictureFile]:
    """Draw the settings of a suite into the folder ``out``. mark: ends the names of the files."""
    by_task = curves_of_tasks(settings)
    figures = {
        "quality-tpf": (
            tradeoff(settings, per_forward, f"{FORWARD} (log scale)"),
            f"{CAPTION.format(FORWARD)} hollow: its lossless minimum.",
        ),
        "quality-speed": (
            tradeoff(settings, lambda s: s.measures.speed, f"{SECOND} (log scale)", is_speed=True),
            f"{CAPTION.format(SECOND)} crossed: the machine was busy, so the speed is too low.",
        ),
        **(
            {"quality-flops": (tradeoff(settings, per_teraflop, f"{COMPUTE} (log scale)"), CAPTION.format(COMPUTE))}
            if all(setting.column("flops") for setting in settings)
            else {}
        ),
        **{f"tasks-{file_name(model)}": (figure, f"{EACH}, {model}.") for model, figure in by_task.items()},
    }
    files = [PictureFile(out / f"{name}{mark}.png", caption) for name, (_, caption) in figures.items()]
    for picture, (figure, _) in zip(files, figures.values(), strict=True):
        save(figure, picture.file)
    return files
