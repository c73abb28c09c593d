"""Scores of alternatives of one or several tokens, all read in one forward.

Letters: a an alternative, a_i its tokens, a_<i those before, "goes on" the tokens that some alternative has there.

local     sum log [p(a_i | a_<i) / sum over c that goes on of p(c | a_<i)]   a distribution over the alternatives
chain     sum log p(a_i | a_<i)                                              the chain rule from left to right
marginal  sum log p(a_i | all masked)                                        one canvas; ignores what tokens share
pseudo    sum log p(a_i | the rest of a)                                     pseudo-likelihood (Besag 1975)

For alternatives of one token, all four are a softmax over their logits. local is the law of drawing from left to right
under a constraint to the alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log, prod

from dllm.scoring.decisions.reading import ReadCanvas, Reading, ReadQuery

Cells = tuple[int | None, ...]  # ids by column; None: masked
TokenIds = tuple[int, ...]
ESTIMATORS = ("local", "marginal", "chain", "pseudo")


@dataclass(frozen=True)
class Slot:
    """Where the alternatives may be."""

    head: Cells  # what is before it
    alternatives: tuple[TokenIds, ...]  # the tokens of each
    tail: Cells  # what is after it
    start: int  # column where the answer begins
    mask: int  # the mask's id
    width: int  # columns of the slot

    @property
    def columns(self) -> int:
        """The columns of each of its canvases."""
        return len(self.head) + self.width + len(self.tail)

    def canvas(self, first: Cells) -> ReadCanvas:
        """The canvas with the slot's ``first`` columns as given, the rest of it masked."""
        cells = (*self.head, *first, *[None] * (self.width - len(first)), *self.tail)
        masked = frozenset(at for at, cell in enumerate(cells) if cell is None)
        return ReadCanvas(tuple(self.mask if cell is None else cell for cell in cells), masked, self.start)

    def query(self, first: Cells, targets: Mapping[int, TokenIds]) -> ReadQuery:
        """What to read of that canvas: tokens by column of the slot."""
        return ReadQuery(self.canvas(first), tuple((len(self.head) + at, ids) for at, ids in targets.items()))


@dataclass(frozen=True)
class SlotScores:
    """What an estimator says of the alternatives, in their order."""

    scores: tuple[float, ...]  # softmax over them gives the probabilities
    logprobs: tuple[float, ...]  # unnormalised, over all texts of these lengths
    mass: tuple[float | None, ...]  # probability that any alternative is there, seen from each (None: not known)
    likeliest: tuple[bool, ...]  # whether at each of its steps the likeliest of all tokens goes on


@dataclass(frozen=True)
class Plan:
    """What to read, and what the readings say."""

    queries: list[ReadQuery]  # canvases, and what to read of each
    finish: Callable[[Sequence[Reading]], SlotScores]  # makes the scores of the readings, one for each query


@dataclass(frozen=True)
class AlternativesTrie:
    """Beginnings of alternatives as nodes, the empty one first. A node holds no beginning: of n tokens those have
    n * n / 2 in all, 1 GB of two alternatives of 9 kB."""

    onward: list[
        dict[int, int]
    ]  # of each node: tokens that go on, and the node that each leads to (-1: no more goes on)
    paths: list[list[int]]  # of each alternative: the node before each of its tokens
    places: list[tuple[int, int]]  # of each node: an alternative that passes it, and how many tokens come before

    @staticmethod
    def of(alternatives: Sequence[TokenIds]) -> AlternativesTrie:
        """The trie of distinct alternatives."""
        trie = AlternativesTrie([], [], [])
        for number, alternative in enumerate(alternatives):
            path, before = list[int](), (-1, -1)  # the node before, and the token that leads on from it
            for at, token in enumerate(alternative):
                node = trie.onward[before[0]][before[1]] if at else min(len(trie.onward) - 1, 0)
                if node < 0:
                    node = len(trie.onward)
                    trie.onward.append({})
                    trie.places.append((number, at))
                    if at:
                        trie.onward[before[0]][before[1]] = node
                trie.onward[node].setdefault(token, -1)
                path.append(node)
                before = node, token
            trie.paths.append(path)
        return trie


def canvases(slot: Slot, estimator: str) -> int:
    """How many canvases ``plan_by`` makes, without making them."""
    if estimator == "marginal":
        return 1
    paths = AlternativesTrie.of(slot.alternatives).paths
    if estimator != "pseudo":
        return len({node for path in paths for node in path})
    # lengths apart: others are masked
    backwards = AlternativesTrie.of([(len(ids), *ids[::-1]) for ids in slot.alternatives]).paths
    return len(
        {
            pair
            for ahead, behind in zip(paths, backwards, strict=True)
            for pair in zip(ahead, behind[:0:-1], strict=True)
        }
    )


def log_sum(values: Sequence[float]) -> float:
    """log of the sum of exp."""
    most = max(values)
    return most + log(fsum(exp(value - most) for value in values))


