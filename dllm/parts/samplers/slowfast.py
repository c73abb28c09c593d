"""Look how far ahead the model is sure of anything, then fill that far (SlowFast, arXiv 2506.10848, as its code)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import USE_FIXED, Clash
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler, scored_masks


class SlowFast(Sampler):
    """Commit a block in cycles of two phases. ``done`` is the column of the block before which all is decided.

    Slow, ``explore`` forwards: the horizon is the column after the last mask whose confidence reaches ``low``
    (``done`` + 1 without one). Once the last ``window`` horizons deviate by less than ``deviation`` columns, the last
    of them is the end of the span; otherwise it is the floor of their mean. Fast: forwards until the span is full; then
    ``done`` is its end. A slow forward commits in the whole block, a fast one inside the span: all masks whose
    confidence reaches ``high``, if there are two or more, else the most confident one.

    stop_when_stable: the slow phase ends with the forward that settles the span, as in the paper. Its code always takes
    ``explore`` forwards, even of a block that is full, which decide nothing and are left out here.

    From its second forward on, a fast phase announces the span: ``cache=span`` computes nothing after it, as published.
    """

    # a fast forward looks at the span alone, so a confidence of -1 may be all that it sees
    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False, spans=True)
    per_request = ("low", "high")
    clashes = (
        Clash(
            lambda c: c.blocks.traits.slides or c.blocks.traits.rolls_back,
            "{sampler} fills a block from its begin on, but {blocks} moves the block or takes back what it decided.",
            [USE_FIXED],
        ),
    )

    def __init__(
        self,
        low: PerRequest = 0.3,
        high: PerRequest = 0.9,
        explore: int = 6,
        window: int = 2,
        deviation: float = 1.0,
        stop_when_stable: bool = False,
    ) -> None:
        in_range("sampler.low", low, 0.0, 1.0)
        in_range("sampler.high", high, 0.0, 1.0)
        in_range("sampler.explore", explore, 1, advice="It counts the forwards of a slow phase.")
        in_range("sampler.window", window, 1, advice="It counts horizons.")
        in_range("sampler.deviation", deviation, 0.0, advice="0 always takes the mean of the horizons.")
        self.low, self.high, self.explore, self.window = low, high, explore, window
        self.deviation, self.stop_when_stable = deviation, stop_when_stable

    @property
    def per_block(self) -> Mapping[str, float]:
        return dict.fromkeys(("done", "span", "cycle", "seen", "settled", "horizons"), 0)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """All [B], columns from the block's begin: done; span, the end of the span. cycle: forwards of the cycle. seen:
        horizons of the cycle; horizons [B, window] keeps the last of them. settled: 1 once they agree."""
        zero = torch.zeros_like(canvas.start)
        horizons = zero[:, None].expand(-1, self.window)
        return super().start(canvas, blocks) | dict.fromkeys(self.per_block, zero) | {"horizons": horizons}

    def step(self, view: View, state: State) -> Step:
        place = view.canvas.columns - view.blocks.begin[:, None]
        masks = view.canvas.undecided & view.blocks.in_block
        state = self.next_cycle(masks & columns_between(place, state["done"], state["span"]), state)
        slow = state["cycle"] < self.explore
        state = self.looked(view, place, slow, state)
        bound = torch.where(slow, view.blocks.end - view.blocks.begin, state["span"])
        commit, accepted = self.select(view, columns_between(place, state["done"], bound), state["high"][:, None])
        span = columns_between(place, state["done"], state["span"])
        goes_on = ~slow & (masks & ~commit & span).any(1)
        announced = torch.where(span & goes_on[:, None], place - state["done"][:, None] + 1, 0)
        return view.step(commit, accepted=accepted, next_positions=announced, state=state)

    def next_cycle(self, masks: Tensor, state: State) -> State:
        """The state, in which rows whose span has no ``masks`` [B, L] any more begin another cycle."""
        ends = (state["cycle"] >= self.explore) & ~masks.any(1)
        fresh = {name: state[name].masked_fill(ends, 0) for name in ("cycle", "seen", "settled")}
        horizons = state["horizons"].masked_fill(ends[:, None], 0)
        return state | fresh | {"done": torch.where(ends, state["span"], state["done"]), "horizons": horizons}

    def looked(self, view: View, place: Tensor, slow: Tensor, state: State) -> State:
        """The state after another forward, which takes a horizon in ``slow`` rows [B] whose span is not settled."""
        sure = scored_masks(view) & (view.scores.confidence >= state["low"][:, None]) & view.blocks.in_block
        horizon = 1 + torch.maximum(torch.where(sure, place, 0).amax(1), state["done"])
        looks = slow & (state["settled"] == 0)
        horizons_taken = state["seen"] + looks
        horizons = torch.cat([state["horizons"][:, 1:], horizon[:, None]], 1)
        horizons = torch.where(looks[:, None], horizons, state["horizons"])
        agree = (horizons_taken >= self.window) & (horizons.double().std(1, correction=0) < self.deviation)
        mean = horizons.sum(1) // horizons_taken.clamp(1, self.window)  # without a horizon an entry is 0
        span = torch.where(looks, torch.where(agree, horizon, mean), state["span"])
        settled, cycle = state["settled"] | (looks & agree).long(), state["cycle"] + 1
        if self.stop_when_stable:
            cycle = torch.where(slow & (settled == 1), self.explore, cycle)
        return state | {"span": span, "seen": horizons_taken, "horizons": horizons, "settled": settled, "cycle": cycle}

    def select(self, view: View, among: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """What is committed among these columns [B, L], and what of it reaches ``high`` [B, 1]."""
        confidence, among = view.scores.confidence, among & view.open
        sure = among & (confidence >= high)
        commit = torch.where(sure.sum(1, keepdim=True) > 1, sure, argmax_mask(confidence, among))
        return commit, commit & sure


def columns_between(place: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """Where ``place`` [B, L] is in [``begin``, ``end``), both [B]."""
    return (place >= begin[:, None]) & (place < end[:, None])
