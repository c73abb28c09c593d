"""When a client that found the queue full should try again."""

from __future__ import annotations

import time
from collections import deque
from math import ceil

from dllm.serve.jobs import Stats

LONGEST_WAIT = 60  # seconds; OpenAI's clients take no longer ones
FIRST_GUESS = 0.1  # seconds that an answer takes, as long as none has ended
MOST_PROMISED = 4096  # clients that are told apart
SLACK = 1.25  # the queue must be empty by then, not about to be


class RetryTimes:
    """Gives each refused client a time of its own: after those that wait, and after those that were told to come back
    before. A crowd then returns one by one, not all at once to be refused again."""

    def __init__(self) -> None:
        self.promised: deque[float] = deque(maxlen=MOST_PROMISED)  # when clients come back, by ``time.monotonic``

    def next(self, figures: Stats) -> int:
        """Whole seconds, from 1 to ``LONGEST_WAIT``."""
        now = time.monotonic()
        self.promised = deque((until for until in self.promised if until > now), MOST_PROMISED)
        each = (figures.turn_seconds + FIRST_GUESS) / (figures.ended["done"] + 1)
        ahead = figures.waiting + figures.rows + len(self.promised)
        seconds = min(LONGEST_WAIT, max(1, ceil(ahead * each * SLACK)))
        self.promised.append(now + seconds)
        return seconds
