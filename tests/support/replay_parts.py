"""The parts of this project for each recorded decode: one function for every method of the golden files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from accidents import accident, permitted, permitted_class, stand_in
from torch import Tensor

from dllm.parts import (
    DKV,
    TACG,
    WEIGHTS,
    Blocks,
    BlockState,
    Cache,
    Canvas,
    Confidence,
    Dawn,
    DKVGreedy,
    DKVPrefill,
    Dream,
    Dual,
    Elastic,
    EndOfText,
    EosTraits,
    EoTP,
    FillAfterBlock,
    Fixed,
    Forward,
    FreeDave,
    FullLength,
    JointThreshold,
    Learn2PD,
    NoCache,
    Order,
    Owner,
    Parts,
    Prefix,
    Prophet,
    Sampler,
    SamplerTraits,
    Sampling,
    Scores,
    SlidingCache,
    State,
    Static,
    Step,
    StopAtEos,
    View,
    Whole,
    answer_ends,
    top_k_mask,
)

Case = Mapping[str, Any]


@dataclass(frozen=True)
class CaseParts(Parts):
    """What a case decodes with, in this project's words."""

    blocks: Blocks = field(default_factory=Whole)
    cache: Cache = field(default_factory=NoCache)
    eos: EndOfText = field(default_factory=FullLength)
    sampling: Sampling = field(default_factory=lambda: Sampling(suppress_mask=False))
    given: Mapping[int, int] = field(default_factory=dict)
    turns: int | None = None  # at most
    forward: type[Forward] = Forward
    fills_up: int = 1  # the canvas has a multiple of so many columns, prompt included
    whole_blocks: int = 1  # the answer is cut to a multiple of so many columns
    tail: int = 0  # ends of text count as masks behind it, up to the next multiple of so many columns

    def __post_init__(self) -> None:
        """Accidents that a replay does not lay in give way to the shipped parts."""
        for name in ("sampler", "blocks", "cache", "eos"):
            object.__setattr__(self, name, permitted(getattr(self, name)))
        object.__setattr__(self, "forward", permitted_class(self.forward))


