"""The parts for recorded decodes of caches, with what only their published loops do, by accident."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from accidents import accident
from replay_parts import Case, CaseParts, EachTurn
from torch import Tensor

from dllm.parts import (
    BlockState,
    CacheView,
    Canvas,
    Confidence,
    D2Cache,
    Dual,
    Easing,
    FillAfterBlock,
    Fixed,
    FlashVerify,
    ForwardPlan,
    FullLength,
    NoCache,
    Owner,
    Prefix,
    Prior,
    Pruning,
    Sampler,
    Sampling,
    Scores,
    Sliding,
    SlidingCache,
    State,
    Static,
    StopAtLastEos,
    VerifiedFlashDLLM,
    Whole,
    replaced,
)


def vicinity(params: Case) -> CaseParts:
    """Tests of a block, and records of refreshes, as late as in the published loop."""
    policy = Recorded(
        prefix_look=params["prefix_look"],
        after_look=params["after_look"],
        warmup=params["warmup_steps"],
        refresh_interval=params["cache_update_freq"],
    )
    blocks = Unrolled(params["block_length"], policy, params["expected_tpf"], params["maximum_unroll"])
    eos = FillAfterBlock("any") if params["early_stop"] else FullLength()
    return CaseParts(Confidence(params["threshold"]), blocks, policy, eos)


@accident("the first refresh is not noted, and a window forward follows upon every full one")
class Recorded(Dual):
    """dInfer's record of the block that was refreshed last: the first refresh leaves it unset, and a window forward
    follows upon every full one. For one row."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.block, self.refreshes = -1, False

    def full(self, view: CacheView) -> Tensor:
        blocks, state = view.blocks, view.state
        number, turn = int(blocks.index), int(blocks.turn)
        begins, opens = not bool(state["kept"]), number > 0 and number != self.block
        due = self.refresh_interval is not None and turn % self.refresh_interval == 0 and number > 0
        full = turn >= self.warmup and not bool(state["refreshed"]) and (begins or opens or due)
        self.block = number if full and not begins else self.block
        self.refreshes = full
        return torch.full_like(state["kept"], full)


