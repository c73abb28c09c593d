"""How confidence varies over the answer in each forward: what AdaBlock (arXiv 2509.26432) says of it, measured.

AdaBlock sees three regions after the decoded text: a plateau of confidences near 1, a volatility band in which the
decode is at work, and a floor near 0. Its bounds, 0.8 and 0.1, are those that the paper's figures are described with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, sqrt
from statistics import fmean, quantiles

from dllm import Result
from dllm.contract import Need, Turn
from dllm.samplers.confidence import Confidence
from experiments.support import markdown

HIGH, LOW = 0.8, 0.1
DISTANCES = (0, 1, 2, 4, 8, 16, 32, inf)  # columns after the leftmost mask
REGIONS = ("plateau", "volatility band", "floor")


class Watched(Confidence):
    """The threshold rule, which also has the masks scored that are not open, so that an observer sees them."""

    def needs(self) -> tuple[Need, ...]:
        return (Need("answer"),)


@dataclass(frozen=True)
class Seen:
    """One forward of one row. confidence: of each mask, by its position in the answer. open: the positions that might
    be committed. forced: something was committed that the threshold does not allow. block: its number."""

    confidence: dict[int, float]
    open: set[int]
    forced: bool
    block: int = 0

    def is_late(self, threshold: float, length: int) -> bool:
        """A mask of a text of ``length`` positions reaches the threshold, but is not open: it waits for its block."""
        return any(value >= threshold and at < length and at not in self.open for at, value in self.confidence.items())


@dataclass
class BandRecorder:
    """An observer of a decode with ``Watched``. requests: by number, an entry for each forward."""

    requests: dict[int, list[Seen]] = field(default_factory=dict)

    def __call__(self, turn: Turn) -> None:
        view, accepted = turn.view, turn.step.accepted
        assert accepted is not None
        forced = (turn.step.commit & ~accepted).any(1)
        for row, number in enumerate(view.canvas.param_index.tolist()):
            if not bool(view.active[row]):
                continue
            start = int(view.canvas.start[row])
            columns = (view.canvas.undecided[row] & view.scores.scored[row]).nonzero()[:, 0]
            values = view.scores.confidence[row, columns].tolist()
            open_ = (view.open[row].nonzero()[:, 0] - start).tolist()
            masks, block = dict(zip((columns - start).tolist(), values, strict=True)), int(view.blocks.index[row])
            self.requests.setdefault(number, []).append(Seen(masks, set(open_), bool(forced[row]), block))


def text_length(row: Result) -> int:
    """Positions of the answer's text, its end included."""
    return min(row.useful_tokens + 1, len(row.canvas))


def widths(seen: Seen, length: int) -> tuple[int, int, int] | None:
    """Columns of plateau, volatility band and floor, which are in this order from the leftmost mask to the text's end;
    None where no mask of the text is left.

    The plateau ends at the first mask below ``HIGH``; the floor begins after the last one of ``LOW`` or more. Columns
    between masks that are decided count as confident ones.
    """
    inside = [at for at in seen.confidence if at < length]
    if not inside:
        return None
    first = min(inside)
    begin = min((at for at in inside if seen.confidence[at] < HIGH), default=length)
    end = 1 + max((at for at in range(begin, length) if seen.confidence.get(at, 1.0) >= LOW), default=begin - 1)
    return begin - first, end - begin, length - end


def regions(seen: Sequence[Sequence[Seen]], rows: Sequence[Result]) -> str:
    """A table of the regions' widths. seen: the forwards of each row."""
    by_row = [[found for one in forwards if (found := widths(one, text_length(row)))]
              for forwards, row in zip(seen, rows, strict=True)]  # fmt: skip
    lines = []
    for at, name in enumerate(REGIONS):
        every = [found[at] for forwards in by_row for found in forwards]
        tenths = quantiles(every, n=10, method="inclusive")
        mean = pooled([[found[at] for found in forwards] for forwards in by_row], 1)
        absent = fmean(float(value == 0) for value in every)
        spread = f"{tenths[4]:.0f} ({tenths[0]:.0f} to {tenths[8]:.0f})"
        lines.append([name, mean, spread, f"{100 * absent:.0f} %"])
    heads = ("region", "columns, mean", "median, 80 % of the forwards", "forwards without it")
    return markdown.table(heads, lines)


def by_distance(seen: Sequence[Sequence[Seen]], rows: Sequence[Result]) -> str:
    """A table of the confidences of masks by how far they are after the leftmost one; those after the text apart."""
    lines = []
    for low, high in pairwise(DISTANCES):
        last = "" if high == low + 1 else " and more" if high == inf else f" to {high - 1}"
        lines.append(shares(f"{low}{last}", confidences(seen, rows, (low, high), inside=True)))
    lines.append(shares("after the text", confidences(seen, rows, (0, inf), inside=False)))
    heads = ("columns after the leftmost mask", "masks", "confidence", f"{HIGH} and more", f"{LOW} to {HIGH}",
             f"below {LOW}")  # fmt: skip
    return markdown.table(heads, [line for line in lines if line[1] != "0"])


def shares(name: str, by_row: Sequence[Sequence[float]]) -> list[str]:
    """The cells of some masks: their number, mean confidence, and how many are of each region's height."""
    values = [one for found in by_row for one in found]
    if not values:
        return [name, "0", "", "", "", ""]
    high, low = (fmean(map(float, found)) for found in ([v >= HIGH for v in values], [v < LOW for v in values]))
    parts = [f"{100 * share:.0f} %" for share in (high, 1 - high - low, low)]
    return [name, str(len(values)), pooled(by_row, 2), *parts]


def pooled(by_row: Sequence[Sequence[float]], digits: int) -> str:
    """Mean of all values and its 95 % interval, in which those of one row count together (delta method of a ratio)."""
    sums, counts = [sum(values) for values in by_row], [len(values) for values in by_row]
    mean = sum(sums) / sum(counts)
    rest = [total - mean * count for total, count in zip(sums, counts, strict=True)]
    half = 1.96 * sqrt(sum(value**2 for value in rest) * len(rest) / max(1, len(rest) - 1)) / sum(counts)
    return f"{mean:.{digits}f} ±{half:.{digits}f}"


def confidences(
    seen: Sequence[Sequence[Seen]], rows: Sequence[Result], distance: tuple[float, float], inside: bool
) -> list[list[float]]:
    """For each row, those of the masks ``inside`` or after its text that are this many columns after the leftmost one,
    in all forwards."""
    return [
        [value for one in forwards for at, value in one.confidence.items()
         if (at < text_length(row)) == inside and distance[0] <= at - min(one.confidence) < distance[1]]
        for forwards, row in zip(seen, rows, strict=True)
    ]  # fmt: skip
