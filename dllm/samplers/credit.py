"""Tokens that keep winning earn credit (CreditDecoding, arXiv 2510.06133); a wrapper around any rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.blocks.base import Blocks
from dllm.canvas import Canvas
from dllm.errors import UserError
from dllm.samplers.base import Sampler, State, Step, View, in_range, per_row
from dllm.scores import Need, Scores
from dllm.setting import Setting


class Credit(Sampler):
    """The inner rule sees softmax(z + alpha ln(1 + C)) instead of softmax(z).

    At every turn the credit C[position, token] of the open block decays by ``beta``, then the token that is top-1 at a
    masked position gains p^``gamma``. Kept sparsely: only tokens that were ever top-1 hold credit, at most one new a
    turn, so a slot per such token is exact (``dllm.kernels.credit.reference`` is the dense definition). ``inner``
    ranks and commits; credit starts at zero in every block.
    """

    stateless = False

    def __init__(self, inner: Sampler, beta: Any = 0.7, gamma: Any = 0.2, alpha: Any = 0.65) -> None:
        in_range("sampler.beta", beta, 0.0, 1.0)
        in_range("sampler.gamma", gamma, 0.0, float("inf"))
        in_range("sampler.alpha", alpha, 0.0, float("inf"))
        if inner.tempered or inner.revocable or any(need.statistics for need in inner.needs()):
            raise UserError(
                f"sampler=credit changes token and confidence only, so sampler/inner={name_of(inner)} cannot read it. "
                "Use an inner sampler that ranks by confidence: confidence, localleap, factor, static or bacd."
            )
        self.inner, self.beta, self.gamma, self.alpha = inner, beta, gamma, alpha
        self.deterministic = inner.deterministic

    def needs(self) -> tuple[Need, ...]:
        return (*self.inner.needs(), Need(logits=True))

    def check(self, setting: Setting) -> None:
        self.inner.check(setting)
        if setting.sampling is not None and setting.sampling.eos_last:
            raise UserError(
                "sampling.eos_last=true ranks end-of-text proposals last by their confidence, which sampler=credit "
                "replaces by the credited one. Set it to false."
            )
        if setting.sampling is not None and not setting.sampling.plain:
            raise UserError(
                f"sampler=credit proposes the argmax of the credited logits; sampling.temperature="
                f"{setting.sampling.temperature}, top_p and top_k do not apply. Set them to 0 and null."
            )

    def start(self, canvas: Canvas, blocks: Blocks) -> State:
        empty = torch.zeros(*canvas.tokens.shape, 0)
        return {
            **{f"inner.{key}": value for key, value in self.inner.start(canvas, blocks).items()},
            "beta": per_row(self.beta, canvas), "gamma": per_row(self.gamma, canvas),
            "alpha": per_row(self.alpha, canvas), "block": torch.zeros_like(canvas.start) - 1,
            "ids": empty.long().to(canvas.tokens.device), "credit": empty.double().to(canvas.tokens.device),
        }  # fmt: skip

    def step(self, view: View, state: State) -> Step:
        fresh = (state["block"] != view.blocks.number)[:, None, None]
        ids, credit = state["ids"], state["credit"] * state["beta"][:, None, None]
        credit = credit.masked_fill(fresh, 0.0)
        gain = view.scores.confidence ** state["gamma"][:, None] * view.open
        ids, credit = earn(ids, credit, view.scores.token, gain)
        scores = fuse(view.scores, ids, credit, state["alpha"], view.open)
        inner = {key[6:]: value for key, value in state.items() if key.startswith("inner.")}
        step = self.inner.step(replace(view, scores=scores), inner)
        changed = {f"inner.{key}": value for key, value in step.state.items()}
        changed |= {"ids": ids, "credit": credit, "block": view.blocks.number}
        tokens = scores.token if step.tokens is None else step.tokens
        return replace(step, tokens=tokens, state=changed)


def earn(ids: Tensor, credit: Tensor, token: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Add ``gain`` [B, L] to the slot of ``token`` [B, L]. Slots [B, L, S] are free while their credit is 0; their
    number grows when none is."""
    used = credit > 0
    held = used & (ids == token.unsqueeze(-1))
    new = ~held.any(-1) & (gain > 0)
    if bool((new & used.all(-1)).any()):
        ids = torch.cat([ids, torch.zeros_like(token).unsqueeze(-1)], -1)
        credit = torch.cat([credit, torch.zeros_like(gain).unsqueeze(-1)], -1)
        used, held = F.pad(used, (0, 1)), F.pad(held, (0, 1))
    first = ~used & ((~used).cumsum(-1) == 1) & new.unsqueeze(-1)
    return torch.where(first, token.unsqueeze(-1), ids), credit + gain.unsqueeze(-1) * (held | first)


def fuse(scores: Scores, ids: Tensor, credit: Tensor, alpha: Tensor, among: Tensor) -> Scores:
    """Token and confidence under the credited logits, at the positions ``among`` [B, L].

    With w = (1 + C)^alpha, p'(k) = p(k) w(k) / (1 + sum over slots of p (w - 1)). The winner is always a slot: the
    raw top-1 holds credit and beats every token that holds none. Ties go to the lowest id.
    """
    held = credit > 0
    weight = torch.where(held, (1 + credit) ** alpha[:, None, None], 1.0)
    p = slot_probabilities(scores, ids) * held
    total = 1 + (p * (weight - 1)).sum(-1)
    boosted = p * weight
    highest = boosted.amax(-1, keepdim=True)
    winner = torch.where(held & (boosted == highest), ids, torch.iinfo(ids.dtype).max).amin(-1)
    return replace(
        scores,
        token=torch.where(among, winner, scores.token),
        confidence=torch.where(among, highest.squeeze(-1) / total, scores.confidence),
    )


def slot_probabilities(scores: Scores, ids: Tensor) -> Tensor:
    """softmax(z)[id] for every slot [B, L, S], from the scored logit rows."""
    assert scores.logits is not None and scores.rows is not None
    logits, rows = scores.logits, scores.rows.unsqueeze(-1).expand(-1, -1, ids.shape[-1])
    inside = ids.gather(1, rows.clamp(max=ids.shape[1] - 1))
    highest = logits.amax(-1, keepdim=True)
    normal = (logits - highest).exp().sum(-1, keepdim=True, dtype=torch.float64)
    p = (logits.gather(-1, inside) - highest).double().exp() / normal
    out = p.new_zeros(ids.shape[0], ids.shape[1] + 1, ids.shape[2])
    return out.scatter(1, rows, p)[:, :-1]


def name_of(sampler: Sampler) -> str:
    return type(sampler).__name__.lower()
