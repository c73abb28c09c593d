"""Commit everything once the answer is decided (Prophet, arXiv 2508.19982); a wrapper around any rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dllm.blocks.base import Blocks
from dllm.canvas import Canvas, Request
from dllm.errors import UserError
from dllm.samplers.base import Sampler, State, Step, View, in_range
from dllm.scores import Need
from dllm.setting import Setting

REGIONS = ("none", "offset", "anchor", "all_masked")


class Prophet(Sampler):
    """When the mean top-2 logit gap over the answer region reaches the bar of the moment, commit every mask of the row.

    thresholds: the bar while progress is below the first break point, below the second, and after. region: ``offset``
    (``length`` positions from answer position ``start``), ``anchor`` (``anchor_text`` is written at ``anchor_position``
    and the region begins ``skip`` tokens after it), ``all_masked`` (an extension: all positions still masked) or
    ``none`` (the inner rule alone). progress: turns over the nominal number of turns for a fixed schedule, for an
    adaptive inner rule the share of committed positions if that is larger.
    """

    def __init__(
        self, inner: Sampler, thresholds: Sequence[float] = (7.5, 5.0, 2.5),
        breakpoints: Sequence[float] = (0.33, 0.67),
        region: str = "all_masked", start: int | None = None, length: int = 5, anchor_text: str | None = None,
        anchor_position: int | None = None, skip: int = 1,
    ) -> None:  # fmt: skip
        if len(thresholds) != 3 or len(breakpoints) != 2:
            raise UserError("sampler.thresholds needs 3 numbers (early, middle, late), sampler.breakpoints 2.")
        if region not in REGIONS:
            raise UserError(f"sampler.region={region!r} must be one of {', '.join(REGIONS)}.")
        if region == "offset" and start is None:
            raise UserError("sampler.region=offset needs sampler.start, the region's first answer position.")
        if region == "anchor" and (anchor_text is None or anchor_position is None):
            raise UserError("sampler.region=anchor needs sampler.anchor_text and sampler.anchor_position.")
        if length < 1:
            raise UserError(f"sampler.length={length} must be at least 1 position.")
        if inner.revocable:
            raise UserError(
                "sampler=prophet cannot wrap a sampler that remasks: what it commits at once would be undone."
            )
        in_range("sampler.breakpoints", breakpoints, 0.0, 1.0)
        self.inner, self.thresholds, self.breakpoints = inner, tuple(thresholds), tuple(breakpoints)
        self.region, self.begin, self.length = region, start, length
        self.anchor_text, self.anchor_position, self.skip = anchor_text, anchor_position, skip
        self.deterministic, self.tempered = inner.deterministic, inner.tempered
        self.by_confidence = inner.by_confidence
        self.stateless = False

    def prepare(self, request: Request, encode: Callable[[str], list[int]]) -> Request:
        """Write the anchor into the canvas; the region follows it."""
        if self.region != "anchor":
            return request
        ids = encode(f" {self.anchor_text}")
        at = request.answer_start + (self.anchor_position or 0)
        if at + len(ids) + self.skip >= len(request.tokens):
            raise UserError(
                f"sampler.anchor_position={self.anchor_position} leaves no room for an answer in {len(request.tokens)} "
                "columns. Choose a smaller one."
            )
        self.begin = (self.anchor_position or 0) + len(ids) + self.skip
        return given(request, dict(enumerate(ids, start=at)))

    def needs(self) -> tuple[Need, ...]:
        gap = frozenset({"gap"})
        span = (self.begin or 0, (self.begin or 0) + self.length)
        extra: dict[str, tuple[Need, ...]] = {
            "none": (),
            "all_masked": (Need("answer", statistics=gap),),
            "anchor": (Need("answer"), Need("answer", committed=True, statistics=gap)),
            "offset": (Need("answer"), Need("answer", True, span, statistics=gap)),
        }
        return (*self.inner.needs(), *extra[self.region])

    def check(self, setting: Setting) -> None:
        self.inner.check(setting)
        if self.region == "offset" and setting.gen_length is not None:
            in_range("sampler.start", self.begin, 0, setting.gen_length - 1, "It is a position of the answer.")

    def start(self, canvas: Canvas, blocks: Blocks) -> State:
        masks, turns = canvas.undecided.sum(1), self.inner.turns(canvas)
        own = {"prophet.masks": masks, "prophet.turns": masks if turns is None else turns,
               "prophet.adaptive": torch.full_like(masks, turns is None)}  # fmt: skip
        return {**self.inner.start(canvas, blocks), **own}

    def propose(self, view: View, state: State) -> Step:
        """The test runs on every forward, also on those after which nothing is open; it comes before the commit."""
        step = self.inner.propose(view, state)
        if self.region == "none":
            return step
        sure = self.gap(view) >= self.bar(view, state)
        rest = view.canvas.undecided & view.scores.known & sure[:, None]
        accepted = None if step.accepted is None else step.accepted | rest
        return replace(step, commit=step.commit | rest, accepted=accepted, next=None, stop=sure)

    def gap(self, view: View) -> Tensor:
        """Mean top-2 logit gap over the region [B]; below every bar where nothing of it is scored."""
        relative = view.canvas.columns - view.canvas.start[:, None]
        first = self.begin or 0
        region = view.canvas.undecided if self.region == "all_masked" else (
            (relative >= first) & (relative < first + self.length) & view.canvas.valid)  # fmt: skip
        scored = region & view.scores.known
        mean = (view.scores.stat("gap") * scored).sum(1) / scored.sum(1)
        return torch.where(scored.any(1), mean, -torch.inf)

    def bar(self, view: View, state: State) -> Tensor:
        done = view.blocks.turn / state["prophet.turns"]
        committed = 1 - view.canvas.undecided.sum(1) / state["prophet.masks"]
        done = torch.where(state["prophet.adaptive"] > 0, torch.maximum(done, committed), done)
        early, middle, late = self.thresholds
        return torch.where(done < self.breakpoints[0], early, torch.where(done < self.breakpoints[1], middle, late))


def given(request: Request, tokens: Mapping[int, int]) -> Request:
    """The request with some canvas positions fixed from the start."""
    ids: list[Any] = [tokens.get(at, token) for at, token in enumerate(request.tokens)]
    masked = [hidden and at not in tokens for at, hidden in enumerate(request.masked)]
    return replace(request, tokens=ids, masked=masked)
