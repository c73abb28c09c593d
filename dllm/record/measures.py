"""Measures of result rows: score with its interval, tokens per forward and per second, latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, erf, pi, sin, sqrt, tan

from dllm.common.grouping import grouped
from dllm.record.results import ResultRow

# From this ratio of wall time to the decoding thread's CPU time on, a speed is doubtful. Measured on two cores with
# mini-llada and one thread: at most 1.01 in twelve decodes that have a core to themselves; 2.0, 2.9 and 4.9 with one,
# two and four busy neighbours, and the decode was slower by the same factors.
BUSY = 1.25

# By sub-task and name: a metric that is not a mean over answers, as a share (1 is shown as 100); None: not judged
Totals = Mapping[str, Mapping[str, float | None]]


def wilson(right: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a proportion, both ends in [0, 1] (Wilson 1927)."""
    share, square = right / count, z * z / count
    centre, half = share + square / 2, z * sqrt(share * (1 - share) / count + square / count / 4)
    return max(0.0, (centre - half) / (1 + square)), min(1.0, (centre + half) / (1 + square))


def wilson_of_items(groups: Sequence[Sequence[float]], z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of the mean of scores in [0, 1], where those of a group, the answers to one item, go together.

    Wilson's with as many independent answers as the variance of the mean says (Korn and Graubard 1998, Surv. Methodol.
    24): p (1 - p) over the variance between the m items (linearised, times m / (m - 1)), times their (t of n - 1 / t of
    m - 1)^2, since that variance is estimated from m items alone. That is at least one an item and at most all n
    answers. With one answer to each item it is Wilson's own. Items that are all right prove most: no other score's
    lower end is above theirs, and no upper end below that of items all wrong. In simulated sets of 16 and 100 items
    with 3 answers, from independent to equal ones, it holds the true mean in 92 to 97 %; Wilson's interval of all
    answers in 62 to 97 %.
    """
    count, right, items = sum(map(len, groups)), sum(map(sum, groups)), len(groups)
    share, effective = right / count, min(count, max(items, _independent(groups, z)))
    low, high = wilson(share * effective, effective, z)
    return min(low, wilson(items, items, z)[0]), max(high, wilson(0, items, z)[1])


def _independent(groups: Sequence[Sequence[float]], z: float) -> float:
    """Korn and Graubard's number of independent answers; 0 where the items do not tell it."""
    count, right, items = sum(map(len, groups)), sum(map(sum, groups)), len(groups)
    share = right / count
    if items < 2 or not 0 < share < 1:
        return 0.0
    apart = sum((sum(group) - share * len(group)) ** 2 for group in groups) / count**2 * items / (items - 1)
    factor = (quantile_of_t(count - 1, z) / quantile_of_t(items - 1, z)) ** 2
    return share * (1 - share) / apart * factor if apart > 0 else float(count)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of them lie, linear between neighbours; 0 for none."""
    ascending = sorted(values)
    if not ascending:
        return 0.0
    place = share * (len(ascending) - 1)
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])


def mean(values: Sequence[float]) -> float | None:
    """The mean; None for no values, since a missing score is not 0."""
    return sum(values) / len(values) if values else None


def sum_over_batches(rows: Sequence[ResultRow], name: str) -> float:
    """The sum over batches of a column that grows while a batch is decoded: each batch counts its largest value."""
    batches: dict[str, float] = {}
    for row in rows:
        batches[row["batch"]] = max(batches.get(row["batch"], 0.0), row[name])
    return sum(batches.values())


def doubt_of(rows: Sequence[ResultRow]) -> str:
    """Why the rows' speed is doubtful, in words; empty if it is not.

    On a CPU: the decoding thread had to wait for a core. On a GPU the host waits for the GPU, so its CPU time says
    nothing. Its speed is doubtful when the host has more processes than cores, since the GPU may then wait for work.
    Rows of older versions, which lack these columns, are not doubtful.
    """
    mine = [row for row in rows if row.get("device") == "cpu" and row.get("cpu_seconds")]
    cpu, wall = sum_over_batches(mine, "cpu_seconds"), sum_over_batches(mine, "seconds")
    if cpu and wall > BUSY * cpu:
        return f"wall time {wall / cpu:.1f} x CPU time"
    loads = [row["load"] for row in rows if row.get("device", "cpu") != "cpu"]
    if loads and sum(loads) > len(loads):
        return f"{sum(loads) / len(loads):.1f} processes a core of the host"
    return ""


def scores_of(rows: Sequence[ResultRow], name: str = "score") -> list[float]:
    """The values of one metric, without the rows that do not have it."""
    return [value for row in rows if (value := row.get("scores", {}).get(name)) is not None]


def scores_by_item(rows: Sequence[ResultRow]) -> list[list[float]]:
    """The scores of each item of each sub-task, without those that could not be judged. A row that names no item is
    one by itself."""
    scores_of_item: dict[tuple[str, str], list[float]] = {}
    for number, row in enumerate(rows):
        item = str(row.get("id", f"row {number}"))
        scores_of_item.setdefault((str(row.get("task")), item), []).extend(scores_of([row]))
    return [scores for scores in scores_of_item.values() if scores]


def are_shares(values: Sequence[float]) -> bool:
    """Whether all are in [0, 1], so that they have an interval. Other people's metrics may be of any size."""
    return all(0 <= value <= 1 for value in values)