@accident("blocks are tested after groups of forwards")
class Unrolled(Fixed):
    """dInfer's loop tests a block after groups of iterations; a full and a window forward are one. For one row."""

    traits = Fixed.traits.but(one_at_a_time=False)

    def __init__(self, block_length: int, policy: Recorded, expected: int, most: int) -> None:
        super().__init__(block_length)
        self.policy, self.expected, self.most, self.left = policy, expected, most, 0

    def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
        if self.left == 0:
            masks = int((canvas.undecided & blocks.in_block).sum())
            self.left = min(max(masks // self.expected, 1), self.most)
        return blocks

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        self.left -= not self.policy.refreshes
        return blocks if self.left else super().advance(candidates, blocks, owner, full, stopped)


def suffix(params: Case) -> CaseParts:
    """DPad's draws are input: they come from the case. Every forward is followed by a test; a full block that holds an
    end of text ends the row. Dream's published loop commits a block's first position from the forward that opens it."""
    kept, length = params["shown"].get("kept"), params["block_length"]
    cache: type[Pruning] = {"none": NoCache, "prefix": Prefix, "dual": Dual}[params["cache"]]
    options: dict[str, Any] = {} if cache is NoCache else {"query_left": False}
    if params["reference"] == "streaming":
        policy = cache(suffix_window=params["window_size"], suffix_tail=1, **options)
        kept = None
    else:
        policy = cache(suffix_window=params["window"], suffix_tail=0, **options)
    if kept is not None:
        policy = replaced(policy, stays=drawn(kept))
    sampler: Sampler = Static(params["steps"]) if params["threshold"] is None else Confidence(params["threshold"])
    if params.get("confidence_alpha"):
        behind = params["cache"] != "dual"
        sampler = Easing(params["threshold"], params["confidence_alpha"], params["window_size"], behind)
    return CaseParts(sampler, Fixed(length), policy, FillAfterBlock("any"), Sampling(suppress_mask=False))


def drawn(kept: list[list[int]]) -> Callable[[Canvas, BlockState], Tensor]:
    """Of the block of each number, the columns of the answer that stay. For one row."""

    def of(canvas: Canvas, blocks: BlockState) -> Tensor:
        at = torch.tensor(kept[int(blocks.index)], dtype=torch.int64, device=canvas.tokens.device) + canvas.start
        return canvas.no_positions.scatter(1, at[None], True)

    return of


def each_turn(params: Case) -> Sampler:
    """d2Cache's sampler: all that reach a threshold and at least so many, or without one exactly so many."""
    count, threshold = params["num_transfer_tokens"], params["threshold"]
    assert threshold is None or count == 1
    return EachTurn(count) if threshold is None else Confidence(threshold)


def d2cache(params: Case) -> CaseParts:
    """reference_quirks: the published code as it is, else with these two repaired."""
    kind = Unrepaired if params["reference_quirks"] else D2Cache
    policy = kind(params["current_k"], params["rollout_p"], params["cache_sigma"], params["inflate_w"])
    sampler = each_turn(params)
    if params["decoding_sigma"] is not None:
        sampler = Prior(sampler, params["decoding_sigma"], over_thresholds=True)
    return CaseParts(sampler, Fixed(params["block_length"]), policy)


@accident("confidences of the first forward stay, and the test of a full block leaves out what was masked")
class Unrepaired(D2Cache):
    """d2Cache's code never updates the confidences of the first forward, and its test of whether a block is full leaves
    of the block what was still masked."""

    def after_scores(self, state: State, scores: Scores) -> State:
        first = ~state["confidence"].any(1, keepdim=True)
        return {name: torch.where(first, new, state[name]) for name, new in super().after_scores(state, scores).items()}

    def priority_columns(self, canvas: Canvas, blocks: BlockState) -> Tensor:
        return blocks.in_block & canvas.masked


def flash_verify(params: Case) -> CaseParts:
    """The published loop verifies in every second forward, with no drafts too. tail: end-of-text tokens that count as
    masks, up to the next multiple of 128."""
    policy = VerifiesAlways(params["block_length"], params["mask_num"], params["track_num"])
    sampler, tail = FlashVerify(params["threshold"], params["gamma"]), 128 if params["tail"] else 0
    return CaseParts(sampler, InPairs(), policy, StopAtLastEos(), tail=tail)


@accident("every second forward verifies, with no drafts too")
class VerifiesAlways(VerifiedFlashDLLM):
    def verifies(self, view: CacheView, laid: Tensor) -> Tensor:
        return view.blocks.turn % 2 == 1


@accident("the answer is found finished by forwards that verify")
class InPairs(Whole):
    """The answer is found finished by forwards that verify. For one row."""

    traits = Whole.traits

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        return blocks if bool(blocks.turn % 2) else super().advance(candidates, blocks, owner, full, stopped)


def dsb(params: Case) -> CaseParts:
    """The published window, whose first one is block_length wide even if max_block_length is less, and which looks for
    its begin below its old end. suffix_window: masks of that window may be committed, too, a slip of the source."""
    bound, suffix = params["max_block_length"], params["suffix_window"]
    sampler, blocks = Confidence(params["threshold"]), Sliding(params["block_length"], None if bound == -1 else bound)
    if not params["cached"]:
        return CaseParts(sampler, blocks)
    slid = Slid(params["block_length"], None if bound == -1 else bound, suffix)
    return CaseParts(sampler, slid, Slipped(params["prefix_window"], suffix, as_published=True))


@accident("the first window has the block's length, the next begins below its old end")
class Slid(Sliding):
    """For one row."""

    traits = Sliding.traits.but(one_at_a_time=False)  # of another window, more may be committed

    def __init__(self, block_length: int, max_block_length: int | None, suffix: int) -> None:
        super().__init__(block_length, max_block_length)
        self.suffix, self.window = suffix, (0, 0)

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        (start,), (stop,), committed = canvas.start.tolist(), canvas.initial_end.tolist(), int(canvas.committed.sum())
        begin, end = start, start + self.block_length
        if committed:
            masks = canvas.undecided[0, self.window[0] : self.window[1]].nonzero()[:, 0]
            begin = self.window[0] + int(masks[0]) if len(masks) else self.window[1]
            end = start + self.block_length + committed
            end = end if self.max_block_length is None else min(end, begin + self.max_block_length)
        self.window = begin, min(end, stop)
        return torch.full_like(column, begin), torch.full_like(column, self.window[1]), torch.zeros_like(number)

    def _open_end(self, canvas: Canvas, end: Tensor, blocks: BlockState) -> Tensor:
        return torch.minimum(end + self.suffix, canvas.end)


@accident("masks behind the window may be committed")
class Slipped(SlidingCache):
    def plan(self, view: CacheView) -> ForwardPlan:
        plan = super().plan(view)
        inside = view.canvas.columns < view.blocks.end[:, None]
        return replace(plan, committable=plan.committable & (inside | ~plan.columns.all(1, keepdim=True)))


METHODS: dict[str, Callable[[Case], CaseParts]] = {
    "d2cache": d2cache,
    "dsb": dsb,
    "flash_verify": flash_verify,
    "suffix": suffix,
    "vicinity": vicinity,
}
