"""Follow the inner rule, and commit every mask once the logit gap is wide (Prophet, arXiv 2508.19982)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from dllm.common.errors import Refusal, Set, in_choices, in_range, name_of
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, Request
from dllm.contract.clash import Clash
from dllm.contract.readouts import Statistic
from dllm.contract.setting import Setting, replaced
from dllm.contract.traits import Schedule
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper


class Prophet(Wrapper):
    """Commit every mask of the row when the mean top-2 logit gap over the answer region reaches the threshold.

    thresholds: while progress is below the first of ``breakpoints``, while it is below the second, and after. Progress
    is the number of turns over the nominal number. For an adaptive inner rule it is the share of committed positions,
    if that is larger. region: ``offset`` (``length`` positions from answer position ``start``), ``anchor``
    (``anchor_text`` is written at ``anchor_position``, and the region begins ``skip`` tokens after it), ``all_masked``
    (an extension: all positions still masked) or ``none`` (the inner rule alone). A row that commits everything goes on
    with the first candidate alone.
    """

    clashes = (
        Clash(
            lambda c: (
                c.part.region == "offset"
                and c.gen_length is not None
                and not 0 <= c.part.begin < c.gen_length
                and {"sampler.start": c.part.begin, "last": c.gen_length - 1}
            ),
            "{sampler.start} must lie in [0, {last:value}].",
            (),
            "It is a position of the answer.",
        ),
        Clash(
            lambda c: c.part.region == "anchor" and c.gen_length is not None and (c.part.begin or 0) >= c.gen_length,
            "{sampler.anchor_position} leaves no room after the anchor in an answer of {gen_length:value} positions.",
            (),
            "Choose a smaller one.",
        ),
    )

    def __init__(
        self,
        inner: Sampler,
        thresholds: Sequence[float] = (7.5, 5.0, 2.5),
        breakpoints: Sequence[float] = (0.33, 0.67),
        region: str = "all_masked",
        start: int | None = None,
        length: int = 5,
        anchor_text: str | None = None,
        anchor_position: int | None = None,
        skip: int = 1,
    ) -> None:
        if len(thresholds) != 3 or len(breakpoints) != 2:
            raise Refusal(
                "{sampler.thresholds:name} needs 3 numbers (early, middle, late), {sampler.breakpoints:name} 2."
            )
        in_choices("sampler.region", region, ("none", "offset", "anchor", "all_masked"))
        if region == "offset" and start is None:
            raise Refusal("{sampler.region=offset} needs {sampler.start:name}, the region's first answer position.")
        if region == "anchor" and (anchor_text is None or anchor_position is None):
            raise Refusal(
                "{sampler.region=anchor} needs {sampler.anchor_text:name} and {sampler.anchor_position:name}."
            )
        in_range("sampler.length", length, 1, advice="It counts positions.")
        if inner.traits.revocable or inner.traits.edits:
            raise Refusal(
                "{sampler} commits everything at once, which {sampler/inner} would mask or replace again. Use an "
                "inner sampler that keeps what it commits, such as static, confidence or localleap.",
                [name_of(self), name_of(inner)],
            )
        in_range("sampler.breakpoints", breakpoints, 0.0, 1.0)
        in_range("sampler.anchor_position", anchor_position, 0)
        in_range("sampler.skip", skip, 0)
        super().__init__(inner)
        self.traits = self.traits.but(commits_ahead=True)
        self.thresholds, self.breakpoints = tuple(thresholds), tuple(breakpoints)
        self.region, self.begin, self.length = region, start, length
        self.anchor_text, self.anchor_position, self.skip = anchor_text, anchor_position or 0, skip
        self.anchor: tuple[int, ...] = ()  # the text's ids, which ``resolved`` finds

    def resolved(self, setting: Setting) -> Sampler:
        wrapped = super().resolved(setting)
        if self.region != "anchor":
            return wrapped
        if setting.ids_of is None:
            raise Refusal(
                "{sampler.anchor_text:quoted} is text, and this model has no tokenizer.",
                [self.anchor_text],
                (Set("sampler.region", "offset"),),
            )
        lead = " " * (self.anchor_position > 0)  # as in the released code, where text is before it
        ids = setting.ids_of(f"{lead}{self.anchor_text}")
        return replaced(wrapped, anchor=tuple(ids), begin=self.anchor_position + len(ids) + self.skip)

    def prepare(self, request: Request) -> Request:
        """The request with the anchor as given tokens. Raises UserError if the answer has no room for it."""
        request = super().prepare(request)
        if self.region != "anchor":
            return request
        assert self.anchor, "resolved() comes before prepare()"
        if (self.begin or 0) >= (length := len(request.tokens) - request.answer_start):
            raise Refusal(
                f"{{sampler.anchor_position}} leaves no room after the anchor in an answer of {length} positions. "
                "Choose a smaller one.",
                [self.anchor_position],
            )
        return with_tokens(request, dict(enumerate(self.anchor, start=request.answer_start + self.anchor_position)))

    def needs(self) -> tuple[Need, ...]:
        if self.region == "none":
            return super().needs()
        gap = Statistic.of("gap")
        if self.region == "all_masked":
            return (*super().needs(), Need("answer", reads=gap))
        span = None if self.begin is None else (self.begin, self.begin + self.length)
        return (*super().needs(), Need("answer"), Need("answer", True, span, reads=gap))

    def warning(self, setting: Setting) -> str | None:
        if self.region != "all_masked":
            return None
        return (
            f"sampler.region={self.region}: the ends of text after a short answer look sure from the start, and then "
            f"sampler={name_of(self)} commits everything at once: mini-llada gets 63 % right, and 97 % with "
            "sampler.region=none. Set that, or name the columns of the answer itself (sampler.region=offset "
            "sampler.start=N sampler.length=M)."
        )

    def shared(self) -> Mapping[str, Tensor | Module]:
        """bars [3], breaks [2]: thresholds and breakpoints."""
        bars, breaks = (torch.tensor(values, dtype=torch.float64) for values in (self.thresholds, self.breakpoints))
        return {**super().shared(), "bars": bars, "breaks": breaks}

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """masks [B]: those of the row. turns [B]: its nominal number. adaptive [B]: whether that is a guess."""
        masks, turns = canvas.undecided.sum(1), self.inner.turns(canvas)
        return super().start(canvas, blocks) | {
            "masks": masks,
            "turns": masks if turns is None else turns,
            "adaptive": torch.full_like(canvas.shortened, turns is None),
        }

    def propose(self, view: View, state: State) -> Step:
        """Test the gap of every forward, before its commits, even if nothing is open."""
        step = super().propose(view, state)
        if self.region == "none":
            return step
        sure = self.gap(view) >= self.bar(view, state)
        step = step.alone(sure)
        masks = step.owner.per_candidate(view.canvas.undecided & view.scores.scored & sure[:, None])
        accepted = None if step.accepted is None else step.accepted | masks
        return step.but(commit=step.commit | masks, accepted=accepted, stop=sure | step.stop)

    def gap(self, view: View) -> Tensor:
        """Mean top-2 logit gap over the region [B]; -inf where no position of it is scored."""
        relative = view.canvas.columns - view.canvas.start[:, None]
        first = self.begin or 0
        region = (
            view.canvas.undecided
            if self.region == "all_masked"
            else ((relative >= first) & (relative < first + self.length) & view.canvas.valid)
        )
        scored = region & view.scores.scored
        mean = (view.scores.statistic("gap") * scored).sum(1) / scored.sum(1)
        return torch.where(scored.any(1), mean, -torch.inf)

    def bar(self, view: View, state: State) -> Tensor:
        """The threshold that the gap must reach in this turn [B]."""
        progress = view.blocks.turn / state["turns"]
        committed = 1 - view.canvas.undecided.sum(1) / state["masks"]
        progress = torch.where(state["adaptive"], torch.maximum(progress, committed), progress)
        return view.shared.tensor("bars")[(progress[:, None] >= view.shared.tensor("breaks")).sum(1)]


def with_tokens(request: Request, tokens: Mapping[int, int]) -> Request:
    """The request with ``tokens``, by canvas position, given from the start."""
    ids: list[Any] = [tokens.get(at, token) for at, token in enumerate(request.tokens)]
    masked = [hidden and at not in tokens for at, hidden in enumerate(request.masked)]
    return replace(request, tokens=ids, masked=masked)
