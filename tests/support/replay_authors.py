"""The parts for decodes that the authors' own code of a rule has made, where this project's rule was a paper's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from accidents import accident, stand_in
from replay_caches import suffix
from replay_d3llm import d3llm
from replay_parts import Case, CaseParts, steps_of_a_block
from torch import Tensor

from dllm.parts import (
    DUS,
    PC,
    AllLogits,
    BlockState,
    CacheView,
    Canvas,
    Confidence,
    EntropyBound,
    Factor,
    Fixed,
    ForwardPlan,
    Growing,
    Need,
    Owner,
    Recap,
    Saber,
    Sampler,
    SamplerTraits,
    Schedule,
    SlowFast,
    Spaced,
    State,
    Step,
    View,
    Whole,
    rank,
    ranking,
    ranking_statistics,
    top_k_mask,
)

EOS = 61


def eb(params: Case) -> CaseParts:
    """pc-sampler: the whole answer, gamma in nats; dus: blocks, gamma in bits."""
    if params["form"] == "dus":
        return CaseParts(EntropyBound(params["gamma"] * math.log(2)), Fixed(params["block_length"]))
    return CaseParts(EntropyBound(params["gamma"]), Whole())


@accident("the last rank is never committed together with the others")
class NeverLast(Factor):
    """d2Cache's factor rule: the bound is strict, and the last rank is left out even where all pass it."""

    def step(self, view: View, state: State) -> Step:
        ranked, place = rank(view.scores.confidence, view.open)
        number = torch.arange(1, ranked.shape[1] + 1, device=ranked.device)
        passes = (number + 1) * (1 - ranked) < state["factor"][:, None]
        count = torch.minimum(passes.cumprod(1).sum(1), view.open.sum(1) - 1).clamp(min=1)
        return view.step(view.open & (place < count[:, None]))


def pc(params: Case) -> CaseParts:
    """The table is one of the file's ``baselines``."""
    with NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(params["baselines"][params["baseline"]], file)
        file.flush()
        rule = PC(params["lambd"], params["alpha"], str(Path(file.name)), params["steps"])
    return CaseParts(rule, Fixed(params["block_length"], min_forwards=steps_of_a_block(params)))


def saber(params: Case) -> CaseParts:
    if "block_length" in params:
        return CaseParts(Saber(params["n"]), Growing(params["block_length"]))
    if penalty := params.get("eos_penalty", 0.0):
        return CaseParts(Penalised(penalty, params["steps"]), Whole())
    return CaseParts(Saber(form="dream"), Whole())


@accident("an end of text is penalised where it is proposed, not where it is doubted")
class Penalised(Saber):
    """Dream's program adds to the logit of an end of text where it proposes, less with every forward; it does not where
    it doubts. For one row."""

    def __init__(self, penalty: float, steps: int, eps: float = 1e-3) -> None:
        super().__init__(form="dream")
        self.added = penalty * torch.log(1 - torch.linspace(1, eps, steps + 1) + eps)

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), Need(reads=(AllLogits(),)))

    def step(self, view: View, state: State) -> Step:
        logits = view.scores.of(AllLogits()).spread(view.open.shape[1]).double()
        own = logits.softmax(-1)
        logits[..., EOS] += self.added[int(view.blocks.turn[0]) - 1]
        best = logits.softmax(-1).max(-1)
        self.own = own.gather(-1, best.indices[..., None])[..., 0]
        scores = replace(view.scores, token=best.indices, confidence=best.values)
        return super().step(replace(view, scores=scores), state).but(tokens=best.indices)

    def _doubted(self, view: View, state: State, chosen: Tensor) -> tuple[Tensor, State]:
        return super()._doubted(replace(view, scores=replace(view.scores, confidence=self.own)), state, chosen)


