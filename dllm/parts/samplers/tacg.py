"""Commit by a token's history: how long it has been the likeliest, and where it is heading (TACG, arXiv 2607.03236)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_choices, in_range
from dllm.common.ranking import argmax_mask, in_float64, top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.readouts import AllLogits
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.klass import divergence, in_block


@dataclass(frozen=True)
class HistoryPlaces:
    """Where a row's history is."""

    column: Tensor  # [B, W] the column at each place
    exists: Tensor  # [B, W] whether the canvas has it
    place: Tensor  # [B, L] the place of each column, which may be outside

    @staticmethod
    def of(columns: Tensor, origin: Tensor, width: int) -> HistoryPlaces:
        """``width`` places from column ``origin`` [B] on, of ``columns`` [L]."""
        column, last = origin[:, None] + torch.arange(width, device=columns.device), len(columns) - 1
        return HistoryPlaces(column.clamp(max=last), column <= last, columns - origin[:, None])

    def at(self, values: Tensor) -> Tensor:
        """Values [B, L] by place [B, W]."""
        return values.gather(1, self.column)

    def back(self, values: Tensor) -> Tensor:
        """Values [B, W] by column [B, L]; of some place or other where a column has none."""
        return values.gather(1, self.place.clamp(0, values.shape[1] - 1))


