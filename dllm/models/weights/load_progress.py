"""How far the loading of a large model is: a bar in a terminal, lines in a log, a share for a server's ``/health``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm

from dllm.common.terminal import complain, visible

WORTH_A_LINE = 1 << 30  # bytes of weights from which loading is worth a line
LINE_SECONDS = 10.0  # between two lines of a log


@dataclass(frozen=True)
class LoadProgress:
    """What has been read so far."""

    count: int  # bytes of the files
    total: int  # bytes of the files that the model needs
    part: str  # that was finished last: "layer 3 of 32", say


Watch = Callable[[LoadProgress], None]
_LATEST: list[LoadProgress] = []  # of the model that this process loads


def latest() -> LoadProgress | None:
    """How far the model under way is. None: none is, or nothing was said yet."""
    return next(iter(_LATEST), None)


def unwatched(progress: LoadProgress) -> None:
    """Show nothing."""


@contextmanager
def load_progress(name: str, doing: str = "Loading") -> Iterator[Watch]:
    """Tell people on stderr how far ``name`` is. Small models are there before anybody asks."""
    bar: tqdm[None] | None = None
    began = last = time.monotonic()

    def on_terminal(progress: LoadProgress) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=progress.total, unit="B", unit_scale=True, desc=visible(f"Loading {name}"), leave=False)
        bar.set_postfix_str(progress.part, refresh=False)
        bar.update(progress.count - bar.n)

    def in_log(progress: LoadProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_SECONDS and 0 < progress.count < progress.total:
            return
        last, share = now, progress.count / progress.total
        rest = f", {(now - began) * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        complain(f"{doing} {name}: {progress.count / 1e9:.1f} of {progress.total / 1e9:.1f} GB, {progress.part}{rest}")

    tell = on_terminal if sys.stderr.isatty() else in_log

    def report(progress: LoadProgress) -> None:
        _LATEST[:] = [progress]
        if progress.total >= WORTH_A_LINE:
            tell(progress)

    try:
        yield report
    finally:
        _LATEST.clear()
        if bar is not None:
            bar.close()