def steps_of_a_block(params: Case) -> int:
    """LLaDA's loop always runs this many forwards on a block."""
    return int(params["steps"] // (params["gen_length"] // params["block_length"]))


def prophet(params: Case) -> CaseParts:
    """The region is relative to the answer; constraints are tokens of the answer given from the start."""
    region = {"region": "none"} if params["answer_start"] is None else {"region": "offset"}
    sampler = Prophet(
        Static(params["steps"]),
        params["thresholds"],
        params["breakpoints"],
        start=params["answer_start"],
        length=params["answer_length"],
        **region,
    )
    given = {int(at): token for at, token in (params["constraints"] or {}).items()}
    return CaseParts(sampler, Fixed(params["block_length"], min_forwards=steps_of_a_block(params)), given=given)


def learn2pd(params: Case) -> CaseParts:
    sampler: Sampler = Static(params["steps"])
    if params["filter"] is not None:
        weights = {name: torch.tensor(params["filters"][params["filter"]][name]) for name in WEIGHTS}
        sampler = Learn2PD(weights, params["accept_threshold"], params["steps"])
    eos = EoTP("suffix" if params["cache"] == "none" else "block") if params["eotp"] else FullLength()
    return CaseParts(sampler, Fixed(params["block_length"]), CACHES[params["cache"]](), eos)


def freedave(params: Case) -> CaseParts:
    threshold, length = params["confidence_threshold"], params["block_length"]
    inner = Static(params["gen_length"]) if threshold is None else Confidence(threshold)
    eos = FillAfterBlock("all") if params["early_exit"] else FullLength()
    sampler = FreeDave(inner, params["draft_steps"], as_published=threshold is not None)
    blocks = Fixed(length) if threshold is None else Verified(length)
    return CaseParts(sampler, blocks, CACHES[params["cache"]](), eos)


@accident("a draft that fills its block is verified, too")
class Verified(Fixed):
    """With a threshold FreeDave's published loop verifies a draft that fills its block, too, unless one token did.
    For one row."""

    traits = Fixed.traits

    def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
        self.left = int((canvas.undecided & blocks.in_block).sum())
        return blocks

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        stays = self.left > 1 and not bool(stopped.any())
        return blocks if stays else super().advance(candidates, blocks, owner, full, stopped)


def published(kind: type[Cache]) -> Callable[[], Cache]:
    """The published cached loops of Fast-dLLM, AdaBlock, FreeDave and Learn2PD: the quirks on."""
    return (
        (lambda: Dual(query_left=False, keep_stale_tail=True)) if kind is Dual else (lambda: Prefix(query_left=False))
    )


CACHES: dict[str, Callable[..., Cache]] = {
    "none": NoCache,
    "prefix": published(Prefix),
    "dual": published(Dual),
    "dsb": partial(SlidingCache, as_published=True),
}


def dkv_decode(params: Case) -> CaseParts:
    """LLaDA: fixed schedule per block. Dream: its time grid over the whole answer, cache_type decoded or prefill."""
    interval, steps = params.get("cache_refresh_interval", 8), params["steps"]
    if "alg" not in params:
        blocks = Fixed(params["block_length"], min_forwards=steps_of_a_block(params))
        return CaseParts(Static(steps), blocks, DKV(interval))
    kinds = {
        "decoded": DKV(interval, params["shift_type"]),
        "prefill": DKVPrefill(False, interval, params["shift_type"]),
    }
    sampling = Sampling(suppress_mask=False, tempered=True)
    return CaseParts(
        Dream(params["alg"], steps, params.get("eps", 1e-3)),
        Whole(min_forwards=steps),
        kinds[params["cache_type"]],
        sampling=sampling,
    )


def dkv_greedy(params: Case) -> CaseParts:
    """The reference draws an order per block; the files record it."""
    order = [at for block in params["denoising_order"] for at in block]
    blocks = Fixed(params["block_length"], min_forwards=steps_of_a_block(params))
    return CaseParts(
        Order(order, params["steps"]), blocks, DKVGreedy(params["cache_refresh_interval"], params["window_size"])
    )


def elastic(params: Case) -> CaseParts:
    """Without a threshold so many tokens a step; a gamma outside [0, 1], which the option refuses, never or always
    triggers and is set behind its back."""
    options = {key: params[key] for key in ("window_length", "track_num", "similarity", "block_caching")}
    policy = Elastic(**options)
    policy.gamma = params["gamma"]
    if params["threshold"] is None:
        sampler: Sampler = EachTurn(params.get("tokens_per_iter", 1))
    else:
        sampler = Confidence(params["threshold"])
    return CaseParts(sampler, Whole(), policy, StopAtEos())


def dawn(params: Case) -> CaseParts:
    """The tiny models have four layers. Dream's code reads the attention of the position's own row."""
    sampler = Dawn(
        0.9,
        params["tau_induce"],
        params["tau_low"],
        params["tau_edge"],
        params["tau_sink"],
        layers=4 - params["first_attention_layer"],
        unshifted=True,
    )
    return CaseParts(sampler, Fixed(params["block_length"]))


def tacg(params: Case) -> CaseParts:
    """LLaDA: the gate, over blocks, with histories from the first forward on. Dream: extras, over the whole answer."""
    names = {
        "threshold": "conf_threshold",
        "floor": "tilg_extra_conf_floor",
        "ratio": "tilg_extra_ratio",
        "most": "tilg_extra_max",
        "without_base": "tilg_extra_allow_empty_base",
        "streak": "history_gate_min_streak",
        "escape": "history_gate_confidence_escape",
        "bonus": "tilg_rerank_lambda",
        "guidance_weight": "guidance_weight",
        "decay": "tilg_ema_decay",
        "kl_turns": "kl_history_length",
    }
    options = {ours: params[theirs] for ours, theirs in names.items()}
    if "block_length" not in params:
        return CaseParts(TACG("extras", **options))
    kl = params["kl_threshold"] if params["kl_threshold"] < 1e3 else None
    return CaseParts(TACG("gate", **options, kl=kl, history="answer"), Fixed(params["block_length"]))


def joint_threshold(params: Case) -> CaseParts:
    """Three codes: the model's own (published), sglang's and diffusers', whose 0 edits nothing."""
    form, edit = params["form"], params["edit_threshold"]
    rule, options = {"published": JointThreshold, "sglang": LastWithout, "diffusers": Spread}[form], dict[str, Any]()
    if form == "published":
        options["minimum"] = params["num_to_transfer"]
    elif form == "sglang":
        options["penalty"] = float(params["penalty_lambda"])
    else:
        edit = edit or None
    sampler = rule(params["threshold"], edit, params["max_post_edit_steps"] + (form != "published"), **options)
    if isinstance(sampler, Spread):
        sampler.quotas = params["block_length"], params["num_inference_steps"]
    eos = StopAfterBlock() if params.get("eos_early_stop") else FullLength()
    return CaseParts(sampler, Fixed(params["block_length"]), eos=eos, fills_up=params["block_length"])


@accident("the forward that exceeds the count runs, and edits nothing")
class LastWithout(JointThreshold):
    """sglang tests its count after a forward: the one that exceeds it still runs, and edits nothing."""

    def step(self, view: View, state: State) -> Step:
        step = super().step(view, state)
        assert step.edit is not None
        return step.but(edit=step.edit & (step.state["forwards"] < self.post_edit_steps)[:, None])


@accident("columns are spread over forwards, the first ones one more")
class Spread(JointThreshold):
    """diffusers spreads a block's columns over its forwards with masks, the first ones one more, and runs one forward
    on a full block even where nothing is edited."""

    quotas = (1, 1)

    def least(self, view: View) -> Tensor:
        columns, steps = self.quotas
        return columns // steps + (view.block_step < columns % steps).long()

    def step(self, view: View, state: State) -> Step:
        step = super().step(view, state)
        return step.but(keep_open=step.keep_open | (view.canvas.undecided & view.blocks.in_block).any(1))


@stand_in
class StopAfterBlock(EndOfText):
    """LLaDA2.1's eos_early_stop: what follows a finished block is left masked once there is an end of text."""

    traits = EosTraits(fills=True, at_once=False, shrinks=False)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        closes = ~(candidates.undecided & view.blocks.in_block).any(1) & ~step.keep_open
        ended = answer_ends(candidates, ends).any(1)
        return candidates.stop_at(view.blocks.end, closes & ended, attended=True)


@stand_in
class EachTurn(Sampler):
    """So many positions every turn, the surest first: no schedule that spreads what does not divide."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    def __init__(self, count: int) -> None:
        self.count = count

    def step(self, view: View, state: State) -> Step:
        return view.step(top_k_mask(view.scores.confidence, view.open, torch.full_like(view.canvas.start, self.count)))


METHODS: dict[str, Callable[[Case], CaseParts]] = {
    "prophet": prophet,
    "learn2pd": learn2pd,
    "freedave": freedave,
    "dkv_decode": dkv_decode,
    "dkv_greedy": dkv_greedy,
    "elastic": elastic,
    "tacg": tacg,
    "joint_threshold": joint_threshold,
    "dawn": dawn,
}
# What is no decode of a model, and by which script it is replayed.
ELSEWHERE = {
    "constrained": "tests/constraints.py",
    "rl_logprobs": "tests/rollouts.py",
    "rope_scaling": "tests/rope_scaling.py",
}