def softmax(values: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Probabilities of scores, divided by the temperature before."""
    logits = [value / temperature for value in values]
    most = max(logits)
    weights = [exp(value - most) for value in logits]
    total = fsum(weights)
    return [weight / total for weight in weights]


def plan_by(slot: Slot, estimator: str) -> Plan:
    """The plan of an estimator for one slot."""
    if estimator == "marginal":
        return _marginal(slot)
    return _pseudo(slot) if estimator == "pseudo" else _in_order(slot, local=estimator == "local")


def _in_order(slot: Slot, local: bool) -> Plan:
    """A row for each inner node of the trie."""
    trie = AlternativesTrie.of(slot.alternatives)
    ids = [tuple(tokens) for tokens in trie.onward]
    queries = [slot.query(slot.alternatives[n][:at], {at: ids[node]}) for node, (n, at) in enumerate(trie.places)]

    def finish(readings: Sequence[Reading]) -> SlotScores:
        read = [
            (dict(zip(tokens, reading.log_p[0], strict=True)), log_sum(reading.log_p[0]), reading.top[0])
            for tokens, reading in zip(ids, readings, strict=True)
        ]
        scores, chains, masses, likeliest = [], [], [], []
        for alternative, path in zip(slot.alternatives, trie.paths, strict=True):
            steps = [(*read[node], token) for node, token in zip(path, alternative, strict=True)]
            chains.append(fsum(values[token] for values, _, _, token in steps))
            # A step that all share costs nothing: 0, not what is left of rounding.
            scores.append(fsum(values[token] - total for values, total, _, token in steps if len(values) > 1))
            masses.append(min(1.0, prod(exp(total) for _, total, _, _ in steps)))
            likeliest.append(all(top in values for values, _, top, _ in steps))
        if local:
            return SlotScores(tuple(scores), tuple(chains), tuple(masses), tuple(likeliest))
        mass = min(1.0, fsum(map(exp, chains)))
        return SlotScores(tuple(chains), tuple(chains), (mass,) * len(chains), tuple(likeliest))

    return Plan(queries, finish)


def _marginal(slot: Slot) -> Plan:
    """One row, all masked."""
    longest = max(map(len, slot.alternatives))
    ids = {at: tuple(dict.fromkeys(a[at] for a in slot.alternatives if len(a) > at)) for at in range(longest)}

    def finish(readings: Sequence[Reading]) -> SlotScores:
        read = [dict(zip(ids[at], readings[0].log_p[at], strict=True)) for at in range(longest)]
        sums = tuple(fsum(read[at][token] for at, token in enumerate(a)) for a in slot.alternatives)
        likeliest = tuple(all(readings[0].top[at] in read[at] for at in range(len(a))) for a in slot.alternatives)
        return SlotScores(sums, sums, (min(1.0, fsum(map(exp, sums))),) * len(sums), likeliest)

    return Plan([slot.query((), ids)], finish)


def _pseudo(slot: Slot) -> Plan:
    """A row for each token of each alternative."""
    pairs = [(ids, at) for ids in slot.alternatives for at in range(len(ids))]
    queries = [slot.query((*ids[:at], None, *ids[at + 1 :]), {at: (ids[at],)}) for ids, at in pairs]

    def finish(readings: Sequence[Reading]) -> SlotScores:
        each = iter(readings)
        mine = [[next(each) for _ in alternative] for alternative in slot.alternatives]
        sums = tuple(fsum(read.log_p[0][0] for read in reads) for reads in mine)
        likeliest = tuple(
            all(read.top[0] == token for read, token in zip(reads, alternative, strict=True))
            for reads, alternative in zip(mine, slot.alternatives, strict=True)
        )
        return SlotScores(sums, sums, (None,) * len(sums), likeliest)

    return Plan(queries, finish)


def slots_by_length(slot: Slot, open_slot: Slot, estimator: str) -> list[Slot]:
    """A slot for each length, and where ``local`` weighs several, the open one."""
    lengths = sorted({len(alternative) for alternative in slot.alternatives})
    parts = [replace(slot, alternatives=tuple(a for a in slot.alternatives if len(a) == n), width=n) for n in lengths]
    return [*parts, open_slot] if estimator == "local" and len(lengths) > 1 else parts


def by_length(slot: Slot, open_slot: Slot, estimator: str) -> Plan:
    """A closed slot: text after it is given, so that every length has a canvas of its own. Sums are compared as they
    are. local is a distribution within a length, and ``open_slot``, where lengths compete through what ends them, says
    how likely each length is."""
    slots = slots_by_length(slot, open_slot, estimator)
    lengths = sorted({len(ids) for ids in slot.alternatives})
    weighs_lengths, plans = len(slots) > len(lengths), [plan_by(slot, estimator) for slot in slots]

    def finish(readings: Sequence[Reading]) -> SlotScores:
        each = iter(readings)
        scores = [plan.finish([next(each) for _ in plan.queries]) for plan in plans]
        if weighs_lengths:
            overall = scores.pop()
            scores = [
                replace(
                    part,
                    scores=tuple(
                        score
                        + log_sum([s for s, a in zip(overall.scores, slot.alternatives, strict=True) if len(a) == n])
                        for score in part.scores
                    ),
                )
                for part, n in zip(scores, lengths, strict=True)
            ]
        return _merge(slot, lengths, scores)

    return Plan([query for plan in plans for query in plan.queries], finish)


def _merge(slot: Slot, lengths: Sequence[int], scores: Sequence[SlotScores]) -> SlotScores:
    """Scores of several lengths in the order of the alternatives."""
    rows: dict[int, Iterator[tuple[float, float, float | None, bool]]] = {
        n: iter(list(zip(entry.scores, entry.logprobs, entry.mass, entry.likeliest, strict=True)))
        for n, entry in zip(lengths, scores, strict=True)
    }
    columns = tuple(zip(*(next(rows[len(ids)]) for ids in slot.alternatives), strict=True))
    return SlotScores(*columns)
