"""What the rules with a fixed number of forwards share (LLaDA's schedule, arXiv 2502.09992, App. B.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_range
from dllm.contract import State, View
from dllm.contract.canvas import Canvas, Request
from dllm.contract.clash import USE_FIXED, Clash, Selection
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


def _block_count(c: Selection) -> int | None:
    """How many blocks an answer has, by its length."""
    count = c.blocks.count(Canvas.of([Request.answer([0], c.gen_length or 0, 0)], 0))
    return None if count is None else int(count[0])


def _clash(when: Callable[[Selection], Any], says: str, *rest: Any) -> Clash:
    """A row for a number of steps that is fixed, in an answer of known length."""
    return Clash(lambda c: c.part.steps is not None and c.gen_length is not None and when(c), says, *rest)


NO_STEPS = Set("sampler.steps", None)
# Steps must divide evenly over the blocks: the published loops assert the same.
_STEPS = (
    _clash(lambda c: c.blocks.fixed_length is not None and (c.gen_length or 0) % c.blocks.fixed_length
           and {"blocks.block_length": c.blocks.fixed_length},
           "{gen_length} must be a multiple of {blocks.block_length} if the number of steps is fixed.", [NO_STEPS],
           "Or change one of them."),
    _clash(lambda c: _block_count(c) is None,
           "{sampler.steps} cannot be split over blocks whose number is known only after decoding.",
           [NO_STEPS, USE_FIXED]),
    _clash(lambda c: c.part.steps < (count := _block_count(c)) and {"count": count},
           "{sampler.steps} is too few for {count:value} blocks.",
           [lambda c: Set("sampler.steps", _block_count(c))], "Or a multiple of it."),
    _clash(lambda c: c.part.steps % (count := _block_count(c)) and {"count": count},
           "{sampler.steps} does not divide evenly over the {count:value} blocks of {gen_length}.",
           [lambda c: Set("sampler.steps", c.part.steps - c.part.steps % (_block_count(c) or 1))],
           "Or another multiple of {count:value}."),
)  # fmt: skip


class Scheduled(Sampler):
    """Base of the rules that follow a fixed schedule. ``steps`` is the number of forwards for the whole answer. It is
    split evenly over the blocks, and each block's masks over the block's forwards. steps None: ``per_step`` positions
    per forward, and in a block's last one what is left.
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)
    clashes: ClassVar[tuple[Clash, ...]] = _STEPS

    def __init__(self, steps: int | None = None, per_step: int = 1) -> None:
        in_range("sampler.steps", steps, 1, advice="{null} is one token per step.")
        in_range("sampler.per_step", per_step, 1)
        if steps is not None and per_step != 1:
            raise Refusal(
                "{sampler.steps} and {sampler.per_step} say the same thing twice. Drop one.", [steps, per_step]
            )
        self.steps, self.per_step = steps, per_step
        # More forwards than masks: some of them commit nothing.
        self.traits = self.traits.but(patience=max(self.traits.patience, steps or 0))

    def turns(self, canvas: Canvas) -> Tensor | None:
        masks = canvas.undecided.sum(1)
        return -(-masks // self.per_step) if self.steps is None else torch.full_like(masks, self.steps)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """steps [B]: forwards of each block, its share of ``steps``; 0: ``block_steps`` counts them by the masks."""
        steps, count = torch.zeros_like(canvas.start), blocks.count(canvas)
        if self.steps is not None and count is not None:
            steps = (self.steps // count).clamp(min=1)
        return super().start(canvas, blocks) | {"steps": steps}

    def block_steps(self, view: View, state: State) -> Tensor:
        """Forwards in the schedule of the current block [B]."""
        return torch.where(state["steps"] > 0, state["steps"], -(-view.blocks.masks.clamp(min=1) // self.per_step))

    def quota(self, view: View, state: State, index: Tensor | None = None) -> Tensor:
        """How many positions the schedule commits in this forward [B]. Where ``steps`` are split, the first forwards of
        a block take one more (LLaDA's ``get_num_transfer_tokens``). The last one, and any after it, takes all that is
        open: a cache may have let fewer positions be committed than were due. index [B]: that of this forward in the
        schedule (None: ``view.block_step``).
        """
        masks, index = view.blocks.masks, view.block_step if index is None else index
        steps = self.block_steps(view, state)
        split = masks // steps + (index < masks % steps)
        return torch.where(index < steps - 1, torch.where(state["steps"] > 0, split, self.per_step), view.open.sum(1))