def dus(params: Case) -> CaseParts:
    """Levels, or a rule thinned out by the spacing filter. A column that the published loop withholds stays a mask."""
    blocks = Fixed(params["block_length"])
    if params["sampler"] != "scheduled":
        inner = (
            Confidence(params["tau"])
            if params["sampler"] == "cb_spaced"
            else EntropyBound(params["gamma"] * math.log(2))
        )
        return CaseParts(Spaced(inner, params["start_stride"]), blocks)
    rule = DUS(params["base"], params["base_skip"], params["scheduler"])
    if params["confidence_threshold"]:
        rule = Withholding(params["base"], params["base_skip"], params["scheduler"], params["confidence_threshold"])
        levels = int(rule.table(params["block_length"], torch.device("cpu"))[-1].max()) + 1
        blocks = Leaving(params["block_length"], min_forwards=levels)
    return CaseParts(rule, blocks)


@accident("what is unsure in its level is never visited again")
class Withholding(DUS):
    """What is below the threshold in its level is never visited again."""

    def step(self, view: View, state: State) -> Step:
        width = state["offsets"].shape[1]
        offset = (view.canvas.columns - view.blocks.begin[:, None]).clamp(0, width - 1)
        level = self.table(width, offset.device)[-1][offset]
        sure = (view.scores.confidence >= self.threshold) | (level == level.amax(1, keepdim=True))
        return view.step(view.open & (level == view.block_step[:, None]) & sure)


@accident("a block closes with masks in it")
class Leaving(Fixed):
    """A block closes after its forwards, with masks inside."""

    traits = Fixed.traits

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        ran_out = (blocks.forwards >= blocks.params["min_forwards"])[:, None]
        left = candidates.masked & ~(ran_out & (candidates.columns < blocks.end[:, None]))
        rest = replace(candidates, masked=left)
        return super().advance(rest, blocks, owner, blocks.full(rest, owner), stopped)


@accident("every forward computes the first column")
class ClassToken(Recap):
    """The first column stands for the class token, which every forward computes."""

    def plan(self, view: CacheView) -> ForwardPlan:
        plan = super().plan(view)
        return replace(plan, columns=plan.columns | (view.canvas.columns == 0))


@accident("all slow forwards are taken, of a full block too")
class AllSlow(SlowFast):
    """The published loop takes all its slow forwards, of a full block too."""

    traits = SlowFast.traits.but(edits=True)

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        zero = torch.zeros_like(canvas.start)
        return super().start(canvas, blocks) | {"phase": zero, "fixed": zero}

    def step(self, view: View, state: State) -> Step:
        step = super().step(view, state)
        new, cycle = step.state, step.state["cycle"]
        phase = torch.where(cycle <= self.explore, 1, 2)
        mean = (cycle == self.explore) & (new["seen"] >= self.window)  # the last mean is final
        shown = {"phase": phase, "fixed": new["settled"] | mean.long()}
        return step.but(edit=view.canvas.no_positions, keep_open=cycle < self.explore, state=new | shown)


CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda r: 1 - r,
    "cosine": lambda r: math.cos(math.pi * r / 2),
    "square": lambda r: (1 - r) ** 2,
    "log": lambda r: 1 - math.log(1 + 9 * r) / math.log(10),
}


@stand_in
class Timesteps(Sampler):
    """A curve says how many masks each turn leaves; turns that leave as many as there were commit nothing."""

    traits = SamplerTraits(stateless=True, deterministic=False, by_confidence=False, patience=99)

    def __init__(self, steps: int, curve: str, score: str) -> None:
        self.steps, self.curve, self.score = steps, CURVES[curve], score

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=ranking_statistics(self.score)),)

    def step(self, view: View, state: State) -> Step:
        turn, length = int(view.blocks.turn[0]), int(view.canvas.initial_end[0] - view.canvas.start[0])
        left = round(self.curve(turn / self.steps) * length) if turn < self.steps else 0
        count = (view.open.sum(1) - left).clamp(min=0)
        return view.step(top_k_mask(ranking(view.scores, self.score), view.open, count))


METHODS: dict[str, Callable[[Case], CaseParts]] = {
    "d3llm": d3llm,
    "dus": dus,
    "easing": suffix,
    "eb": eb,
    "pc": pc,
    "saber": saber,
}
