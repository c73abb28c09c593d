"""The commits of a trace that were never undone, and two log-probabilities of each of them.

own     under the model alone, at temperature 1, not the decode's: what most trainers of rollouts
        compare with
drawn   under the distribution that the token was drawn from: temperature, top_p, top_k, banned tokens and constraint as
        they were applied; exp(drawn) is how often this forward draws the token, so 0 where nothing is drawn
"""

from __future__ import annotations

from collections.abc import Callable
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
    own: float | None  # its log-probability under the model alone, nats
    drawn: float | None  # the same under what it was drawn from


def final_commits(trace: Trace) -> list[Commit]:
    """The commits that were never undone, in the order of the decode, within a forward the most confident first."""
    commits_at: dict[int, Commit] = {}
    for turn, (record, candidate) in enumerate(trace.path()):
        for position in record.remasked[candidate]:
            commits_at.pop(position, None)
        for commits in record.written(candidate):  # an edit takes the place of what it replaces
            rows = zip(commits.rows(), commits.log_probabilities(), strict=True)
            for (position, token, confidence, _, _), numbers in rows:
                commits_at[position] = Commit(turn, position, token, confidence or 0.0, *numbers)
        for position in (*record.filled[candidate], *record.rolled[candidate]):
            commits_at.pop(position, None)
    return sorted(commits_at.values(), key=lambda commit: (commit.turn, -commit.confidence, commit.position))


def at_commit(trace: Trace, read: Callable[[Commit], float | None]) -> LogProbs:
    """What ``read`` returns of the commit at each position of the answer."""
    values = {commit.position: read(commit) for commit in final_commits(trace)}
    return [values.get(position) for position in range(trace.length - trace.start)]
