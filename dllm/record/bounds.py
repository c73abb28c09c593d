"""Limits of a decode: the fewest forwards that reproduce it, and the bits that it decides per forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any

from dllm.contract import Turn


@dataclass(frozen=True)
class OpenGuesses:
    """One forward's view of the open positions; it commits ``commit_positions`` to ``tokens``."""

    block: int  # number of the open block
    positions: list[int]  # the open ones, ascending
    argmax: list[int]  # the likeliest token at each
    confidence: list[float]  # the probability of that token
    commit_positions: list[int]  # positions that the turn committed
    tokens: list[int]  # what it committed there

    def ranking(self) -> list[tuple[int, int]]:
        """(position, token), the most confident first; ties to the lowest position."""
        order = sorted(range(len(self.positions)), key=lambda at: (-self.confidence[at], self.positions[at]))
        return [(self.positions[at], self.argmax[at]) for at in order]

    def commits(self) -> dict[int, int]:
        return dict(zip(self.commit_positions, self.tokens, strict=True))


@dataclass
class GuessRecorder:
    """An observer of one batch with one token per step."""

    requests: dict[int, list[OpenGuesses]] = field(default_factory=dict)  # by number, an entry for each forward

    def __call__(self, turn: Turn) -> None:
        view, step = turn.view, turn.step
        for row, number in enumerate(view.canvas.param_index.tolist()):
            if not bool(view.active[row]):
                continue
            open_, commit = view.open[row].nonzero()[:, 0], step.commit[row].nonzero()[:, 0]
            guess = OpenGuesses(
                int(view.blocks.index[row]),
                open_.tolist(),
                view.scores.token[row, open_].tolist(),
                view.scores.confidence[row, open_].tolist(),
                commit.tolist(),
                view.scores.token[row, commit].tolist(),
            )
            self.requests.setdefault(number, []).append(guess)


def jumps(guesses: Sequence[OpenGuesses]) -> list[int]:
    """J(t): how many steps from state t on the guesses of forward t alone would have made as the decode made them.

    The draft commits forward t's open positions most confident first, as many a step as the decode did, and ends with
    its block.
    """
    out = []
    for at, guess in enumerate(guesses):
        ranking, begin = guess.ranking(), 0
        steps = 0
        while at + steps < len(guesses) and guesses[at + steps].block == guess.block:
            real = guesses[at + steps].commits()
            if dict(ranking[begin : begin + len(real)]) != real:
                break
            begin, steps = begin + len(real), steps + 1
        out.append(max(1, steps))
    return out


def fewest(jump: Sequence[int], depth: int | None = None) -> int:
    """Least number of forwards that walk 0 .. len(jump), each to at most ``depth`` steps ahead of where it is.

    A shortest path by dynamic programming. The first forward only drafts; every later one verifies a jump and drafts
    the next, and the last jump needs none if it commits the last masks alone (a single step).
    """
    count = len(jump)
    if count == 0:
        return 0
    best = [0] * (count + 1)
    for at in range(count - 1, -1, -1):
        reach = min(jump[at], depth or count)
        free = 1 if at == count - 1 else 0
        best[at] = 1 - free + min(best[at + step] for step in range(1, reach + 1))
    return 1 + best[0]


def lossless_minimum(guesses: Sequence[OpenGuesses], depth: int | None = None) -> int:
    """Fewest forwards that reproduce this decode exactly by drafting and verifying (FreeDave's limit), each draft to at
    most ``depth`` steps ahead."""
    return fewest(jumps(guesses), depth)


def bits_bound(sampler: Mapping[str, Any], commits: int, width: int) -> float | None:
    """The most bits that a sampler lets one forward decide, from its configuration. None: it has no such bound.

    threshold t: each of ``width`` positions at most -log2 t. factor f: each of ``commits`` positions at most
    -log2(1 - f / (commits + 1)), with which their product passes the bound (in the manner of arXiv 2511.21103).
    """
    name = str(sampler["_target_"]).rpartition(".")[2]
    if name == "Confidence" and 0 < sampler["threshold"] < 1:
        return width * -log2(sampler["threshold"])
    if name == "Factor" and 0 < sampler["factor"] < commits + 1:
        return commits * -log2(1 - sampler["factor"] / (commits + 1))
    return None
