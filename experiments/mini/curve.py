"""Curves of training runs: ``python -m experiments.mini.curve FOLDER...`` writes curve.svg into each folder.

Loss against step, over all tasks and of each: cross entropy of masked positions in nats, on a logarithmic axis.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dllm.errors import UserError
from experiments.support.scripts import refusing


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of a log. Raises UserError if it is missing."""
    file = folder / "log.jsonl"
    if not file.is_file():
        raise UserError(f"{file} is missing: give a folder that experiments.mini.train writes to.")
    return [json.loads(line) for line in file.read_text().splitlines()]


def draw(lines: Sequence[dict[str, Any]], title: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for task in sorted({task for line in lines for task in line["loss"]}):
        points = [(line["step"], line["loss"][task]) for line in lines if task in line["loss"]]
        width, colour = (2.5, "black") if task == "all" else (0.9, None)
        axes.plot(*zip(*points, strict=True), label=task, linewidth=width, color=colour)
    axes.set(title=title, xlabel="step", ylabel="loss, nats a token", yscale="log")
    axes.legend(fontsize=7, ncol=2)
    figure.savefig(file)
    pyplot.close(figure)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args(arguments).folders:
        draw(read(folder), folder.name, folder / "curve.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
