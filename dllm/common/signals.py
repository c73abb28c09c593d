"""SIGTERM and SIGHUP as an orderly end: what Slurm, Kubernetes, ``docker stop`` and a closed terminal send."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
TOGETHER = 1.0  # seconds
SIGNALLED: list[tuple[int, float]] = []  # the first of these signals that came, and when, by ``time.monotonic``


class Terminated(SystemExit):
    """One of these signals has come. code: 128 and the signal's number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def obey_signals() -> None:
    """Have the first of these signals raise ``Terminated`` in the main thread, and a later one end the process at once.
    A closed terminal and a closed session send several: SIGHUP within ``TOGETHER`` of the first changes nothing. A
    signal that is ignored, as ``nohup`` has it, stays so."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if not is_ignored(number):
                signal.signal(number, _end)


def raise_if_told() -> None:
    """Raise ``Terminated`` once more where a signal has come: code of others may have taken its exception for one of
    its own, or dropped it, as callbacks from C do."""
    if SIGNALLED:
        raise Terminated(SIGNALLED[0][0])


def work_is_done() -> None:
    """From now on Ctrl-C changes nothing, and the other signals end the process at once: nothing is left to be kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    SIGNALLED.append((0, 0.0))


def is_ignored(number: int) -> bool:
    """Whether the process was started with this signal ignored."""
    return signal.getsignal(number) is signal.SIG_IGN


def _end(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if not SIGNALLED:
        SIGNALLED.append((number, now))
        raise Terminated(number)
    if number != signal.SIGHUP or now > SIGNALLED[0][1] + TOGETHER:
        os._exit(128 + number)
