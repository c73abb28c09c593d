"""Events on their way from the decode thread to the event loop. No one waits for a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from dllm.serve.jobs import Done, Event, Failed, Progress


@dataclass
class Update:
    """What has come for one row since it was last asked for."""

    latest: Progress | None = None  # its newest state, which holds all that the ones before it held
    # turn and final prefix wherever that grew, so that a late reader learns what an early one would have known
    grown: list[tuple[int, int]] = field(default_factory=list)
    end: Done | Failed | None = None  # how it ended


class Mailbox:
    """One slot for each of ``count`` rows, and one reader on the running event loop. A slot is as large as its row's
    answer, however slow the reader is: newer states replace older ones."""

    def __init__(self, count: int) -> None:
        self._loop, self._ready, self._lock = asyncio.get_running_loop(), asyncio.Event(), Lock()
        self._slots = [Update() for _ in range(count)]
        self._final = [-1] * count

    def slot(self, row: int) -> Callable[[Event], None]:
        """Where the decode thread delivers the events of a row. It never waits."""
        return partial(self._put, row)

    def _put(self, row: int, event: Event) -> None:
        with self._lock:
            mail = self._slots[row]
            if isinstance(event, Progress):
                mail.latest = event
                if event.final > self._final[row]:
                    self._final[row] = event.final
                    mail.grown.append((event.turn, event.final))
            else:
                mail.end = event
        with suppress(RuntimeError):  # the event loop has gone, and with it the reader
            self._loop.call_soon_threadsafe(self._ready.set)

    async def take(self, until: float) -> list[tuple[int, Update]]:
        """Waits for mail, and empties the slots. until: of the loop's clock. Raises TimeoutError then."""
        async with asyncio.timeout_at(until):
            await self._ready.wait()
        self._ready.clear()
        with self._lock:
            found = [(row, mail) for row, mail in enumerate(self._slots) if mail.latest or mail.end]
            for row, _ in found:
                self._slots[row] = Update()
        return found
