"""What the ranks of a model tell each other beside tensors: signs of life, refusals, and what rank 0 alone decides.

Rank 0 has a connection to every other rank, a follower. No collective is used: one cannot tell a slow rank from a dead
one, and would spin, or time out, while followers wait for a request. A closed connection is a process that has died,
and one without a sign of life for ``timeout`` seconds is a process that hangs; either ends all ranks.

A message is a list in JSON: data that say what to do, and no code that could do it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TypeVar

from dllm.common.errors import Refusal, UserError, first_line
from dllm.common.terminal import complain

DIED = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on
PULSE = 1.0  # seconds between two signs of life
LATE = 10.0  # seconds without one after which a follower is late, if ``timeout`` is not shorter
PATIENCE = 3.0  # seconds in which rank 0 is to end over a refusal by itself; its main thread may hang in a collective
HEAD = struct.Struct("!Q")  # bytes of the message that follows
LONGEST_MESSAGE = 1 << 30  # bytes of a message: the finished rows of a run are one, of about 2 kB each
TOKEN_BYTES = 32  # by which rank 0 knows followers that it has not started
HELLO = 5.0  # seconds in which who connects must have shown it
GREETED = 64  # connections that are asked for it at once
LINK_POLL = 0.05  # seconds between two looks at who has come
Told = TypeVar("Told")


class KeyStore(Protocol):
    """What is used of a store of ``torch.distributed``."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...


