"""Where two decodes of one prompt part: the first forward and position that differ, and what each knew there.

Positions count from the answer's start, forwards from 1, as in ``Trace.to_frame`` and on the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from dllm.record.trace import Trace
from dllm.record.turns import TurnRecord


@dataclass(frozen=True)
class PositionState:
    """What one decode knew of a position in a forward, and what it did."""

    word: str  # the token that it committed there, else its last proposal; empty: it made none
    confidence: float | None  # its probability (None: not known); of a proposal to two digits
    entropy: float | None  # of the distribution, in nats (None: not measured, or nothing was committed)
    does: str  # ``commits``, ``is made to commit``, ``replaces``, ``takes back``, ``fills``, ``waits`` or ``has ended``

    def __str__(self) -> str:
        if not self.word and self.confidence is None:
            return self.does
        sure = "" if self.confidence is None else f" at p {self.confidence:.3g}"
        spread = "" if self.entropy is None else f", entropy {self.entropy:.3g} nats"
        return f"{self.does} {self.word!r}{sure}{spread}"


@dataclass(frozen=True)
class Parting:
    """The first place where two decodes differ."""

    forward: int  # its number, from 1
    position: int  # the first that differs after it, from the answer's start
    states: tuple[PositionState, PositionState]  # of either decode


def parting(first: Trace, second: Trace) -> Parting | None:
    """Where the traces of one prompt part (None: they are equal)."""
    before = [list(trace.answers()) for trace in (first, second)]
    for number in range(1, max(map(len, before))):
        after = [canvases[min(number, len(canvases) - 1)] for canvases in before]
        if after[0] != after[1]:
            at = next(
                (at for at, pair in enumerate(zip(*after, strict=False)) if pair[0] != pair[1]), min(map(len, after))
            )
            return Parting(number, at, (state_at(first, number, at), state_at(second, number, at)))
    return None


def state_at(trace: Trace, forward: int, position: int) -> PositionState:
    """What a decode knew of a position in a forward, by its number from 1."""
    path = trace.path()
    if forward > len(path):
        return PositionState("", None, None, "has ended")
    record, candidate = path[forward - 1]
    for edits, commits in enumerate(record.written(candidate)):
        for at, token, confidence, entropy, is_forced in commits.rows():
            if at == position:
                does = "replaces it by" if edits else "is made to commit" if is_forced else "commits"
                spread = None if isnan(entropy) else entropy
                return PositionState(trace.words.get(token, f"<{token}>"), confidence, spread, does)
    for does, places in (
        ("takes it back", record.remasked),
        ("fills it", record.filled),
        ("takes it back", record.rolled),
    ):
        if candidate < len(places) and position in places[candidate]:
            return PositionState("", None, None, does)
    guess = last_guess([record for record, _ in path[:forward]], position)
    if guess is None:
        return PositionState("", None, None, "waits")
    return PositionState(trace.words.get(guess[0], f"<{guess[0]}>"), guess[1] or None, None, "waits with")


def last_guess(records: Sequence[TurnRecord], position: int) -> tuple[int, float] | None:
    """The last proposal at a position, and its probability (0: not known); None: there is none."""
    for record in reversed(records):
        guesses = record.guesses
        for at, token, confidence in zip(guesses.positions, guesses.tokens, guesses.confidence, strict=True):
            if at == position:
                return token, confidence
    return None


def parting_of_rows(
    first: Sequence[int], second: Sequence[int], fixed: tuple[Sequence[int], Sequence[int]]
) -> tuple[int, int]:
    """The same from results alone: forward and position of the first difference of two canvases. fixed: the forward
    that fixed each of their positions, 0 where none did. Raises ValueError where nothing differs."""
    late = 1 << 30
    places = [
        (min(turn or late for turn in turns), at)
        for at, (tokens, turns) in enumerate(
            zip(zip(first, second, strict=False), zip(*fixed, strict=False), strict=False)
        )
        if tokens[0] != tokens[1] or turns[0] != turns[1]
    ]
    return min(places)
