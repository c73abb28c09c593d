"""What the replicas of ``engine=ray`` say of themselves, in one place: how far each has loaded, its page of metrics,
and lines of its log."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dllm.common.terminal import complain, visible
from dllm.serve.http.log import formatter
from dllm.serve.http.prometheus import counters_of, sum_of_pages

TELLS = 0.5  # seconds between two words of a replica
SILENT = 30.0  # seconds after which a replica counts as gone; one on a busy machine is late by a few
MOST_LINES = 10_000  # that wait to be printed; the oldest go
MOST_PAGES = 64  # of replicas, those that are gone included, before the oldest are added up


class Word(NamedTuple):
    """The last that a replica said."""

    when: float  # seconds of the board's clock
    state: dict[str, Any]  # as ``/health`` says it; ``failed`` has a sentence beside it
    page: bytes  # of its metrics; empty while it loads


class Board:
    """An actor of Ray that every replica tells its state, and the driver and ``/metrics`` ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.lines, self.past_counters = clock, deque[str](maxlen=MOST_LINES), b""
        self.words: dict[str, Word] = {}

    def tell(self, name: str, state: dict[str, Any], page: bytes, lines: list[str]) -> None:
        """A replica's state, its page and the lines of its log since the last time."""
        self.words.pop(name, None)  # the dictionary is in the order of last words
        self.words[name] = Word(self.clock(), state, page)
        self.lines.extend(lines)
        while len(self.words) > MOST_PAGES:
            oldest = self.words.pop(next(iter(self.words)))
            self.past_counters = counters_of(sum_of_pages([self.past_counters, oldest.page]))

    def states(self) -> list[dict[str, Any]]:
        """The states of all replicas that ever said one, the latest last."""
        return [word.state for word in self.words.values()]

    def serves(self) -> bool:
        """Whether a replica takes requests."""
        return any(word.state["status"] == "ready" for word in self._live_words())

    def take_lines(self) -> list[str]:
        """The lines that came since the last call."""
        lines = list(self.lines)
        self.lines.clear()
        return lines

    def page(self, name: str, local_page: bytes) -> bytes:
        """The metrics of all replicas, with ``local_page`` for the one called ``name``. Counters of replicas that are
        gone still count, so that no sum ever falls."""
        live_ids = {id(word) for word in self._live_words()}
        pages = [
            word.page if id(word) in live_ids else counters_of(word.page)
            for other, word in self.words.items()
            if other != name
        ]
        return sum_of_pages([self.past_counters, local_page, *pages])

    def _live_words(self) -> list[Word]:
        return [word for word in self.words.values() if self.clock() - word.when < SILENT]


class Teller(logging.Handler):
    """In a replica: tells the board again and again, and collects the lines of the log for it. word: state and page."""

    def __init__(self, board: Any, form: str, word: Callable[[], tuple[dict[str, Any], bytes]]) -> None:
        super().__init__()
        self.setFormatter(formatter(form))
        self.board, self.word, self.replica_id = board, word, uuid.uuid4().hex
        self.lines = deque[str](maxlen=MOST_LINES)
        logging.getLogger().addHandler(self)
        threading.Thread(target=self._keep_telling, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(visible(self.format(record)))

    def tell(self) -> None:
        lines = [self.lines.popleft() for _ in range(len(self.lines))]
        self._ask(self.board.tell.remote(self.replica_id, *self.word(), lines))

    def page(self, local_page: bytes) -> bytes:
        """The metrics of all replicas; ``local_page`` where the board is gone."""
        return self._ask(self.board.page.remote(self.replica_id, local_page)) or local_page

    def _ask(self, reference: Any) -> Any:
        """What the board answers; None where it is gone, as its driver is."""
        import ray

        try:
            return ray.get(reference, timeout=5)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return None

    def _keep_telling(self) -> None:
        while True:
            self.tell()
            time.sleep(TELLS)


def print_lines(board: Any, ended: threading.Event) -> None:
    """Print the log of all replicas on standard error until ``ended``, and what is left then."""
    import ray

    over = False
    while not over:
        over = ended.wait(TELLS)
        try:
            for line in ray.get(board.take_lines.remote()):
                complain(line)
        except ray.exceptions.RayError:
            return
