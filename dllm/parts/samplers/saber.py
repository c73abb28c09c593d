"""Commit what exceeds the mean confidence so far, and take back what the new context speaks against (Saber, arXiv
2510.18165).

The rules are those of zhaoyMa/Saber@2f061e2: decoding.py (generate_with_saber) for LLaDA, Dream/generation_utils.py
(_sample) for Dream. They differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import Statistic
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


class Saber(Sampler):
    """Commit what is surer than the mean confidence ``at_commit`` of the committed positions (1.0 before the first),
    and at least the ``minimum`` surest. Unless that decides the block, take back the worst committed positions of the
    block, among them what was just committed.

    form ``llada``: at_commit is the confidence of a position's last commit. Of w commits
    min(max(floor(minimum / 2), ceil(w / backtrack)), w - 1) are taken back: those whose likeliest token, whichever it
    is, lost most probability since the last forward. form ``dream``: at_commit is the confidence of a position's first
    commit; max(1, min(ceil(w / backtrack), w - 1)) of w commits are taken back: those whose token is least probable
    now.

    The published loops take back in the whole answer up to the open block's end: ``blocks=growing`` or ``whole``.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, revocable=True, by_confidence=False)

    def __init__(self, minimum: int = 2, backtrack: int = 8, form: str = "llada") -> None:
        in_range("sampler.minimum", minimum, 1)
        in_range("sampler.backtrack", backtrack, 1)
        in_choices("sampler.form", form, ("llada", "dream"))
        self.minimum, self.backtrack, self.form = minimum, backtrack, form

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True, reads=Statistic.of("current") if self.form == "dream" else ()),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """at_commit [B, L]: the confidence of a position's last or first commit (0: none, as after the columns of a row
        that joins wider ones). last [B, L]: the largest probability at a position in the last forward, 0 before the
        first (-inf: it was not in the block)."""
        zero = torch.zeros_like(canvas.tokens, dtype=torch.float64)
        return {"at_commit": zero} | ({"last": zero} if self.form == "llada" else {})

    def step(self, view: View, state: State) -> Step:
        confidence, at_commit = view.scores.confidence, state["at_commit"]
        count = (at_commit > 0).sum(1)
        bar = torch.where(count > 0, at_commit.sum(1) / count.clamp(min=1), 1.0)
        accepted = view.open & (confidence > bar[:, None])
        commit = top_k_mask(confidence, view.open, accepted.sum(1).clamp(min=self.minimum))
        decided = commit | (view.canvas.revisable & view.blocks.in_block & view.scores.scored)
        unfinished = (view.canvas.undecided & view.blocks.in_block & ~commit).any(1)
        worst, changed = self._doubted(view, state, commit)
        undone = top_k_mask(worst, decided, torch.where(unfinished, self._undone(commit.sum(1)), 0))
        new = commit if self.form == "llada" else commit & (at_commit == 0)
        changed["at_commit"] = torch.where(new, confidence, at_commit)
        return view.step(commit & ~undone, accepted=accepted & ~undone, remask=undone & ~commit, state=changed)

    def _undone(self, count: Tensor) -> Tensor:
        """How many positions [B] are taken back where ``count`` [B] were committed: always fewer."""
        least = self.minimum // 2 if self.form == "llada" else 1
        return torch.minimum((-(-count // self.backtrack)).clamp(min=least), count - 1)

    def _doubted(self, view: View, state: State, commit: Tensor) -> tuple[Tensor, State]:
        """How doubtful each position is [B, L], the worst first, and the changed state."""
        confidence, scored = view.scores.confidence, view.scores.scored
        if self.form == "dream":
            return -torch.where(commit, confidence, view.scores.statistic("current").exp()), {}
        scored_in_block = scored & view.blocks.in_block
        last = torch.where(view.blocks.in_block, state["last"], -torch.inf)
        return state["last"] - confidence, {"last": torch.where(scored_in_block, confidence, last)}
