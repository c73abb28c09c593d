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
class Loaded:
    """What has been read so far."""

    done: int  # bytes of the files
    total: int  # bytes of the files that the model needs
    part: str  # that was finished last: "layer 3 of 32", say


Watch = Callable[[Loaded], None]
_TOLD: list[Loaded] = []  # the last word on the model that this process loads


def latest() -> Loaded | None:
    """How far the model under way is. None: none is, or nothing was said yet."""
    return next(iter(_TOLD), None)


def unwatched(loaded: Loaded) -> None:
    """Show nothing."""


@contextmanager
def load_progress(name: str, doing: str = "Loading") -> Iterator[Watch]:
    """Tell people on stderr how far ``name`` is. Small models are there before anybody asks."""
    bar: tqdm[None] | None = None
    began = told = time.monotonic()

    def on_terminal(loaded: Loaded) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=loaded.total, unit="B", unit_scale=True, desc=visible(f"Loading {name}"), leave=False)
        bar.set_postfix_str(loaded.part, refresh=False)
        bar.update(loaded.done - bar.n)

    def in_log(loaded: Loaded) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < LINE_SECONDS and 0 < loaded.done < loaded.total:
            return
        told, share = now, loaded.done / loaded.total
        left = f", {(now - began) * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        complain(f"{doing} {name}: {loaded.done / 1e9:.1f} of {loaded.total / 1e9:.1f} GB, {loaded.part}{left}")

    tell = on_terminal if sys.stderr.isatty() else in_log

    def told_to_all(loaded: Loaded) -> None:
        _TOLD[:] = [loaded]
        if loaded.total >= WORTH_A_LINE:
            tell(loaded)

    try:
        yield told_to_all
    finally:
        _TOLD.clear()
        if bar is not None:
            bar.close()