@dataclass
class Link:
    """A connection to another rank. Any thread may send; one receives."""

    rank: int  # of the other end
    connection: socket.socket  # to it
    heard: float = field(default_factory=time.monotonic)  # when it last gave a sign of life, by ``time.monotonic``
    over: threading.Event = field(default_factory=threading.Event)  # it said that it is done
    lock: threading.Lock = field(default_factory=threading.Lock)  # of those that send

    def send(self, *message: Any) -> None:
        """message: what JSON can hold; tuples arrive as lists. Raises OSError where the other end is gone."""
        data = json.dumps(message).encode()
        with self.lock:
            self.connection.sendall(HEAD.pack(len(data)) + data)

    def receive(self) -> tuple[Any, ...]:
        """The next message. Raises OSError where the other end is gone, silent for the connection's timeout, or sends
        something else than a message."""
        (size,) = HEAD.unpack(self._bytes(HEAD.size))
        try:
            message = json.loads(self._bytes(size)) if size <= LONGEST_MESSAGE else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, list) or not message:
            raise ConnectionAbortedError(f"{size} bytes are no message")
        self.heard = time.monotonic()
        return tuple(message)

    def _bytes(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (more := self.connection.recv(count - len(data))):
                raise ConnectionResetError("the other end has closed")
            data += more
        return bytes(data)


class Links:
    """The connections of one rank. ``open_links`` makes them.

    Messages arrive in the order in which they were sent. on_loss: called, on a thread of its own, with the sentence
    that says why all ranks end; it returns the seconds that it wants before they do. before_end: called before this
    process ends at once.
    """

    def __init__(self, rank: int, size: int, timeout: float, links: list[Link]) -> None:
        self.rank, self.size, self.timeout, self.links = rank, size, timeout, links
        self.inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.verdict, self.closing, self.lock = "", False, threading.Lock()
        self.on_loss: Callable[[str], float] = lambda sentence: 0.0
        self.before_end: Callable[[], None] = lambda: None
        for link in links:
            link.connection.settimeout(timeout)
            threading.Thread(target=self._listen, args=[link], daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def late(self) -> list[int]:
        """The ranks that have given no sign of life for a while."""
        since = time.monotonic() - min(LATE, self.timeout / 2)
        return [link.rank for link in self.links if link.heard < since and not link.over.is_set()]

    def tell(self, *message: Any) -> None:
        """Send a message to all followers, or from a follower to rank 0. A rank that is gone is noticed elsewhere."""
        for link in self.links:
            with suppress(OSError):
                link.send(*message)

    def hear(self, seconds: float | None = None) -> tuple[Any, ...]:
        """The next message; at rank 0 it begins with the sender's rank. Waits without spinning. seconds: after which
        ``queue.Empty`` is raised (None: never)."""
        return self.inbox.get(timeout=seconds)

    def shared(self, make: Callable[[], Told]) -> Told:
        """What ``make`` returns at rank 0, which alone calls it, on every rank: what JSON can hold."""
        if not self.leads:
            value: Told = self.hear()[0]
            return value
        value = make()
        self.tell(value)
        return value

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank ends: all end with its exit code, and rank 0 alone says a follower's reason. A
        failed exchange has its reason in another rank; if that has died, this call does not return."""
        code, sentence = 2, str(error)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        elif not isinstance(error, UserError):
            code, sentence = 1, f"rank {self.rank} of {self.size} failed ({type(error).__name__}: {first_line(error)})."
            self._judged()
        self.closing = self.leads
        if self.leads:
            self.tell("end", code)
        elif isinstance(error, Exception):
            self.tell("refused", sentence, code)
            time.sleep(2 * PATIENCE)  # rank 0 ends this process

    def close(self) -> None:
        """Say that this rank is done. Rank 0 waits for its followers, whose end would else look like a death."""
        self.closing = True
        self.tell("bye")
        for link in self.links:
            if self.leads:
                link.over.wait(self.timeout)
            with suppress(OSError):
                link.connection.close()

    def _judged(self) -> None:
        """Wait until this process is ended over the death of another; returns where none has died."""
        time.sleep(PATIENCE + PULSE)
        while self.verdict:
            time.sleep(PULSE)

    def _beat(self) -> None:
        while not self.closing:
            self.tell("alive")
            time.sleep(min(PULSE, self.timeout / 4))

    def _listen(self, link: Link) -> None:
        try:
            while not link.over.is_set():
                self._take(link, link.receive())
        except OSError as error:
            if not self.closing:
                self._lost(link, isinstance(error, TimeoutError))

    def _take(self, link: Link, message: tuple[Any, ...]) -> None:
        match message:
            case ("alive",):
                pass
            case ("bye",):
                link.over.set()
            case ("end", code):
                self._exit(code)
            case ("refused", sentence, code):
                time.sleep(PATIENCE)
                if not self.closing:
                    self._end(sentence, code)
            case _:
                self.inbox.put(message if not self.leads else (link.rank, *message))

    def _lost(self, link: Link, silent: bool) -> None:
        """Another rank is gone: end this one."""
        with self.lock:
            if self.verdict:
                return
            how = f"has not answered for {self.timeout:g} s" if silent else "has died"
            self.verdict = f"rank {link.rank} of {self.size} {how}, so all ranks end. Give the same command again."
        time.sleep(self.on_loss(self.verdict))
        self._end(self.verdict, DIED)

    def _end(self, sentence: str, code: int) -> NoReturn:
        """End all ranks at once: the main thread may hang in an exchange, and NCCL's destructor, too."""
        if self.leads:
            self.tell("end", code)
        if self.rank <= 1:  # where rank 0 is gone, the next one speaks
            complain(f"\nError: {sentence}")  # below a progress bar
        self._exit(code)

    def _exit(self, code: int) -> NoReturn:
        self.before_end()
        os._exit(code)


def open_links(rank: int, size: int, timeout: float, store: KeyStore, local: bool, wait: float) -> Links:
    """Connect this rank to the others of its model, which were started by somebody else.

    store: where rank 0 leaves its address and a token: who reads it may connect. local: all ranks are on this machine.
    wait: seconds in which all must have come. Raises UserError where one does not.
    """
    with _coming(rank, size, wait):
        if rank:
            address, port, token = store.get("links").decode().split()
            connection = socket.create_connection((address, int(port)), wait)
            connection.sendall(bytes.fromhex(token) + HEAD.pack(rank))
            links = [Link(0, connection)]
        else:
            host = "127.0.0.1" if local else socket.gethostbyname(socket.gethostname())
            links = _followers(size, store, host, wait)
    for link in links:
        link.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Links(rank, size, timeout, links)


def links_over(connections: Sequence[socket.socket], rank: int, size: int, timeout: float, wait: float) -> Links:
    """The links of ranks that rank 0 has started, over connections that it has made in pairs: no other process has
    one, so nothing is asked. connections: of rank 0 to ranks 1, 2, ...; of a follower the one to rank 0. wait: seconds
    in which all must have come. Raises UserError where one does not."""
    links = [Link(0 if rank else other, connection) for other, connection in enumerate(connections, 1)]
    with _coming(rank, size, wait):
        for link in links:
            link.connection.settimeout(wait)
            if rank:
                link.send("alive")
            else:
                link.receive()
    return Links(rank, size, timeout, links)


@contextmanager
def _coming(rank: int, size: int, wait: float) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: of the store
        missed = "rank 0 did not come" if rank else "the other ranks did not come"
        raise Refusal(
            f"{{model.tp}}: {missed} within {wait:g} s ({error}). Start all of them at once.", [size]
        ) from None


def _followers(size: int, store: KeyStore, host: str, wait: float) -> list[Link]:
    """The connections of rank 0. A stranger that connects is sent away, and a silent one holds up no rank."""
    token, until, links = secrets.token_bytes(TOKEN_BYTES), time.monotonic() + wait, dict[int, Link]()
    greeters = ThreadPoolExecutor(GREETED)
    try:
        with socket.create_server((host, 0)) as listening:
            listening.settimeout(LINK_POLL)
            store.set("links", f"{host} {listening.getsockname()[1]} {token.hex()}")
            while len(links) < size - 1:
                if time.monotonic() > until:
                    raise TimeoutError("timed out")
                with suppress(TimeoutError):
                    greeters.submit(_greet, listening.accept()[0], token, size, links)
    finally:
        greeters.shutdown(wait=False, cancel_futures=True)
    return [links[rank] for rank in sorted(links)]


def _greet(connection: socket.socket, token: bytes, size: int, links: dict[int, Link]) -> None:
    """Add a connection that shows the token in time, by the rank that it names; close any other."""
    until, data = time.monotonic() + HELLO, b""
    with suppress(OSError):
        while (lacking := TOKEN_BYTES + HEAD.size - len(data)) and (rest := until - time.monotonic()) > 0:
            connection.settimeout(rest)
            if not (more := connection.recv(lacking)):
                break
            data += more
    if not lacking and compare_digest(data[:TOKEN_BYTES], token):
        (rank,) = HEAD.unpack(data[TOKEN_BYTES:])
        if 0 < rank < size:
            links.setdefault(rank, Link(rank, connection))
            return
    connection.close()


_CURRENT: list[Links] = []  # of the model that this process holds a part of


@contextmanager
def linked(links: Links) -> Iterator[Links]:
    """Run what follows as one rank among several."""
    _CURRENT.append(links)
    try:
        yield links
    except BaseException as error:
        links.fail(error)
        raise
    else:
        links.close()
    finally:
        _CURRENT.remove(links)


def current_links() -> Links | None:
    """Those of this process; None: it has no other ranks."""
    return _CURRENT[-1] if _CURRENT else None


def follows() -> bool:
    """Whether this process is a follower: it decodes what rank 0 decodes, and writes and prints nothing."""
    return bool(_CURRENT) and not _CURRENT[-1].leads


def from_first(make: Callable[[], Told]) -> Told:
    """What ``make`` returns where rank 0 calls it; the process itself, if it is alone. As ``Links.shared``."""
    return _CURRENT[-1].shared(make) if _CURRENT else make()
