"""The curve of a run: ``python -m experiments.distill.curve FOLDER`` writes FOLDER/curve.svg."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dllm.errors import UserError, not_installed
from experiments.distill.train import LOG, log_of
from experiments.support.scripts import refusing

SHOWN = {"cross_entropy": "cross entropy, nats", "entropy": "entropy where right, nats", "right": "share right"}


def draw(folder: Path) -> Path:
    """Cross entropy, entropy and the share of right tokens by step. Raises UserError without a log or matplotlib."""
    if not (folder / LOG).is_file():
        raise UserError(f"{folder / LOG} is missing: give a folder that experiments.distill writes to.")
    if find_spec("matplotlib") is None:
        raise not_installed("a curve", "matplotlib", "report")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    lines = log_of(folder)
    figure, axes = pyplot.subplots(1, len(SHOWN), figsize=(11, 3), layout="constrained")
    for axis, (name, label) in zip(axes, SHOWN.items(), strict=True):
        axis.plot([line["step"] for line in lines], [line[name] for line in lines])
        axis.set(xlabel="step", title=label, ylim=(0, None))
    figure.savefig(folder / "curve.svg")
    pyplot.close(figure)
    return folder / "curve.svg"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    print(*map(draw, parser.parse_args(arguments).folders), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
