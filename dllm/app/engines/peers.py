"""The other processes of ``engine=accelerate``: waiting for them, hearing why one of them stopped, noticing its death.

They exchange no tensors, so all of it goes over a store and no collective is ever begun. A collective cannot tell a
slow process from a dead one, and nothing interrupts it: NCCL's returns after its timeout, which would have to be longer
than the longest share, and gloo's ends with a traceback.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from dllm.common.errors import UserError
from dllm.common.links import DIED
from dllm.common.terminal import complain

if TYPE_CHECKING:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

BEAT = 5.0  # seconds between two signs of life
DEAD_AFTER = 45.0  # seconds without one
POLL = 0.1  # seconds between two looks of a process that waits
REFUSAL, REPLY = "refusal", "heard"  # keys of the store


class Peers:
    """All methods but the constructor are for the main thread. Signs of life come from a thread of their own."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.meetings = rank, ranks, 0
        self.refusal: str | None = None  # a sentence of another process, which has stopped over it
        self.store = _client()
        threading.Thread(target=self._watch, daemon=True).start()

    def meet(self) -> None:
        """Wait until every process has come here. Raises UserError with the sentence of one that stopped instead."""
        self.meetings += 1
        came, went = f"came/{self.meetings}", f"went/{self.meetings}"
        self.store.add(came, 1)
        self._wait_for(came, self.ranks)
        self.store.add(went, 1)
        if self.rank == 0:  # its end is the end of the store, where no torchrun keeps one
            self._wait_for(went, self.ranks)

    def say(self, key: str, text: str) -> None:
        """Leave a text for all, who find it at the latest when they have met."""
        self.store.set(key, text)

    def message(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others of a UserError, so that they stop over it too."""
        try:
            yield
        except UserError as error:
            if self.refusal is None:
                with suppress(RuntimeError):  # the store has gone with a process that died
                    self._tell(str(error))
            raise

    def _tell(self, sentence: str) -> None:
        self.refusal = sentence
        self.say(REFUSAL, sentence)
        until = time.monotonic() + 2 * BEAT
        while self.rank == 0 and self.store.add(REPLY, 0) < self.ranks - 1 and time.monotonic() < until:
            time.sleep(POLL)

    def _wait_for(self, key: str, count: int) -> None:
        try:
            while self.store.add(key, 0) < count:
                self._hear(self.store)
                if self.refusal is not None:
                    raise UserError(self.refusal)
                time.sleep(POLL)
        except RuntimeError:  # the store has gone
            _end("the first process", self.refusal)

    def _hear(self, store: PrefixStore) -> None:
        """Take note of another's refusal."""
        if self.refusal is None and store.check([REFUSAL]):
            self.refusal = store.get(REFUSAL).decode()
            store.add(REPLY, 1)

    def _watch(self) -> None:
        """Give signs of life, and end this process when another gives none."""
        counts, last_signs = dict.fromkeys(range(self.ranks), -1), dict.fromkeys(range(self.ranks), time.monotonic())
        store: PrefixStore | None = None
        while True:
            with suppress(RuntimeError):  # the store has gone: so have the signs of others
                store = store or _client()
                store.add(f"alive/{self.rank}", 1)
                self._hear(store)
                for other in range(self.ranks):
                    if (count := store.add(f"alive/{other}", 0)) != counts[other]:
                        counts[other], last_signs[other] = count, time.monotonic()
            silent = [
                str(other)
                for other in last_signs
                if other != self.rank and time.monotonic() - last_signs[other] > DEAD_AFTER
            ]
            if silent:
                _end(f"process {', '.join(silent)}", self.refusal)
            time.sleep(BEAT)


@cache  # every cell of a sweep has an engine of its own
def peers_of(rank: int, ranks: int) -> Peers:
    """The other processes of this one."""
    return Peers(rank, ranks)


def _client() -> PrefixStore:
    """A connection to the store by which the processes found each other. Each thread has its own, since a connection
    serves one request at a time."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    where = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    store = TCPStore(*where, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2 * BEAT))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives a restart
    return PrefixStore(f"dllm/{attempt}", store)


def _end(who: str, refusal: str | None) -> None:
    """End this process at once: its main thread may be anywhere."""
    died = f"{who} of engine=accelerate has died. Finished samples are kept: give the same command again."
    complain(f"\nError: {refusal or died}")  # below a progress bar
    os._exit(2 if refusal else DIED)
