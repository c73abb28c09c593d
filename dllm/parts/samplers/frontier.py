"""Let only the leftmost masks be committed (frontier gate, after arXiv 2608.05687)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range, name_of
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper, nested


class Frontier(Wrapper):
    """To the inner rule only the ``width`` leftmost of the open masks are open (None: all of them). What is committed
    between them uses up no width. Quotas, ranks and budgets are those of the gated set, and what the rule commits when
    nothing passes is one of it. 1 is left to right, one position per forward.
    """

    def __init__(self, inner: Sampler, width: int | None = 16) -> None:
        in_range("sampler.width", width, 1, advice="It counts masks; {null} is all of them.")
        if inner.traits.fixed_order:
            name = name_of([rule for rule in nested(inner) if rule.traits.fixed_order][-1])
            raise Refusal(
                "{sampler} lets only the leftmost masks be committed, but {sampler/inner} commits positions that a "
                "plan of its own names, and these may lie elsewhere. Use an inner sampler that goes by scores, such "
                "as confidence or static.",
                [name_of(self), name],
            )
        if inner.traits.commits_ahead:
            name = name_of([rule for rule in nested(inner) if rule.traits.commits_ahead][-1])
            raise Refusal(
                "{sampler} gates one step of a rule, and {sampler/inner} looks beyond it. Put the gate inside: "
                f"{{sampler={name}}} {{sampler/inner={name_of(self)}}}. Use an inner sampler such as confidence or "
                "static here.",
                [name_of(self), name],
            )
        super().__init__(inner)
        self.traits = self.traits.but(stateless=inner.traits.stateless, by_confidence=False, plans_ahead=False)
        self.width = width

    def turns(self, canvas: Canvas) -> Tensor | None:
        turns = super().turns(canvas)
        if turns is None or self.width is None:
            return turns
        return torch.maximum(turns, -(-canvas.undecided.sum(1) // self.width))

    def propose(self, view: View, state: State) -> Step:
        if self.width is not None:
            view = replace(view, open=view.open & (view.open.cumsum(1) <= self.width))
        step = super().propose(view, state)
        if isinstance(self.inner, Wrapper) and not view.blocks.shapes.bounded:
            self._refuse_stray(view, step)
        return step

    def _refuse_stray(self, view: View, step: Step) -> None:
        """A rule narrows what it commits to what is open; one around it may not."""
        if bool((step.commit & ~step.owner.per_candidate(view.open | view.forced_positions)).any()):
            raise Refusal(
                "{sampler/inner} commits positions that are not in view.open, so {sampler} cannot gate it. Write "
                f"commits_ahead=True in its traits, and put the gate inside: {{sampler={name_of(self.inner)}}} "
                f"{{sampler/inner={name_of(self)}}}.",
                [name_of(self.inner), name_of(self)],
            )
