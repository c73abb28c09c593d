"""SIGTERM and SIGHUP as an orderly end: what Slurm, Kubernetes, ``docker stop`` and a closed terminal send."""

from __future__ import annotations

import signal
import threading
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(SystemExit):
    """One of these signals has come. code: 128 and the signal's number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def obey_signals() -> None:
    """Have the first of these signals raise ``Terminated`` in the main thread; those that follow it change nothing, as
    a closed terminal sends several. A signal that is ignored, as ``nohup`` has it, stays so."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if not is_ignored(number):
                signal.signal(number, _end)


def is_ignored(number: int) -> bool:
    """Whether the process was started with this signal ignored."""
    return signal.getsignal(number) is signal.SIG_IGN


def _end(number: int, frame: FrameType | None) -> None:
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)
