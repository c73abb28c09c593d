"""Attend to blocks of keys that are found once for each head (SparseD, arXiv 2509.24014).

Every forward computes every column, and nothing is kept but patterns: which blocks of keys each block of queries
attends to. The first forwards attend to everything. The last of them measures, in every layer and head, where the
attention of each block of queries goes. Blocks of the prompt and of the answer are chosen apart, since masks attract
little attention early on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.cache.base import AnySession, Cache, StaticSession
from dllm.cache.calls import Group, RowNumbers, rows_by_call
from dllm.cache.passes import Call, ForwardPass
from dllm.common.ranking import top_k_mask
from dllm.common.rowwise import Owner, join, select_or_all
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Need, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.setting import Setting
from dllm.contract.traits import CacheTraits, Rule
from dllm.errors import IncompatibleParts, UserError, in_choices, in_range, name_of
from dllm.models.attention import Visible
from dllm.models.config import ModelConfig
from dllm.models.experts import at_least_float32
from dllm.models.memory import DeviceCopies, Memory, NoCacheMemory, Projected

ALL_KEYS, MEASURES, BY_PATTERN = range(3)  # kinds of forwards of a row, in their order
TENSOR_CORES = 64  # a GPU multiplies smaller blocks no faster than the whole


class SparseD(Cache):
    """Forwards attend to everything until ``full_forwards`` of a row are done, and to its pattern from then on.

    full_forwards: their number, at least 2; None: those that start within the share ``skip`` of the row's ``steps``,
    and two more. steps: forwards of a decode (None: one for each mask). select: share of the key blocks that a block
    of queries attends to, of the prompt's and of the answer's each; one more is always chosen. block_size: columns of a
    block. measure_scale: by which products are multiplied where attention is measured: 1 / sqrt of the size of a head
    (``head_dim``), or of their number (``heads``, as LLaDA's published code).
    """

    traits = CacheTraits(
        regions=frozenset({"block", "suffix", "ahead", "answer"}), committed=True, full_on_open=False, heads="summed",
        acts_in_layers=True,
    )  # fmt: skip

    def __init__(
        self, select: float = 0.3, block_size: int = 128, skip: float = 0.2, steps: int | None = None,
        full_forwards: int | None = None, measure_scale: str = "head_dim",
    ) -> None:  # fmt: skip
        in_range("cache.block_size", block_size, 1, advice="It counts columns.")
        in_range("cache.skip", skip, 0.0, advice="It is a share of the steps.")
        in_range("cache.steps", steps, 1)
        in_range("cache.full_forwards", full_forwards, 2)
        in_choices("cache.measure_scale", measure_scale, ("head_dim", "heads"))
        if not 0 <= select < 1:
            raise UserError(f"cache.select={select} must be from 0 to below 1, since one block more is always chosen.")
        self.select, self.block_size, self.skip, self.steps = select, block_size, skip, steps
        self.full_forwards, self.measure_scale = full_forwards, measure_scale

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        own = getattr(sampler, "steps", None)
        if self.full_forwards is None and own is not None and own != self.steps:
            raise IncompatibleParts(
                f"cache={name_of(self)} counts the share cache.skip={self.skip} of cache.steps={self.steps}, and "
                f"sampler.steps is {own}. Set cache.steps={own}, or cache.full_forwards."
            )

    def warning(self, setting: Setting) -> str | None:
        if self.block_size >= TENSOR_CORES:
            return None
        return (
            f"cache.block_size={self.block_size} is below {TENSOR_CORES}: a GPU multiplies blocks as small no faster "
            "than all keys."
        )

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> AnySession:
        return PatternSession(self, canvas, config)


@dataclass(frozen=True)
class PatternCall(Call):
    """A call of rows whose forward is of one kind."""

    kind: int = ALL_KEYS  # of the forward of its rows: ALL_KEYS, MEASURES or BY_PATTERN
    valid: Tensor | None = None  # [b, L] columns of its rows
    answer: Tensor | None = None  # [b] first block that counts as answer


@dataclass(frozen=True)
class PatternPass(ForwardPass):
    """A forward, and how its rows attend."""

    kind: Tensor  # [B] ALL_KEYS, MEASURES or BY_PATTERN
    answer: Tensor  # [B] first block that counts as answer
    found: list[Tensor] = field(default_factory=list)  # by layer, the patterns of the rows that measured


class PatternSession(StaticSession[ForwardPlan, PatternPass]):
    """patterns: by layer, which blocks of keys each block of queries attends to, bool [B, H, blocks, blocks]. Of a row
    it remembers the number of its full forwards, ``full`` [B], and the first block that counts as answer."""

    def __init__(self, policy: SparseD, canvas: Canvas, config: ModelConfig) -> None:
        self.policy, self.config, self.row_numbers = policy, config, RowNumbers()
        self.rows, self.length = canvas.masked.shape
        self.patterns: list[Tensor] = []

    @property
    def blocks(self) -> int:
        """Blocks of a canvas of L columns."""
        return -(-self.length // self.policy.block_size)

    def remembers(self, canvas: Canvas) -> State:
        steps, given = canvas.undecided.sum(1), self.policy.steps
        steps = steps if given is None else torch.full_like(steps, given)
        full = (steps.double() * self.policy.skip).long() + 2  # as int(S skip) rounds in Python
        if self.policy.full_forwards is not None:
            full = torch.full_like(full, self.policy.full_forwards)
        size, length = self.policy.block_size, canvas.valid.sum(1)
        blocks, first = -(-length // size), -(-canvas.start // size)
        answer = torch.where(first < blocks, first, blocks - 1)
        return {"full": full, "answer": answer, "kind": torch.full_like(full, ALL_KEYS)}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, remembered: State) -> ForwardPlan:
        left = remembered["full"] - 1 - blocks.turn  # full forwards before the one that measures
        kind = torch.where(left > 0, ALL_KEYS, torch.where(left == 0, MEASURES, BY_PATTERN))
        state = blocks.shapes.update(blocks.active, {**remembered, "kind": kind}, remembered)
        valid = canvas.valid
        return ForwardPlan(valid, valid, None, canvas.tokens[:, :0], valid, blocks.shapes, state)

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> PatternPass:
        valid, kind, answer = candidates.valid, plan.state["kind"], plan.state["answer"]
        numbers, widths = kind.tolist(), valid.sum(1).tolist()
        groups = [
            (one, group) for one in (ALL_KEYS, MEASURES, BY_PATTERN) if one in numbers
            for group in rows_by_call([width * (other == one) for width, other in zip(widths, numbers, strict=True)],
                                      valid.device, self.row_numbers)
        ]  # fmt: skip
        calls = [self._call(valid, answer, one, group, candidates.columns) for one, group in groups]
        return PatternPass(calls, owner, valid, valid, valid, plan.shadows, False, plan.state, kind, answer)

    def _call(self, valid: Tensor, answer: Tensor, kind: int, group: Group, columns: Tensor) -> PatternCall:
        """A call of some rows, which computes their columns."""
        valid, answer = select_or_all(valid, group.rows), select_or_all(answer, group.rows)
        queries = packed(valid, columns, group.width)
        visible = Visible(queries < self.length, valid.sum(1).int())
        return PatternCall(group.rows, queries, visible=visible, kind=kind, valid=valid, answer=answer)

    def memory(self, forward: PatternPass, call: Call) -> Memory:
        assert isinstance(call, PatternCall)
        return NoCacheMemory(call.visible) if call.kind == ALL_KEYS else PatternMemory(self, forward, call)

    def cost(self, forward: PatternPass, scored: Tensor) -> ForwardCost:
        """In a sparse forward, keys are the mean over heads and queries."""
        rows, size = forward.valid.sum(1, keepdim=True), self.policy.block_size
        keys = rows.expand(-1, self.config.layers)
        if self.patterns:
            held = F.pad(forward.valid, (0, -self.length % size)).unflatten(1, (-1, size)).sum(-1).double()
            patterns = (one.to(held.device, held.dtype).mean(1) for one in self.patterns)  # [B, blocks, blocks]
            seen = torch.stack([torch.einsum("bq,bqk,bk->b", held, one, held) for one in patterns], 1)
            seen = self.config.ranks.mean(seen) / rows
            keys = torch.where((forward.kind == BY_PATTERN)[:, None], seen.round().long(), keys)
        computed = forward.computed().expand_as(keys)
        return ForwardCost(rows.expand_as(keys), keys, torch.zeros_like(keys), computed, scored)

    def select(self, rows: Tensor) -> Self:
        copies, self.rows = DeviceCopies(), len(rows)
        self.patterns = [one[copies(rows, one.device)] for one in self.patterns]
        return self

    def join(self, fresh: Self) -> Self:
        self.rows, self.length = self.rows + fresh.rows, max(self.length, fresh.length)
        return self

    def pattern(self, layer: int, heads: int, device: torch.device) -> Tensor:
        """The patterns of a layer, with room for all rows and blocks."""
        while len(self.patterns) <= layer:
            self.patterns.append(torch.zeros(self.rows, heads, 0, 0, dtype=torch.bool, device=device))
        held = self.patterns[layer]
        if len(held) < self.rows or held.shape[2] < self.blocks:
            shape = max(0, self.rows - len(held)), held.shape[1], self.blocks, self.blocks
            held = self.patterns[layer] = join(held, held.new_zeros(shape))
        return held


class PatternMemory(NoCacheMemory):
    """The rows of a call measure their patterns, or attend by them."""

    def __init__(self, session: PatternSession, forward: PatternPass, call: PatternCall) -> None:
        super().__init__(call.visible)
        self.session, self.forward, self.call = session, forward, call

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        policy, device = self.session.policy, query.device
        call, copies = self.call, self.copies
        rows, valid, answer = (copies(one, device) for one in (call.candidates, call.valid, call.answer))
        assert valid is not None and answer is not None
        valid, held = valid[:, : query.shape[1]], self.session.pattern(layer, query.shape[2], device)
        if call.kind == MEASURES:
            found = find_pattern(
                query, keys, valid, answer, policy.select, policy.block_size, policy.measure_scale,
                self.session.config.ranks.size,
            )  # fmt: skip
            count = found.shape[-1]
            held[slice(None) if rows is None else rows, :, :count, :count] = found
            self.forward.found.append(found)
            return fresh.attend(query, keys, values, visible)
        count = -(-query.shape[1] // policy.block_size)
        return attend_blocks(
            query, keys, values, select_or_all(held, rows)[:, :, :count, :count], valid, policy.block_size
        )  # fmt: skip


def find_pattern(
    query: Tensor, keys: Tensor, valid: Tensor, answer: Tensor, select: float, size: int, scale: str = "head_dim",
    ranks: int = 1,
) -> Tensor:  # fmt: skip
    """Which blocks of keys each block of queries attends to, [b, H, blocks, blocks].

    query [b, n, H, h], keys [b, H_kv, n, h]: of the columns 0 to n - 1, ``valid`` [b, n] ones first. answer [b]: first
    block that counts as answer. select: share of the blocks; size: columns of one. Attention is summed over the
    queries of a block and over each block of keys; of equals the lowest block is taken. ranks: how many have H heads
    each.
    """
    (n, heads, features), wide = query.shape[1:], at_least_float32(query.dtype)
    blocks, factor = -(-n // size), (features if scale == "head_dim" else ranks * heads) ** -0.5
    keys = keys.to(wide).repeat_interleave(heads // keys.shape[1], 1).transpose(2, 3)
    number = torch.arange(blocks, device=query.device)
    exist = number * size < valid.sum(1, keepdim=True)  # [b, blocks]
    late = number >= answer[:, None]
    last = (torch.arange(n, device=query.device) // size) >= answer[:, None]  # [b, n] keys of the answer's blocks
    first_count, last_count = count_chosen(exist.sum(1), select), count_chosen((exist & late).sum(1), select)
    found = []
    for begin in range(0, n, size):
        part = query[:, begin : begin + size].to(wide).transpose(1, 2)
        scores = part @ keys * factor  # [b, H, rows, n]
        rows = valid[:, None, begin : begin + size, None]
        all_, own = (block_sums(scores, valid & among, rows, size) for among in (torch.ones_like(last), last))
        chosen = best(all_, exist, first_count) & ~late[:, None] | best(own, exist & late, last_count)
        found.append(chosen)
    return torch.stack(found, 2)


def count_chosen(blocks: Tensor, select: float) -> Tensor:
    """How many of ``blocks`` [b] are chosen."""
    return (blocks.double() * select).long() + 1


def block_sums(scores: Tensor, among: Tensor, rows: Tensor, size: int) -> Tensor:
    """Attention [b, H, blocks] by ``scores`` [b, H, r, n] over the keys ``among`` [b, n], summed over the valid
    ``rows`` [b, 1, r, 1] and over each block of keys."""
    weights = scores.masked_fill(~among[:, None, None], -torch.inf).softmax(-1)
    weights = torch.where(rows, weights, 0.0).nan_to_num(0.0)  # a row that ends before the answer's blocks has no keys
    return F.pad(weights.sum(2), (0, -scores.shape[-1] % size)).unflatten(-1, (-1, size)).sum(-1)


def best(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The ``count`` [b] blocks of the largest score [b, H, blocks] ``among`` [b, blocks], for every head."""
    heads = score.shape[1]
    among, count = among.repeat_interleave(heads, 0), count.repeat_interleave(heads)
    # Float32 as published: products of every query with every key in float64 would take a GPU 30 times as long.
    return top_k_mask(score.flatten(0, 1).double(), among, count).unflatten(0, (-1, heads))


def live(pattern: Tensor, valid: Tensor, size: int) -> Tensor:
    """The pattern without blocks whose columns are all cut off; a block of queries that is left without any attends to
    the last one that is not."""
    blocks = F.pad(valid, (0, -valid.shape[1] % size)).unflatten(1, (-1, size)).any(-1)  # [b, blocks]
    kept = pattern & blocks[:, None, None]
    last = torch.arange(blocks.shape[1], device=valid.device) == blocks.sum(1, keepdim=True) - 1
    return kept | (~kept.any(-1, keepdim=True) & last[:, None, None])


def attend_blocks(
    query: Tensor, keys: Tensor, values: Tensor, pattern: Tensor, valid: Tensor, size: int
) -> Tensor:  # fmt: skip
    """Attention [b, n, H * h] of query [b, n, H, h] over those blocks of keys and values [b, H_kv, n, h] that the
    pattern [b, H, blocks, blocks] names for each head and block of queries; valid [b, n]: columns that are keys."""
    pattern, (n, heads) = live(pattern, valid, size), query.shape[1:3]
    keys, values = (F.pad(one, (0, 0, 0, -n % size)).unflatten(2, (-1, size)) for one in (keys, values))
    keys, values = (
        one.repeat_interleave(heads // one.shape[1], 1) for one in (keys, values)
    )  # [b, H, blocks, size, h]
    seen = F.pad(valid, (0, -n % size)).unflatten(1, (-1, size))  # [b, blocks, size]
    row, head = torch.arange(len(query), device=query.device)[:, None, None], torch.arange(heads, device=query.device)
    out = []
    for number, begin in enumerate(range(0, n, size)):
        named = pattern[:, :, number]  # [b, H, blocks]
        order = named.int().sort(dim=-1, descending=True, stable=True).indices[..., : int(named.sum(-1).max())]
        place = row, head[:, None], order
        mask = (seen[row, order] & named.gather(-1, order)[..., None]).flatten(2)  # [b, H, chosen size]
        part = F.scaled_dot_product_attention(
            query[:, begin : begin + size].transpose(1, 2), keys[place].flatten(2, 3), values[place].flatten(2, 3),
            attn_mask=mask[:, :, None],
        )  # fmt: skip
        out.append(part.transpose(1, 2).flatten(2))
    return torch.cat(out, 1)
