"""What is known before any weights are read: lengths and the chosen parts. Parts check themselves against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from dllm.errors import Unfit, UserError, name_of, nearest
from dllm.kernels import row_statistics

if TYPE_CHECKING:
    from dllm.blocks.base import Blocks
    from dllm.cache.base import Cache
    from dllm.eos.base import EndOfText
    from dllm.models.config import ModelConfig
    from dllm.samplers.base import Sampler
    from dllm.scores import Need, Sampling

P = TypeVar("P")
STATISTICS = (*row_statistics.ROW_STATISTICS, "current", "shadow")  # see ``dllm.scores.Scores``


@dataclass(frozen=True)
class Setting:
    """gen_length None: infilling, the number of masks shows only with the prompts. ids_of: plain token ids of a text;
    None where there is no tokenizer."""

    model: ModelConfig
    blocks: Blocks
    gen_length: int | None
    sampling: Sampling | None = None
    name: str = ""
    ids_of: Callable[[str], list[int]] | None = None

    @property
    def block_length(self) -> int | None:
        """The fixed block length, None where blocks differ."""
        return getattr(self.blocks, "block_length", None)

    def require_steps(self, name: str, steps: int | None) -> None:
        """A fixed schedule must divide evenly over the blocks (the published loops assert the same)."""
        if steps is None or self.gen_length is None:
            return
        count = self._block_count()
        if count is None:
            raise UserError(
                f"{name}={steps} cannot be split over blocks whose number shows only while decoding. "
                f"Use {name}=null (one token per step) or blocks=fixed."
            )
        if steps < count:
            raise UserError(f"{name}={steps} is less than the {count} blocks, each of which takes a forward at least.")
        if steps % count:
            raise UserError(
                f"{name}={steps} does not divide evenly over {count} blocks (gen_length={self.gen_length}, "
                f"block_length={self.block_length}). Use a multiple of {count}."
            )

    def _block_count(self) -> int | None:
        from dllm.canvas import Canvas, Request

        length = self.gen_length or 0
        if self.block_length is not None and length % self.block_length:
            raise UserError(
                f"gen_length={length} is not a multiple of blocks.block_length={self.block_length}, which a fixed "
                "number of steps needs. Change one of them, or leave the steps null."
            )
        count = self.blocks.count(Canvas.of([Request.answer([0], length, 0)], 0))
        return None if count is None else int(count[0])


def but(part: P, **changes: Any) -> P:
    """A part like this one with other attributes. A part itself never changes: other decodes may be using it."""
    new = copy(part)
    vars(new).update(changes)
    return new


def validate(setting: Setting, sampler: Sampler, policy: Cache, eos: EndOfText) -> Sampler:
    """Refuse, before any weights are read, what cannot work: UserError with the reason and the way out. Returns the
    sampler bound to the setting."""
    if setting.gen_length is not None and setting.gen_length < 1:
        raise UserError(f"gen_length={setting.gen_length} must be at least 1.")
    if setting.gen_length is not None and setting.gen_length >= setting.model.max_length:
        raise UserError(
            f"gen_length={setting.gen_length} leaves no room for a prompt: the model's limit is "
            f"{setting.model.max_length} tokens."
        )
    sampler = sampler.bound(setting)
    sampler.check(setting)
    if setting.sampling is not None and setting.sampling.eos_last and not sampler.by_confidence:
        raise UserError(
            "sampling.eos_last=true sets end-of-text proposals last by their confidence, and "
            f"sampler={name_of(sampler)} as it is set does not go by that alone. Set eos_last to false, "
            "or use sampler=confidence, localleap or static."
        )
    setting.blocks.check(setting, sampler)
    needs = (*sampler.needs(), *setting.blocks.needs(), *eos.needs())
    for name in sorted({name for need in needs for name in need.statistics} - set(STATISTICS)):
        raise UserError(
            f"Need(statistics=...) of a part names {name!r}, and a forward can be asked for {', '.join(STATISTICS)}; "
            f"logits=True gives the rest.{nearest(name, STATISTICS)}"
        )
    try:
        policy.check(setting, sampler, needs)
    except Unfit as error:
        raise UserError(f"{error} The nearest that works is cache={working(setting, sampler, needs)}.") from None
    return sampler


# Nearest first for whoever wanted a cache: the block-wise ones, which most samplers were published with.
BY_REUSE = ("finished", "dual", "prefix", "elastic", "window", "dkv", "recap")


def working(setting: Setting, sampler: Sampler, needs: Sequence[Need]) -> str:
    """The first cache, at its defaults, that serves these parts."""
    for name in BY_REUSE:
        with suppress(UserError):
            _at_defaults(name).check(setting, sampler, needs)
            return name
    return "none"


@cache  # the configuration of each takes 40 ms to compose
def _at_defaults(name: str) -> Cache:
    from dllm.compose.parts import part

    return part("cache", name)
