"""SIGTERM and SIGHUP as an orderly end: what Slurm, Kubernetes, ``docker stop`` and a closed terminal send."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
TOGETHER = 1.0  # seconds
IMPORTING = "<frozen importlib._bootstrap>"  # the file that frames of an import name
AGAIN_SECONDS = 0.05  # after which a signal that came during an import is sent once more
IMPORT_SECONDS = 10.0  # for which imports are waited for: a program may itself be run by an import
SIGNALLED: list[tuple[int, float]] = []  # the first of these signals that came, and when, by ``time.monotonic``
_WAITING: list[int] = []  # the first signal, if it came during an import and is not raised yet
_SENT_AGAIN: list[int] = []  # what comes next is the first signal once more


class Terminated(SystemExit):
    """One of these signals has come. code: 128 and the signal's number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def obey_signals() -> None:
    """Have the first of these signals raise ``Terminated`` in the main thread, and a later one end the process at once.
    A closed terminal and a closed session send several: SIGHUP within ``TOGETHER`` of the first changes nothing. A
    signal that is ignored, as ``nohup`` has it, stays so. During an import the exception waits for the import's end:
    C++ that is being initialised may call Python where an exception ends the process by SIGABRT."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if not is_ignored(number):
                signal.signal(number, _end)


def raise_if_told() -> None:
    """Raise ``Terminated`` once more where a signal has come: code of others may have taken its exception for one of
    its own, or dropped it, as callbacks from C do."""
    if SIGNALLED:
        _WAITING.clear()
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
        _WAITING[:] = [number]
    elif _SENT_AGAIN:
        _SENT_AGAIN.clear()
    elif number != signal.SIGHUP or now > SIGNALLED[0][1] + TOGETHER:
        os._exit(128 + number)
    if not _WAITING:
        return
    first, since = SIGNALLED[0]
    if _is_importing(frame) and now < since + IMPORT_SECONDS:
        again = threading.Timer(AGAIN_SECONDS, _send_again, (first,))
        again.daemon = True
        again.start()
        return
    _WAITING.clear()
    raise Terminated(first)


def _send_again(number: int) -> None:
    if _WAITING:
        _SENT_AGAIN.append(number)
        signal.raise_signal(number)  # its handler runs in the main thread


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            return True
        frame = frame.f_back
    return False