def in_percent(values: Sequence[float]) -> float | None:
    """The mean in per cent; of values beyond 1, which are in per cent or of another unit, as it is; None for none."""
    average = mean(values)
    return average if average is None or any(abs(value) > 1 for value in values) else 100 * average


def scores_by_task(rows: Sequence[ResultRow], totals: Totals, name: str = "score") -> dict[str, float]:
    """One metric of each sub-task that has it, in per cent."""
    percents = {}
    for task, mine in by_task(rows).items():
        total = totals.get(task, {}).get(name)
        value = in_percent(scores_of(mine, name)) if total is None else 100 * total
        if value is not None:
            percents[task] = value
    return percents


def by_task(rows: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Rows of each sub-task, in the order in which they first appear."""
    return grouped((row["task"], row) for row in rows)


def score_over_tasks(rows: Sequence[ResultRow]) -> tuple[float | None, float | None, float | None]:
    """The mean over sub-tasks of their mean scores in [0, 1], and its 95 % interval; None where nothing was judged,
    or where scores are not shares.

    The interval is Wilson's for each sub-task, in which answers to one item go together, their variances added (Zou and
    Donner 2008).
    """
    groups = [items for mine in by_task(rows).values() if (items := scores_by_item(mine))]
    if not groups:
        return None, None, None
    if not all(map(are_shares, (scores for items in groups for scores in items))):
        return None, None, None
    means, below, above = [sum(map(sum, items)) / sum(map(len, items)) for items in groups], 0.0, 0.0
    for score, items in zip(means, groups, strict=True):
        low, high = wilson_of_items(items)
        below, above = below + (score - low) ** 2, above + (high - score) ** 2
    score, count = sum(means) / len(means), len(groups)
    return score, max(0.0, score - sqrt(below) / count), min(1.0, score + sqrt(above) / count)


@dataclass(frozen=True)
class Measures:
    """Sums and means over samples."""

    samples: int  # how many answers
    judged: int  # how many of them could be judged
    score: float | None  # mean in [0, 1], None where nothing could be judged
    low: float  # lower end of its 95 % interval
    high: float  # upper end of its 95 % interval
    tokens: int  # useful ones, before the end of the text
    forwards: int  # of the network, summed over answers
    query_tokens: int  # computed in these forwards, padding excluded, summed over answers
    seconds: float  # wall time of decoding
    p50: float  # median of the seconds from a sample's first turn to its last
    p95: float  # 95 % quantile of these
    warning: str = ""  # why the times are doubtful; empty if they are not
    computed_tokens: int = 0  # query tokens that the network ran, padding included
    idle: int = 0  # forwards in which a row waited; 0 for rows of older versions, which lack it

    @staticmethod
    def of(rows: Sequence[ResultRow]) -> Measures:
        scores, latency = scores_of(rows), [row["seconds"] - row.get("began", 0.0) for row in rows]
        low, high = wilson_of_items(scores_by_item(rows)) if scores and are_shares(scores) else (0.0, 1.0)
        return Measures(
            len(rows),
            len(scores),
            mean(scores),
            low,
            high,
            sum(row["useful_tokens"] for row in rows),
            sum(row["nfe"] for row in rows),
            sum(row["query_tokens"] for row in rows),
            sum_over_batches(rows, "seconds"),
            quantile(latency, 0.5),
            quantile(latency, 0.95),
            doubt_of(rows),
            sum(row.get("computed_tokens", 0) for row in rows),
            sum(row.get("idle_forwards", 0) for row in rows),
        )

    @property
    def tpf(self) -> float:
        """Useful tokens per forward."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def speed(self) -> float:
        """Useful tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def nfe(self) -> float:
        """Forwards per sample."""
        return self.forwards / self.samples if self.samples else 0.0


def share_within(t: float, freedom: int) -> float:
    """P(|T| < t) for a whole number of degrees of freedom, by its finite sum (Abramowitz and Stegun 26.7.3, 4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


@cache
def quantile_of_t(freedom: int, z: float = 1.96) -> float:
    """The t with as much between -t and t as the normal distribution has between -z and z. freedom: at least 1."""
    share, low, high = erf(z / sqrt(2)), 0.0, pi / 2
    for _ in range(60):  # halves the angle's range to less than a float's step
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(tan(middle) * sqrt(freedom), freedom) < share else (low, middle)
    return tan(low) * sqrt(freedom)
