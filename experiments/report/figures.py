"""Numbers that sum up a curve of quality against parallelism, and distances to the possible optimum."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, nan

from dllm.analysis.limits import bits_bound
from experiments.report.cells import Cell, Row
from experiments.report.methods import Method

Points = Sequence[tuple[float, float]]  # (tokens per forward or step, score in percent)
ALPHA, DROP = 3.0, 5.0


def aup(points: Points, best: float) -> float:
    """Accuracy under parallelism (d3LLM, arXiv 2601.07568). best: the highest score of all compared methods.

    Points more than 5 percent below the least parallel one do not count.
    """
    ordered = sorted(points)
    if not ordered or best <= 0:
        return 0.0
    first = ordered[0][1]
    kept = [(tpf, score) for tpf, score in ordered if score >= first - DROP]
    weighted = [score * min(1.0, exp(-ALPHA * (1 - score / best))) for _, score in kept]
    steps = zip(kept, kept[1:], weighted, weighted[1:], strict=False)
    return kept[0][0] * first + sum((b[0] - a[0]) * (u + v) / 2 for a, b, u, v in steps)


def pb_discrete(points: Points, level: float) -> float | None:
    """PBx of ParallelBench: the most tokens per step of a setting that scores ``level`` percent or more."""
    return max((step for step, score in points if score >= level), default=None)


def pb_interpolated(points: Points, level: float) -> float | None:
    """PBx with the score interpolated between settings: the most tokens per step at which it reaches ``level``."""
    ordered = sorted(points)
    crossings = [
        a[0] + (level - a[1]) / (b[1] - a[1]) * (b[0] - a[0])
        for a, b in zip(ordered, ordered[1:], strict=False)
        if min(a[1], b[1]) < level <= max(a[1], b[1])
    ]
    return max([*crossings, *(step for step, score in ordered if score >= level)], default=None)


def pareto(points: Points) -> list[bool]:
    """Whether each point is Pareto-optimal: no other is at least as good in both and better in one."""
    return [
        not any(x >= a and y >= b and (x > a or y > b) for x, y in points)
        for a, b in points
    ]  # fmt: skip


def mean_aup(method: Method, others: Sequence[Method]) -> float:
    """AUP, mean over the sub-tasks."""
    tasks = sorted({task for other in others for cell in other.cells for task in cell.scores})
    found = []
    for task in tasks:
        best = max(cell.scores.get(task, 0.0) for other in others for cell in other.cells)
        points = [(tpf_of(cell, task), cell.scores[task]) for cell in method.cells if task in cell.scores]
        found.append(aup(points, best))
    return sum(found) / len(found) if found else nan


def tpf_of(cell: Cell, task: str) -> float:
    """Useful tokens per forward on one sub-task."""
    rows = cell.tasks[task]
    return sum(row["useful_tokens"] for row in rows) / max(1, sum(row["nfe"] for row in rows))


def lossless_tpf(oracle: Cell) -> float:
    """Useful tokens per forward at the lossless minimum of an oracle's cell, whose texts are those of one token per
    step."""
    return oracle.measures.tokens / max(1, sum(row["lossless"] for row in oracle.rows))


def steps_of(method: Method) -> list[tuple[float, float]]:
    return [(cell.tokens_per_step, cell.quality) for cell in method.cells]


def reference_of(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The oracle's cell of the same model, suite and layout."""
    oracle = (other for other in cells if "lossless" in other.rows[0] and other.layout == cell.layout)
    return next(oracle, None)


def pairs(cell: Cell, oracle: Cell) -> list[tuple[Row, Row]]:
    """The rows of the samples that both have."""
    there = {(row["id"], row["sample"]): row for row in oracle.rows}
    return [(row, there[key]) for row in cell.rows if (key := (row["id"], row["sample"])) in there]


def limits(cell: Cell, cells: Sequence[Cell]) -> dict[str, float | None]:
    """Distances of a cell to its limits.

    closeness: the oracle's forwards over the cell's. lossless: the fewest forwards that reproduce one token per step,
    over the cell's. same: percent of texts equal to one token per step. bits: per forward. forced: percent of commits
    that the rule did not accept. budget: percent used of the bits that the rule allows a forward, if it has a bound.
    """
    bits = sum(sum(row["bits"]) for row in cell.rows)
    commits, forwards = sum(sum(row["commits"]) for row in cell.rows), sum(row["nfe"] for row in cell.rows)
    out: dict[str, float | None] = {
        "closeness": None, "lossless": None, "same": None, "bits": bits / max(1, forwards),
        "forced": 100 * sum(sum(row["forced"]) for row in cell.rows) / max(1, commits), "budget": budget_use(cell),
    }  # fmt: skip
    oracle = reference_of(cell, cells)
    both = [] if oracle is None else pairs(cell, oracle)
    if both:  # cells of a sweep under way may share no sample yet
        mine = sum(row["nfe"] for row, _ in both)
        out |= {
            "closeness": sum(other["nfe"] for _, other in both) / mine,
            "lossless": sum(other["lossless"] for _, other in both) / mine,
            "same": 100 * sum(row["tokens"] == other["tokens"] for row, other in both) / len(both),
        }
    return out


def budget_use(cell: Cell) -> float | None:
    """Percent of the rule's budget that its forwards without forced commits use, on average."""
    shares = []
    for row in cell.rows:
        for bits, commits, forced in zip(row["bits"], row["commits"], row["forced"], strict=True):
            allowed = bits_bound(cell.config["sampler"], commits, width(cell, row))
            if allowed and commits and not forced:
                shares.append(bits / allowed)
    return 100 * sum(shares) / len(shares) if shares else None


def width(cell: Cell, row: Row) -> int:
    """The most positions that a forward may commit: a block."""
    length = cell.config["blocks"].get("block_length")
    return min(length, len(row["canvas"])) if length else len(row["canvas"])
