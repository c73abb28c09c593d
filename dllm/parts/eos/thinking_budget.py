"""Write the end of thought once an answer has thought long enough; wraps another end-of-text policy.

The rule is that of ``generate`` in nvidia/Nemotron-Labs-Diffusion's modeling file (``max_thinking_tokens``,
``end_think_token_id``).
"""

from __future__ import annotations

import torch

from dllm.common.errors import Refusal
from dllm.contract import BlockState
from dllm.contract.canvas import Canvas
from dllm.contract.clash import NO_BUDGET
from dllm.parts.eos.base import AroundPolicy, EndOfText


class ThinkingBudget(AroundPolicy):
    """When a block opens that reaches beyond ``budget`` tokens of the answer, and no end of thought is before it,
    ``end_id`` is written at position ``budget``, or at the block's first one. Forwards of that block see it."""

    def __init__(self, inner: EndOfText, budget: int, end_id: int) -> None:
        super().__init__(inner, writes=True)
        self.budget, self.end_id = budget, end_id

    def opened(self, candidates: Canvas, blocks: BlockState) -> Canvas:
        candidates = super().opened(candidates, blocks)
        columns, start = candidates.columns, candidates.start[:, None]
        decided = (columns >= start) & (columns < candidates.end[:, None]) & ~candidates.masked
        thinks = ~(decided & (candidates.tokens == self.end_id)).any(1, keepdim=True)
        at = torch.maximum(start + self.budget, blocks.begin[:, None])
        where = (columns == at) & (at < blocks.end[:, None]) & ~blocks.done[:, None]
        return candidates.commit(where & thinks & candidates.undecided, torch.full_like(candidates.tokens, self.end_id))


def refuse_budget(budget: int | None) -> None:
    """Raise UserError for a thinking budget beside a constraint."""
    if budget is not None:
        says = "{sampling.thinking_budget} writes a token that a constraint does not know."
        raise Refusal(says, {"sampling.thinking_budget": budget}, [NO_BUDGET], "Or drop the constraint.")
