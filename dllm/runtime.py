"""How turns are run: ``runtime=eager | static``. Both give the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

from dllm.cache.base import Cache, name_of
from dllm.errors import UserError, nearest

RUNTIMES = ("eager", "static")


@dataclass(frozen=True)
class Runtime:
    """eager: every shape is exact, which takes a few copies from the device in every turn (free on a CPU). static:
    shapes are bounds that the host knows, so a turn asks the device for nothing, and the host looks only every
    ``check_every`` turns whether blocks are full.

    Turns after a block is full and before the host looks are idle: they cost a forward each and commit nothing.
    """

    name: str = "eager"
    check_every: int = 1

    def __post_init__(self) -> None:
        if self.name not in RUNTIMES:
            hint = nearest(str(self.name), RUNTIMES)
            raise UserError(f"runtime={self.name!r} must be one of {', '.join(RUNTIMES)}.{hint}")
        if self.check_every < 1:
            raise UserError(f"check_every={self.check_every} must be at least 1.")
        if self.name == "eager" and self.check_every > 1:
            raise UserError(f"check_every={self.check_every} needs runtime=static: eager looks every turn.")

    @property
    def every(self) -> int | None:
        """For the loop: None for exact shapes."""
        return None if self.name == "eager" else self.check_every

    def check(self, cache: Cache) -> None:
        """Refuse, with UserError, a cache whose shapes change from turn to turn."""
        if self.name != "eager" and not cache.static:
            raise UserError(
                f"runtime={self.name} needs shapes that do not change, and cache={name_of(cache)} computes other "
                "rows every turn. Use runtime=eager, or cache=none, prefix, dual or window."
            )
