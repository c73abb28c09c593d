"""Several runs beside each other: ``python -m experiments.rl.curves FOLDER... --out FILE.svg`` prints a table of their
scores, and draws their rewards."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.rl.training import LAST
from experiments.support import markdown
from experiments.support.course import log_of
from experiments.support.scripts import refusing

HEAD = ("seed", "updates", "drawn, before", "drawn, after", "argmax, before", "argmax, after", "minutes of a core")


def row(folder: Path) -> list[str]:
    """A line of the table; scores in per cent."""
    report, last = json.loads((folder / "report.json").read_text()), log_of(folder)[-1]
    scores = [f"{100 * report[when][how]:.0f}" for how in ("drawn", "argmax") for when in ("before", "after")]
    return [str(report["recipe"]["decode"]["seed"]), str(report["updates"]), *scores, f"{last['cpu_minutes']:.1f}"]


def draw_rewards(folders: Sequence[Path], out: Path) -> None:
    """Thin: the mean reward of each update; thick: of the last five."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure, axis = pyplot.subplots(figsize=(6, 2.6), layout="constrained")
        for number, folder in enumerate(folders):
            lines = log_of(folder)
            steps, rewards = ([line[name] for line in lines] for name in ("step", "reward"))
            means = [sum(rewards[max(0, at - LAST) : at]) / min(at, LAST) for at in range(1, len(rewards) + 1)]
            seed = json.loads((folder / "recipe.json").read_text())["decode"]["seed"]
            axis.plot(steps, rewards, linewidth=0.5, alpha=0.6, color=f"C{number}")
            axis.plot(steps, means, linewidth=1.6, color=f"C{number}", label=f"seed {seed}")
        axis.set(xlabel="update", ylabel="mean reward of 64 rollouts", ylim=(0, 1))
        axis.legend(frameon=False)
        figure.savefig(out, metadata={"Date": None})
        pyplot.close(figure)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    asked = parser.parse_args(arguments)
    draw_rewards(asked.folders, asked.out)
    print(markdown.table(HEAD, map(row, asked.folders)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