class TACG(Sampler):
    """Commit the base, which exceeds ``threshold``, and the best extras above ``floor`` (a gate by trajectory):
    min(``most``, ceil(``ratio`` * base)), without a base only under ``without_base``. The streak of a position is the
    number of forwards in a row that proposed its token.

    form ``gate`` (the code for LLaDA): base and extras wait for a streak of ``streak``, or a confidence of ``escape``.
    Extras are ranked by confidence + ``bonus`` * gain, where the gain is softmax(g) - softmax(u) of the proposal: u is
    a slow mean of the logits z (``decay`` u + (1 - ``decay``) z), and g = u + (1 + ``guidance_weight``) (z - u). With
    ``kl`` both also need ``kl_turns`` divergences KL(p_t || p_t-1) below it in a row.
    form ``extras`` (the code for Dream): only extras wait, and the gain is that over the last forward.

    Where nothing passes, the best is committed. history: ``block`` (a position's begins with its block) or ``answer``
    (with the first forward, as published for LLaDA). With ``bonus`` 0 and no ``kl`` the state is three numbers per
    position. Else it holds one or two rows of logits for each, of the widest block or of the whole canvas.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False)
    per_request = ("threshold", "floor", "escape")

    def __init__(
        self, form: str = "gate", threshold: PerRequest = 0.9, floor: PerRequest = 0.8, ratio: float = 0.25,
        most: int = 2, without_base: bool = True, streak: int = 3, escape: PerRequest = 0.95, bonus: float = 0.05,
        guidance_weight: float = 0.3, decay: float = 0.95, kl: float | None = None, kl_turns: int = 1,
        history: Literal["block", "answer"] = "block",
    ) -> None:  # fmt: skip
        in_choices("sampler.form", form, ("gate", "extras"))
        in_choices("sampler.history", history, ("block", "answer"))
        for name, share in (("threshold", threshold), ("floor", floor), ("escape", escape), ("decay", decay)):
            in_range(f"sampler.{name}", share, 0.0, 1.0)
        for name, least in (("ratio", ratio), ("bonus", bonus), ("guidance_weight", guidance_weight), ("kl", kl)):
            in_range(f"sampler.{name}", least, 0.0)
        in_range("sampler.most", most, 0, advice="0 means no extras.")
        in_range("sampler.streak", streak, 1, advice="It counts forwards; 1 means no gate.")
        in_range("sampler.kl_turns", kl_turns, 1, advice="It counts forwards.")
        if (torch.as_tensor(floor) > torch.as_tensor(threshold)).any():
            raise Refusal(
                "{sampler.floor} must not exceed {sampler.threshold}: extras lie between the two.", [floor, threshold]
            )
        if form == "extras" and kl is not None:
            raise Refusal("{sampler.kl} is tested by {sampler.form=gate} alone. Choose it, or set kl to {null}.", [kl])
        self.form, self.history, self.threshold, self.floor, self.escape = form, history, threshold, floor, escape
        self.ratio, self.most, self.without_base, self.streak = ratio, most, without_base, streak
        self.bonus, self.guidance_weight, self.decay = bonus, guidance_weight, decay
        self.kl, self.kl_turns = kl, kl_turns

    def needs(self) -> tuple[Need, ...]:
        return (Need(self.history, reads=(AllLogits(),) if self.bonus > 0 or self.kl is not None else ()),)

    @property
    def per_block(self) -> Mapping[str, float]:
        return {"streak": 0} if self.history == "block" else {}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """By place [B, W]. token: the last proposal. streak: for how many forwards it has been the same (0: no
        history). calm: for how many its divergence has stayed below ``kl``. slow, before [B, W, V]: the slow mean and
        the last logits, with no token before the first forward."""
        length = len(canvas.columns)
        width = length if self.history == "answer" else min(length, blocks.widest(length))
        zero = canvas.tokens.new_zeros(len(canvas.start), width)
        nothing = canvas.masked.new_zeros(*zero.shape, 0)  # the type that every other one absorbs
        memory = {"token": zero, "streak": zero, "calm": zero}
        if self.form == "gate" and self.bonus > 0:
            memory["slow"] = nothing
        if self.kl is not None or (self.form == "extras" and self.bonus > 0):
            memory["before"] = nothing
        return super().start(canvas, blocks) | memory

    def step(self, view: View, state: State) -> Step:
        origin = view.blocks.begin if self.history == "block" else torch.zeros_like(view.blocks.begin)
        places = HistoryPlaces.of(view.canvas.columns, origin, state["streak"].shape[1])
        gain, changed = self._followed(view, state, places)
        score = view.scores.confidence + self.bonus * places.back(gain)
        streak, calm = places.back(changed["streak"]), places.back(changed["calm"])
        if self.form == "gate":
            accepted, fallback = self._gated(view, state, score, streak, calm)
        else:
            accepted, fallback = self._extended(view, state, score, streak)
        commit = accepted | (fallback & ~accepted.any(1, keepdim=True))
        # What a schedule takes back begins again.
        changed["streak"] = changed["streak"].masked_fill(places.at(commit), 0)
        return view.step(commit, accepted=accepted, state=changed)

    def _gated(self, view: View, state: State, score: Tensor, streak: Tensor, calm: Tensor) -> tuple[Tensor, Tensor]:
        """What passes, and what is committed where nothing does [B, L]."""
        confidence, ripe = view.scores.confidence, view.open
        if self.kl is not None:
            ripe = ripe & (calm >= self.kl_turns) & (view.blocks.forwards >= self.kl_turns)[:, None]
        base = ripe & (confidence > state["threshold"][:, None])
        near = ripe & (confidence > state["floor"][:, None]) & ~base
        ready = base | self._extras(score, near, base)
        passed = ready & ((streak >= self.streak) | (confidence >= state["escape"][:, None]))
        return passed, argmax_mask(score, torch.where(ready.any(1, keepdim=True), ready, view.open))

    def _extended(self, view: View, state: State, score: Tensor, streak: Tensor) -> tuple[Tensor, Tensor]:
        """The same for the form whose base does not wait."""
        confidence = view.scores.confidence
        base = view.open & (confidence >= state["threshold"][:, None])
        near = view.open & (confidence >= state["floor"][:, None]) & ~base & (streak >= self.streak)
        sure = view.open & (confidence >= state["escape"][:, None])
        return base | self._extras(score, near, base) | sure, argmax_mask(confidence, view.open)

    def _extras(self, score: Tensor, near: Tensor, base: Tensor) -> Tensor:
        """The best of ``near``, as many as the ``base`` allows."""
        count = base.sum(1)
        most = (self.ratio * count.clamp(min=1).double()).ceil().clamp(max=self.most)
        return top_k_mask(score, near, most if self.without_base else most * (count > 0))

    def _followed(self, view: View, state: State, places: HistoryPlaces) -> tuple[Tensor, State]:
        """How much each proposal gains, by place [B, W], and the state after this forward. A position that it did not
        score keeps its history."""
        scores, is_scored, has_history = view.scores, view.scores.scored & view.canvas.undecided, state["streak"] > 0
        if self.history == "block":
            is_scored = is_scored & view.blocks.in_block
        is_scored, token = places.at(is_scored) & places.exists, places.at(scores.token)
        again = has_history & (state["token"] == token)
        changed = {
            "token": torch.where(is_scored, token, state["token"]),
            "calm": state["calm"],
            "streak": torch.where(is_scored, torch.where(again, state["streak"] + 1, 1), state["streak"] * has_history),
        }
        gain = torch.zeros_like(token, dtype=torch.float64)
        if "slow" not in state and "before" not in state:
            return gain, changed
        now = in_block(scores, places.place, places.column.shape[1])
        now = now.to(torch.promote_types(now.dtype, torch.float32))
        if "slow" in state:
            slow = earlier(state["slow"], has_history, now)
            gain = gain_over(slow, now, token, self.guidance_weight)
            changed["slow"] = torch.where(is_scored[..., None], slow_mean(slow, now, self.decay), slow)
        if "before" in state:
            before = earlier(state["before"], has_history, now)
            changed["before"] = torch.where(is_scored[..., None], now, before)
            still = has_history & (divergence(now, before) < (self.kl or 0.0))
            changed["calm"] = torch.where(is_scored, torch.where(still, state["calm"] + 1, 0), state["calm"])
        if self.form == "extras":
            gain = (places.at(scores.confidence) - chance_of(before, token) * has_history).clamp(min=0)
        return gain, changed


def earlier(values: Tensor, has_history: Tensor, now: Tensor) -> Tensor:
    """Remembered ``values`` [B, W, V] where a place ``has_history`` [B, W], else those of ``now``."""
    return torch.where(has_history[..., None], values, now) if values.shape[-1] else now


def slow_mean(slow: Tensor, now: Tensor, decay: float) -> Tensor:
    """decay * slow + (1 - decay) * now [B, W, V]; a token that a constraint had banned begins with its logit now."""
    return torch.where((slow > -torch.inf) & (now > -torch.inf), decay * slow + (1 - decay) * now, now)


def gain_over(slow: Tensor, now: Tensor, token: Tensor, weight: float) -> Tensor:
    """How much likelier ``token`` [B, W] is under slow + (1 + weight) (now - slow) [B, W, V] than under ``slow``, at
    least 0: float64 [B, W]."""
    return in_float64(lambda a, b, at: _gain_over(a, b, at, weight), slow, now, token)


def _gain_over(slow: Tensor, now: Tensor, token: Tensor, weight: float) -> Tensor:
    both = (slow > -torch.inf) & (now > -torch.inf)
    guided = torch.where(both, slow + (1 + weight) * (now - slow), -torch.inf)
    return (_chance_of(guided, token) - _chance_of(slow, token)).clamp(min=0)


def chance_of(logits: Tensor, token: Tensor) -> Tensor:
    """softmax(logits)[token] [B, W] of logits [B, W, V], float64; 0 where no token is left."""
    return in_float64(_chance_of, logits, token)


def _chance_of(logits: Tensor, token: Tensor) -> Tensor:
    logit = logits.gather(-1, token[..., None])[..., 0]
    return (logit - logits.logsumexp(-1)).exp().nan_to_num(0.0)
