"""Follow a fixed schedule, and decide unsure tokens again near a block's end (ReMDM's loop, arXiv 2503.00307).

The rule is that of furiosa-ai/ParallelBench@72de8f7: model/remasking/llada/remdm.py (llada_remdm_sample).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range
from dllm.common.ranking import top_k_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Clash
from dllm.contract.setting import Setting
from dllm.contract.traits import Schedule
from dllm.parts.samplers.scheduled import Scheduled


class ReMDM(Scheduled):
    """Commit what the fixed schedule says, the most confident first. ``extra`` corrections come on top of a block's S
    scheduled forwards: before each of them, the ``number`` committed tokens of the block that were least confident when
    committed are remasked, and the forward commits as many masks, the most confident ones.

    The corrections come in a row after x = max(min(floor(7 K / 8), K - 1), 1) forwards of a block of K masks, or, where
    the schedule is shorter, at its end. steps, per_step: the schedule's, as in ``Scheduled`` (both None: 4 positions
    per forward).
    """

    traits = Scheduled.traits.but(stateless=False, revocable=True, by_confidence=True)
    clashes = (
        *Scheduled.clashes,
        Clash(
            lambda c: (
                c.part.extra
                and c.gen_length
                and c.part.number >= c.blocks.widest(c.gen_length)
                and {"length": c.blocks.widest(c.gen_length)}
            ),
            "{sampler.number} must be less than the {length:value} columns of a block: a correction leaves a "
            "committed token.",
            [lambda c: Set("sampler.number", c.blocks.widest(c.gen_length or 1) - 1)],
            "Or raise {blocks.block_length:name}.",
        ),
    )

    def __init__(self, per_step: int | None = None, extra: int = 2, number: int = 2, steps: int | None = None) -> None:
        super().__init__(steps, (4 if steps is None else 1) if per_step is None else per_step)
        for name, value in (("extra", extra), ("number", number)):
            in_range(f"sampler.{name}", value, 0, advice="0 is the fixed schedule.")
        self.extra, self.number = extra, number
        # A correction may decide what it masked as it was.
        self.traits = self.traits.but(patience=max(self.traits.patience, extra))

    def warning(self, setting: Setting) -> str | None:
        if self.per_step <= 2:
            return None
        return (
            f"sampler.per_step={self.per_step}: this many tokens are committed however unsure they are, more than the "
            "further forwards can take back: mini-dream gets 70 % right at 4, and 81 % with sampler.per_step=2 "
            "sampler.number=1. Set these, or use sampler=confidence."
        )

    def turns(self, canvas: Canvas) -> None:
        """None: corrections come on top of the schedule."""

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """record [B, L]: the confidence of each commit. undone [B]: how many the last forward remasked."""
        record = torch.zeros_like(canvas.tokens, dtype=torch.float64)
        return super().start(canvas, blocks) | {"record": record, "undone": torch.zeros_like(canvas.start)}

    def step(self, view: View, state: State) -> Step:
        first, index = self._first(view, state), view.block_step
        passed = (index - first).clamp(0, self.extra)  # corrections before this forward
        count = torch.where(self._corrects(index, first), state["undone"], self.quota(view, state, index - passed))
        commit = top_k_mask(view.scores.confidence, view.open, count)
        committed = view.blocks.in_block & view.canvas.revisable
        record = torch.where(committed, state["record"], view.scores.confidence)
        again = torch.where(self._corrects(index + 1, first), self.number, 0)
        undone = top_k_mask(-record, committed | commit, again)
        changed = {"record": record, "undone": undone.sum(1)}
        return view.step(commit & ~undone, remask=committed & undone, state=changed)

    def _first(self, view: View, state: State) -> Tensor:
        """Index [B] of the block's first correction."""
        masks = view.blocks.masks
        return torch.minimum(torch.minimum(7 * masks // 8, masks - 1).clamp(min=1), self.block_steps(view, state))

    def _corrects(self, index: Tensor, first: Tensor) -> Tensor:
        return (index >= first) & (index < first + self.extra)
