"""Ctrl-C, SIGTERM and SIGHUP as an orderly end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dllm.common.signals import Terminated
from dllm.common.terminal import complain


@contextmanager
def interruptible(resume_hint: Callable[[], str]) -> Iterator[None]:
    """When told to stop, print what is kept and how to go on (``resume_hint``), and exit with code 130 for Ctrl-C, 143
    for SIGTERM, 129 for SIGHUP."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        with suppress(OSError):  # the terminal may be what has gone
            complain(f"\nStopped. {resume_hint()}")
        raise SystemExit(stop.code if isinstance(stop, Terminated) else 130) from None
