"""Follow a fixed schedule, and remask unsure tokens near a block's end (ReMDM's loop, arXiv 2503.00307)."""

from __future__ import annotations

import torch

from dllm.canvas import Canvas
from dllm.common.ranking import top
from dllm.contract import State, Step, View
from dllm.errors import UserError, in_range
from dllm.samplers.scheduled import Scheduled
from dllm.setting import Setting
from dllm.traits import Schedule


class ReMDM(Scheduled):
    """Commit ``per_step`` positions per forward, the most confident first. After 7/8 of a block's S scheduled forwards
    (at least one, at most S - 1) come ``extra`` further ones. Each of these remasks the ``number`` committed tokens
    that were least confident when committed, then commits as many masks.

    A turn always remasks fewer positions than it commits, so ``number`` must be less than ``per_step``, and a turn that
    commits fewer remasks fewer.
    """

    stateless = False
    revocable = True

    def __init__(self, per_step: int = 4, extra: int = 2, number: int = 2) -> None:
        super().__init__(per_step=per_step)
        for name, value in (("extra", extra), ("number", number)):
            in_range(f"sampler.{name}", value, 0, advice="0 is the fixed schedule.")
        self.extra, self.number = extra, number

    def check(self, setting: Setting) -> None:
        if self.number >= self.per_step and self.extra:
            raise UserError(
                f"sampler.number={self.number} must be less than sampler.per_step={self.per_step}: a turn never masks "
                "as many positions as it commits. Lower one or raise the other."
            )

    def doubt(self, setting: Setting) -> str | None:
        if self.per_step <= 2:
            return None
        return (
            f"sampler.per_step={self.per_step}: so many tokens are committed however unsure they are, more than the "
            "further forwards can take back: mini-dream gets 63 % right at 4, and 74 % with sampler.per_step=2 "
            "sampler.number=1. Set these, or use sampler=confidence."
        )

    def turns(self, canvas: Canvas) -> None:
        """None: further forwards come on top of the schedule."""

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """record [B, L]: the confidence of each commit. extras [B]: further forwards of the block. owed [B]: what the
        last forward remasked."""
        zero, record = torch.zeros_like(canvas.start), torch.zeros_like(canvas.tokens, dtype=torch.float64)
        own = {"record": record, "block": zero - 1, "extras": zero, "owed": zero}
        return super().start(canvas, blocks) | own

    def step(self, view: View, state: State) -> Step:
        same = state["block"] == view.blocks.number
        extras, owed = (torch.where(same, state[name], 0) for name in ("extras", "owed"))
        steps = self.block_steps(view, state)
        scheduled = view.index - extras  # forwards of the schedule before this one; extras: the further ones
        due = self.due(view, state, scheduled)
        chosen = top(view.scores.confidence, view.open, torch.where(owed > 0, owed, due))
        committed = view.blocks.in_block & view.canvas.revisable
        record = torch.where(committed, state["record"], view.scores.confidence)
        had, extras = scheduled + (owed == 0), extras + (owed > 0)
        pause = torch.minimum(torch.minimum((7 * steps) // 8, steps - 1).clamp(min=1), steps)
        again = (had == pause) & (extras < self.extra)
        undo = torch.minimum(torch.full_like(steps, self.number), chosen.sum(1) - 1).clamp(min=0) * again
        doubtful = top(-record, committed | chosen, undo)
        changed = {"record": record, "block": view.blocks.number, "extras": extras, "owed": undo}
        return view.step(chosen & ~doubtful, remask=committed & doubtful, state=changed)
