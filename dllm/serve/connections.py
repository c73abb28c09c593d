"""uvicorn's connections with a patience: a header must come within a while, and who is silent yields to who speaks."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SPARE_FILES = 128  # open files of a process beside its connections


def patient_protocol(seconds: float, most: int) -> type[H11Protocol]:
    """A connection that is closed where the header of its next request has not come within that many ``seconds`` of its
    first byte, or of the connection itself. Of more than ``most``, the longest silent one is closed; where all speak,
    the newcomer is told 503."""

    class PatientProtocol(H11Protocol):
        watch: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._begin()
            if len(self.connections) > most:
                self._make_room()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.silent:
                self._end()
            elif self.watch is None:
                self._begin()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end()
            super().connection_lost(exc)

        @property
        def silent(self) -> bool:
            """Whether no request of it is under way."""
            return self.cycle is None or bool(self.cycle.response_complete)

        @property
        def is_closing(self) -> bool:
            return bool(self.transport.is_closing())

        def _begin(self) -> None:
            self.since = self.loop.time()
            self.watch = self.loop.call_later(seconds, self._close)

        def _end(self) -> None:
            if self.watch is not None:
                self.watch.cancel()
                self.watch = None

        def _close(self) -> None:
            self.watch = None
            if self.silent and not self.is_closing:
                self.transport.close()

        def _make_room(self) -> None:
            alive = [one for one in self.connections if isinstance(one, PatientProtocol) and not one.is_closing]
            silent = [one for one in alive if one.silent and one is not self]
            if len(alive) <= most:
                return
            if silent:
                min(silent, key=lambda one: one.since).transport.abort()
            else:
                self.limit_concurrency = 0  # uvicorn answers 503

    return PatientProtocol


def allow_files(connections: int) -> None:
    """Raise the process's own limit of open files to what that many connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
