"""Raise the logits of tokens that keep winning, then apply the inner rule (CreditDecoding, arXiv 2510.06133)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_range, name_of
from dllm.contract import Need, Scores, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import Clash, switched_off
from dllm.contract.needs import read_of_logits
from dllm.contract.readouts import LogitLookup, Statistic
from dllm.contract.traits import Schedule
from dllm.kernels.credit import SLOTS, sparse_credit
from dllm.parts.samplers.base import Sampler, scored_masks
from dllm.parts.samplers.wrapper import Wrapper


class Credit(Wrapper):
    """Commit as the inner rule does on softmax(z + alpha ln(1 + C)) instead of softmax(z).

    In every turn the credit C[position, token] of the open block is multiplied by ``beta``; then the top-1 token of
    each masked position gains p^``gamma``. Credit starts at zero in every block. ``inner`` ranks and commits.

    ``adaptive`` is the paper's variant without tuning: gamma 1, beta and alpha both 1 minus the share of masks in the
    open block. It is built from two readers' notes of the ACL version, section 4.3; no code of it exists. They do not
    agree on the share's span: one takes the block, as here, and says that the whole answer is possible.

    Only tokens that were top-1 hold credit, at most one new token a turn, so ``slots`` per position replace the whole
    vocabulary. That is exact until more tokens than slots were top-1 at one position of a block; then the token with
    the least credit loses its slot. ``dllm.kernels.credit`` holds the dense definition and the kernel.
    """

    traits = Wrapper.traits.but(tokens="reweighed")
    per_request = ("beta", "gamma", "alpha")
    clashes = (
        Clash(
            lambda c: c.sampling.eos_last,
            "{sampling.eos_last} ranks end-of-text proposals last by their confidence, which {sampler} replaces by "
            "the credited one.",
            [Set("sampling.eos_last", False)],
        ),
        Clash(
            lambda c: not c.sampling.plain,
            "{sampler} proposes the argmax of the credited logits: {sampling.temperature}, {sampling.top_p:name} and "
            "{sampling.top_k:name} do not apply.",
            [switched_off("temperature", "top_p", "top_k")],
        ),
    )

    def __init__(
        self,
        inner: Sampler,
        beta: PerRequest = 0.7,
        gamma: PerRequest = 0.2,
        alpha: PerRequest = 0.65,
        slots: int = SLOTS,
        adaptive: bool = False,
    ) -> None:
        in_range("sampler.beta", beta, 0.0, 1.0)
        in_range("sampler.gamma", gamma, 0.0)
        in_range("sampler.alpha", alpha, 0.0)
        if why := reads_more(inner):
            raise Refusal(
                "{sampler} changes token and confidence only, and those of one canvas, so {sampler/inner} cannot "
                f"use them: {why}. Use an inner sampler that ranks by confidence: confidence, localleap, factor, "
                "static or bacd. To combine it with prophet, put credit inside: {sampler=prophet} "
                "{sampler/inner=credit}.",
                [name_of(self), name_of(inner)],
            )
        in_range("sampler.slots", slots, 1)
        super().__init__(inner)
        self.beta, self.gamma, self.alpha, self.slots, self.adaptive = beta, gamma, alpha, slots, adaptive

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), Need(reads=(Statistic("logsumexp"), LogitLookup())))

    @property
    def per_block(self) -> Mapping[str, float]:
        return {**super().per_block, "credit": 0}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        ids = canvas.tokens.new_zeros(*canvas.tokens.shape, self.slots)
        return super().start(canvas, blocks) | {"ids": ids, "credit": torch.zeros_like(ids, dtype=torch.float64)}

    def propose(self, view: View, state: State) -> Step:
        if not view.blocks.shapes.any(view.active):
            return super().propose(view, state)
        weights = decided_share(view) if self.adaptive else (state["beta"], state["gamma"], state["alpha"])
        scores, changed = credited(view, state, *weights)
        step = super().propose(replace(view, scores=scores), state)
        return view.restated(step, state=changed | step.state)


def reads_more(inner: Sampler) -> str:
    """What a rule does besides ranking one canvas by token and confidence, in words; empty: nothing."""
    traits = inner.traits
    if traits.revocable or traits.edits:
        return f"it takes tokens {'back' if traits.revocable else 'away for others'}"
    if statistics := read_of_logits(inner.needs()):
        return f"it also reads {', '.join(statistics)}, as its needs() say"
    if traits.branches:
        return "it tries several canvases"
    return "its confidences are of the tempered distribution" if traits.tempered else ""


def decided_share(view: View) -> tuple[Tensor, Tensor, Tensor]:
    """beta, gamma and alpha [B] of ``adaptive``."""
    masks, width = (view.canvas.undecided & view.blocks.in_open).sum(1), view.blocks.in_open.sum(1)
    decided = 1 - masks.double() / width.clamp(min=1)
    return decided, torch.ones_like(decided), decided


def credited(view: View, state: State, beta: Tensor, gamma: Tensor, alpha: Tensor) -> tuple[Scores, State]:
    """Scores with token and confidence under the credited logits in the active rows, and the new slots. The winner is
    always in a slot: the raw top-1 holds credit, and so beats every token without any. Ties go to the lowest id.
    beta, gamma, alpha: [B]."""
    scores, lookup = view.scores, view.scores.of(LogitLookup())
    rows, ids, credit = lookup.columns, state["ids"], state["credit"]
    inside = rows.clamp(max=ids.shape[1] - 1)
    slots = inside.unsqueeze(-1).expand(-1, -1, ids.shape[2])
    ids_of_rows = ids.gather(1, slots)
    token, first, normal, live = (
        values.gather(1, inside).flatten()
        for values in (scores.token, scores.confidence, scores.statistic("logsumexp"), scored_masks(view))
    )
    decay, exponent, weight = (value[:, None].expand(rows.shape).flatten() for value in (beta, gamma, alpha))
    token, confidence, ids_of_rows, gained = sparse_credit(
        lookup(ids_of_rows).flatten(0, 1),
        token,
        first,
        normal,
        ids_of_rows.flatten(0, 1),
        credit.gather(1, slots).flatten(0, 1),
        live,
        decay,
        exponent,
        weight,
        triton=lookup.triton,
    )
    token, confidence = scatter_into(scores.token, rows, token), scatter_into(scores.confidence, rows, confidence)
    acts = view.active[:, None]
    now = replace(
        scores,
        token=torch.where(acts, token, scores.token),
        confidence=torch.where(acts, confidence, scores.confidence),
    )
    decayed = credit * beta[:, None, None]
    return now, {"ids": scatter_into(ids, rows, ids_of_rows), "credit": scatter_into(decayed, rows, gained)}


def scatter_into(values: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """``values`` [B, L, ...] with ``new`` [B n, ...] at columns ``rows`` [B, n] (L: no column)."""
    new = new.view(*rows.shape, *values.shape[2:])
    place = rows.view(*rows.shape, *[1] * (values.dim() - 2)).expand_as(new)
    return torch.cat([values, values[:, :1]], 1).scatter(1, place, new)[:, :-1]
