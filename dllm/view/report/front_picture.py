"""The picture of a tuning: mean loss of each setting against its cost, the tested ones joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from dllm.common.atomic_write import whole_file
from dllm.scoring.promise import CertifiedChoice

BLUE, ORANGE, FAINT, BLACK = "#0072B2", "#D55E00", "#555555", "#000000"  # of Okabe and Ito, as in a report

Point = tuple[int, float, tuple[float, float], float]  # setting, loss, its interval, cost


def draw_front(
    file: Path, points: Sequence[Point], choice: CertifiedChoice, best: int, bound: float, unit: str
) -> None:
    """Write a PNG. Losses of settings that were dropped come from few items, and are drawn faint."""
    place = {k: (cost, 100 * loss) for k, loss, _, cost in points}
    with plt.rc_context({"font.size": 9, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True}):
        figure, axis = plt.subplots(figsize=(8, 5))
        for k, loss, (low, high), cost in points:
            colour = BLUE if k in choice.order else FAINT
            faint = 1.0 if k in choice.kept else 0.35
            axis.plot([cost, cost], [100 * low, 100 * high], color=colour, alpha=0.4 * faint, linewidth=1)
            axis.plot(
                cost, 100 * loss, "o", color=colour, alpha=faint, fillstyle="full" if k in choice.order else "none"
            )
        front = [place[k] for k in choice.order if k in place]
        axis.plot(*zip(*front, strict=True), color=BLUE, linewidth=1) if front else None
        axis.plot(*place[best], "*", color=ORANGE, markersize=15, label="taken")
        if 0 in place and best != 0:
            axis.plot(*place[0], "D", color=BLACK, label="reference")
        axis.axhline(100 * bound, color=ORANGE, linestyle="--", linewidth=1, label=f"allowed: {100 * bound:g} %")
        axis.set(xlabel=unit, ylabel="loss, %", xlim=(0, None))
        axis.legend(title="line: tested in this order; faint: dropped")
        figure.tight_layout()
        with whole_file(file) as stream:
            figure.savefig(stream, format="png")
        plt.close(figure)
