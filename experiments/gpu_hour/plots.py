"""Pictures of the GPU hour: speed by batch, and each kernel's share of its ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from dllm.view.report.plots import COLOURS, MARKERS, STYLE
from experiments.gpu_hour.store import Outcome
from experiments.gpu_hour.targets import Figures, decodes, measured_cells

Cells = Mapping[str, Mapping[str, Outcome]]


def draw(cells: Cells, folder: Path) -> list[str]:
    """Write the pictures of what was measured. Returns their names."""
    found = {
        "gpu_steps.svg": speeds(measured_cells(decodes(cells), rule="fixed")),
        "gpu_kernels.svg": ceilings(cells.get("kernels", {})),
    }
    for name, figure in found.items():
        if figure is not None:
            figure.savefig(folder / name, metadata={"Date": None})
            plt.close(figure)
    return [name for name, figure in found.items() if figure is not None]


def speeds(steps: list[Figures]) -> Figure | None:
    """Tokens/s by batch: a panel for each model, a line for each cache, in its fastest runtime."""
    if not steps:
        return None
    models = list(dict.fromkeys(one["model"] for one in steps))
    names = list(dict.fromkeys(one["cache"] for one in steps))  # a cache looks the same in all panels
    looks = dict(zip(names, zip(cycle(COLOURS), cycle(MARKERS), strict=False), strict=False))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(models), figsize=(1.2 + 3.4 * len(models), 3.4), squeeze=False, layout="constrained"
        )
        for axis, model in zip(axes[0], models, strict=True):
            mine = [one for one in steps if one["model"] == model and one["weights"] in ("bfloat16", "float32")]
            caches = dict.fromkeys(one["cache"] for one in mine)
            for cache in caches:
                line, (colour, marker) = sorted(fastest(mine, cache).items()), looks[cache]
                axis.plot(*zip(*line, strict=True), color=colour, marker=marker, label=cache)
            axis.set(title=model, xlabel="batch", ylabel="tokens/s, one token a turn", xscale="log", yscale="log")
            axis.legend()
    return figure


def fastest(steps: list[Figures], cache: str) -> dict[int, float]:
    """Tokens/s by batch."""
    out: dict[int, float] = {}
    for one in steps:
        if one["cache"] == cache:
            out[one["batch"]] = max(out.get(one["batch"], 0.0), one["tokens_per_s"])
    return out


def ceilings(kernels: Mapping[str, Outcome]) -> Figure | None:
    """Bars: the share of its ceiling that each operation reaches, ours beside PyTorch's."""
    bars = [
        (f"{name}, {shape}", way, found["share"])
        for name, one in kernels.items()
        for shape, ways in one.get("figures", {}).items()
        for way, found in ways.items()
    ]
    if not bars:
        return None
    labels, ways = list(dict.fromkeys(bar[0] for bar in bars)), list(dict.fromkeys(bar[1] for bar in bars))
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.6, 0.8 + 0.16 * len(ways) * len(labels)), layout="constrained")
        high = 0.8 / len(ways)
        for number, (way, colour) in enumerate(zip(ways, cycle(COLOURS), strict=False)):
            mine = {label: 100 * share for label, one, share in bars if one == way}
            places = [labels.index(label) + high * number for label in mine]
            hatch = "//" * (number // len(COLOURS))
            axis.barh(places, list(mine.values()), height=0.95 * high, color=colour, hatch=hatch, label=way)
        axis.set_yticks([at + 0.4 - high / 2 for at in range(len(labels))], labels)
        axis.invert_yaxis()
        axis.axvline(80, color="#555555", linewidth=0.8, linestyle="--")
        axis.set_xlabel("share of the measured ceiling (%)")
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
