"""The commits of a trace that were never undone, and the log-probability that the model gave each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dllm.record.trace import Trace

# In nats, by position of the answer. None: no probability is known, or no forward committed the token.
LogProbs = list[float | None]


@dataclass(frozen=True)
class Commit:
    """A commit that was never undone."""

    turn: int  # that made it, from 0
    position: int  # relative to the answer's start
    token: int  # id that was committed
    confidence: float  # of the token, 0 where not known


def final_commits(trace: Trace) -> list[Commit]:
    """The commits that were never undone, in the order of the decode, within a forward the most confident first."""
    found: dict[int, Commit] = {}
    for turn, (record, candidate) in enumerate(trace.path()):
        for position in record.remasked[candidate]:
            found.pop(position, None)
        for commits in record.written(candidate):  # an edit takes the place of what it replaces
            for position, token, confidence, _, _ in commits.rows():
                found[position] = Commit(turn, position, token, confidence or 0.0)
        for position in (*record.filled[candidate], *record.rolled[candidate]):
            found.pop(position, None)
    return sorted(found.values(), key=lambda commit: (commit.turn, -commit.confidence, commit.position))


def at_commit(trace: Trace) -> LogProbs:
    """By position of the answer. With Dream's convention the probability is that of the tempered distribution."""
    values: LogProbs = [None] * (trace.length - trace.start)
    for commit in final_commits(trace):
        if commit.confidence > 0:
            values[commit.position] = math.log(commit.confidence)
    return values
