"""The process around the application: its socket, its signals, and its end."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dllm.common.errors import Refusal
from dllm.common.signals import ENDING, is_ignored
from dllm.common.terminal import complain, say
from dllm.serve.engine.scheduler import Scheduler
from dllm.serve.http.log import log
from dllm.serve.http.settings import ServeSettings

RANK_LOST_SECONDS = 30.0  # seconds in which a process ends whose other rank is gone
DEAD = 70  # EX_SOFTWARE: a supervisor starts the process again
KEEP_ALIVE = 75  # seconds; above the 60 for which nginx keeps its own connections
SPARE = 5  # seconds after the grace in which the last events are sent


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket on that address, before anything slow is done. Raises UserError where none is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except socket.gaierror:
        raise Refusal(
            "{task.host:quoted} is not an address. Write 127.0.0.1, or one of this machine's.", [host]
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            way_out = "Stop what listens there, or choose another: task.port=NUMBER (0 takes a free one)."
            raise Refusal(f"{{task.port}} is in use on {host}. {way_out}", [port]) from None
        reason = error.strerror or "refused"
        raise Refusal(
            f"{{task.host}} with {{task.port}} cannot be used ({reason}). Choose others.", [host, port]
        ) from None
    return sock


class DrainingServer(uvicorn.Server):
    """A signal closes the socket, and rows under way have the grace to finish; a second one ends the grace, a third one
    the process. A decode thread that died ends it, too: every reply would be an error."""

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler, grace: float, greeting: str = "") -> None:
        super().__init__(config)
        self.scheduler, self.grace, self.greeting, self.dead = scheduler, grace, greeting, False
        self.signals = 0  # that came

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.greeting:
            say(self.greeting, flush=True)
        log.info("the server takes requests")

    async def on_tick(self, counter: int) -> bool:
        self.dead = self.dead or self.scheduler.state == "failed"
        return await super().on_tick(counter) or self.dead

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        figures = self.scheduler.figures()
        log.info(
            "the server stops: %d requests are under way, %d answers are decoded, for at most %g s; %d that wait are "
            "told to try again",
            len(self.server_state.tasks),
            figures.rows,
            self.grace,
            figures.waiting,
        )
        self.scheduler.close(self.grace, waiting=False)  # returns at once
        hurrying = asyncio.create_task(self._hurry())
        await super().shutdown(sockets)
        while self.scheduler.state == "closing" and not self.force_exit:
            await asyncio.sleep(0.02)
        hurrying.cancel()
        log.info("the server has stopped")

    async def _hurry(self) -> None:
        """Ends the grace at the second signal: whose answer is under way gets an error, not a closed connection."""
        while self.signals < 2:
            await asyncio.sleep(0.05)
        self.scheduler.close(0)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but what was obeyed is not raised again: a server that has drained ends with exit code 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signs = [sign for sign in (signal.SIGINT, *ENDING) if not is_ignored(sign)]
        before = {sign: signal.signal(sign, self.handle_exit) for sign in signs}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals += 1
        self.should_exit, self.force_exit = True, self.signals > 2


def server_of(app: ASGIApp, scheduler: Scheduler, settings: ServeSettings, greeting: str = "") -> DrainingServer:
    """uvicorn around the application, which logs only what goes wrong."""
    allow_files(settings.max_connections)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        http=patient_protocol(settings.read_timeout, settings.max_connections),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.drain_seconds) + SPARE,
    )
    return DrainingServer(config, scheduler, settings.drain_seconds, greeting)


def serve_until_signal(server: DrainingServer, listening: socket.socket) -> None:
    """Serve until a signal. Exits with ``DEAD`` if the decode thread has died."""
    server.run(sockets=[listening])
    if server.dead:
        if server.scheduler.lead is not None and server.scheduler.lead.links.verdict:
            time.sleep(RANK_LOST_SECONDS)  # a rank is gone: its links say so, and end the process
        complain("Error: the decode thread has died; the log says why. Start the server again.")
        raise SystemExit(DEAD)


SPARE_FILES = 128  # open files of a process beside its connections


def patient_protocol(seconds: float, most: int) -> type[H11Protocol]:
    """A connection that is closed where the header of its next request has not come within that many ``seconds`` of its
    first byte, or of the connection itself. Of more than ``most``, the longest silent one is closed; where all speak,
    the newcomer gets 503."""

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
            alive = [
                connection
                for connection in self.connections
                if isinstance(connection, PatientProtocol) and not connection.is_closing
            ]
            silent = [connection for connection in alive if connection.silent and connection is not self]
            if len(alive) <= most:
                return
            if silent:
                min(silent, key=lambda connection: connection.since).transport.abort()
            else:
                self.limit_concurrency = 0  # uvicorn answers 503

    return PatientProtocol


def allow_files(connections: int) -> None:
    """Raise the process's own limit of open files to what that many connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = connections + SPARE_FILES
    files = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
