"""Ctrl-C as an orderly end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dllm.common.terminal import complain


@contextmanager
def interruptible(resume_hint: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, print what is kept and how to go on (``resume_hint``), and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"\nStopped. {resume_hint()}")
        raise SystemExit(130) from None
