"""How a report's pictures look: colours, markers, the legend, the files.

A method has a colour-blind-safe colour (Okabe and Ito 2008) and a marker. Both are needed: nobody can tell 35 colours,
or 35 markers, apart. Whether a marker is filled says something of a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dllm.common.atomic_write import whole_file
from dllm.errors import not_installed

try:
    import matplotlib
except ImportError:
    raise not_installed("a report", "matplotlib", "report") from None
matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.methods import by_model
from experiments.report.page import DPI
from experiments.report.settings import Setting

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
# Marks that are no method's; their names in the legend.
STAR, FILLED, CROSS = "one token per step", "filled: Pareto-optimal", "crossed: busy machine"
LOSSLESS = "lossless minimum"
PAD = 6.0  # dots of a figure that a legend leaves free above and below
DATES: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
STAR_MARK: dict[str, Any] = {"marker": "*", "markersize": 12, "linestyle": "none"}


class Look(NamedTuple):
    """How a method is drawn. is_curve: it has several settings, which a line may join."""

    colour: str
    marker: str
    is_curve: bool


Styles = dict[str, Look]  # by method


def styles(settings: Sequence[Setting]) -> Styles:
    """The look of each method, the same in all pictures of a report. 70 methods look different, curves first."""
    every = [method for group in by_model(settings).values() for method in group]
    found = sorted(every, key=lambda one: (one.settings[0].rank, -len(one.settings), one.name))
    curves = {method.name for method in found if len(method.settings) > 1}
    names = dict.fromkeys(method.name for method in found)
    return {
        name: Look(colour, marker, name in curves)
        for name, colour, marker in zip(names, cycle(COLOURS), cycle(MARKERS), strict=False)
    }


def legend(figure: Figure, style: Styles, drawn: set[str]) -> None:
    """Entries for what was drawn, beside the panels: methods, and marks.

    In as few columns as the figure's height allows. The figure grows in width by them, so that panels keep their size.
    """
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=5.5, linewidth=1.1 * look.is_curve, label=name,
               markerfacecolor="none")
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
        for kind, dated in DATES.items():
            with whole_file(path.with_suffix(f".{kind}")) as scratch:
                figure.savefig(scratch, format=kind, metadata=dated)
    plt.close(figure)
