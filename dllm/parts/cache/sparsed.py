"""Attend to blocks of keys that are found once for each head (SparseD, arXiv 2509.24014).

Every forward computes every column, and nothing is kept but patterns: which blocks of keys each block of queries
attends to. The first forwards attend to everything. The last of them measures, in every layer and head, where the
attention of each block of queries goes. Blocks of the prompt and of the answer are chosen apart, since masks attract
little attention early on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_choices, in_range
from dllm.common.rowwise import Owner, select_or_all
from dllm.contract import BlockState, ForwardCost, ForwardPlan, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.clash import Mismatch
from dllm.contract.setting import Setting
from dllm.contract.traits import CacheTraits
from dllm.models.config import ModelConfig
from dllm.models.network.attention import Visible
from dllm.models.network.memory import Memory, NoCacheMemory, Projected
from dllm.parts.cache.base import Cache, Session
from dllm.parts.cache.calls import Group, rows_by_call
from dllm.parts.cache.kept import PER_PLACE, Kept
from dllm.parts.cache.key_blocks import attend_by_blocks, chosen_count, find_pattern
from dllm.parts.cache.passes import Call, ForwardPass

FORWARD_KINDS = ALL_KEYS, MEASURES, BY_PATTERN = range(3)  # of forwards of a row, in their order
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
        regions=frozenset({"block", "suffix", "ahead", "answer"}),
        committed=True,
        full_on_open=False,
        heads="summed",
        bounded_shapes=True,
        acts_in_layers=True,
        leads=True,
    )
    clashes = (
        *Cache.clashes,
        Mismatch(
            lambda c: (
                c.part.full_forwards is None
                and (own := getattr(c.sampler, "steps", None)) is not None
                and own != c.part.steps
                and {"sampler.steps": own}
            ),
            "{cache} counts the share {cache.skip} of {cache.steps}, and {sampler.steps} is another number.",
            [lambda c: Set("cache.steps", c.sampler.steps)],  # type: ignore[attr-defined]
            "Or set {cache.full_forwards:name}.",
        ),
    )

    def __init__(
        self,
        select: float = 0.3,
        block_size: int = 128,
        skip: float = 0.2,
        steps: int | None = None,
        full_forwards: int | None = None,
        measure_scale: str = "head_dim",
    ) -> None:
        in_range("cache.block_size", block_size, 1, advice="It counts columns.")
        in_range("cache.skip", skip, 0.0, advice="It is a share of the steps.")
        in_range("cache.steps", steps, 1)
        in_range("cache.full_forwards", full_forwards, 2)
        in_choices("cache.measure_scale", measure_scale, ("head_dim", "heads"))
        if not 0 <= select < 1:
            raise Refusal("{cache.select} must be from 0 to below 1, since one block more is always chosen.", [select])
        self.select, self.block_size, self.skip, self.steps = select, block_size, skip, steps
        self.full_forwards, self.measure_scale = full_forwards, measure_scale

    def warning(self, setting: Setting) -> str | None:
        if self.block_size >= TENSOR_CORES:
            return None
        return (
            f"cache.block_size={self.block_size} is below {TENSOR_CORES}: a GPU multiplies blocks as small no faster "
            "than all keys."
        )

    def start(self, canvas: Canvas, config: ModelConfig, shrinks: bool) -> Session:
        return PatternSession(self, canvas, config, slots=self.slots(len(canvas.columns), 0, config))

    def kept(self) -> tuple[Kept, ...]:
        """Which blocks of keys each block of queries attends to, by head, and how many heads do so, for costs."""
        patterns = Kept(
            "patterns", lambda config, layer: (config.heads, PER_PLACE, PER_PLACE), by="slot", dtype=torch.bool
        )
        return patterns, Kept("counts", lambda config, layer: (PER_PLACE, PER_PLACE), by="slot")

    def slots(self, columns: int, open_columns: int, config: ModelConfig) -> int:
        """Blocks of that many columns."""
        return -(-columns // self.block_size)


@dataclass(frozen=True)
class PatternCall(Call):
    """A call of rows whose forwards may be of several kinds: of one, where the host knows which."""

    kind: Tensor | None = None  # [b] ALL_KEYS, MEASURES or BY_PATTERN
    valid: Tensor | None = None  # [b, L] columns of its rows
    answer: Tensor | None = None  # [b] first block that counts as answer
    measures: bool = False  # there may be rows that measure
    most_blocks: int | None = None  # that a block of queries attends to (None: no row goes by its pattern)


@dataclass(frozen=True)
class PatternPass(ForwardPass):
    """A forward, and how its rows attend. It finds the ``patterns`` that each layer measures."""

    kind: Tensor  # [B] ALL_KEYS, MEASURES or BY_PATTERN
    answer: Tensor  # [B] first block that counts as answer


class PatternSession(Session):
    """A slot is a block. Of a row it remembers, each [B], the number of its full forwards (``full``), the first block
    that counts as answer, the kind of its coming forward, and how many blocks it chooses at most (``chosen``)."""

    policy: SparseD

    def remembers(self, canvas: Canvas) -> State:
        steps = canvas.undecided.sum(1)
        if self.policy.steps is not None:
            steps = torch.full_like(steps, self.policy.steps)
        full = (steps.double() * self.policy.skip).long() + 2  # as int(S skip) rounds in Python
        if self.policy.full_forwards is not None:
            full = torch.full_like(full, self.policy.full_forwards)
        size, length = self.policy.block_size, canvas.valid.sum(1)
        blocks, first = -(-length // size), -(-canvas.start // size)
        answer = torch.where(first < blocks, first, blocks - 1)
        among_all, own = (chosen_count(count, self.policy.select) for count in (blocks, blocks - answer))
        most_blocks = torch.minimum(among_all, answer) + own
        return {"full": full, "answer": answer, "most_blocks": most_blocks, "kind": torch.full_like(full, ALL_KEYS)}

    def plan(self, canvas: Canvas, blocks: BlockState, next_positions: Tensor, state: State) -> ForwardPlan:
        left = state["full"] - 1 - blocks.turn  # full forwards before the one that measures
        kind = torch.where(left > 0, ALL_KEYS, torch.where(left == 0, MEASURES, BY_PATTERN))
        state = blocks.shapes.update(blocks.active, {**state, "kind": kind}, state)
        valid = canvas.valid
        return ForwardPlan(valid, valid, None, canvas.tokens[:, :0], valid, blocks.shapes, state)

    def widths(self, plan: ForwardPlan) -> list[Tensor]:
        """The columns; those of a row by the kind of its forward, and 0 in the places of the other kinds. By pattern
        the columns are those of the blocks that a block of queries attends to, at most."""
        columns, kind = plan.columns.sum(1), plan.state["kind"]
        by_kind = columns, columns, torch.minimum(plan.state["most_blocks"] * self.policy.block_size, columns)
        return [columns, *(torch.where(kind == number, width, 0) for number, width in enumerate(by_kind))]

    def begin(self, plan: ForwardPlan, candidates: Canvas, owner: Owner) -> PatternPass:
        valid, state, shapes = candidates.valid, plan.state, plan.shapes
        if shapes.bounded:
            kinds = [(shapes.most, shapes.widths(valid, owner))]
        else:
            widths, *by_kind = torch.stack(self.widths(plan)).tolist()
            widths = shapes.running(widths)
            most = [max(kind_widths) for kind_widths in by_kind]
            kinds = [
                (
                    tuple(width * (other_kind == kind) for other_kind, width in enumerate(most)),
                    [width * (own > 0) for width, own in zip(widths, by_kind[kind], strict=True)],
                )
                for kind in FORWARD_KINDS
                if most[kind]
            ]
        calls = [
            self._call(valid, state, most, group.among(shapes.order), candidates.columns)
            for most, widths in kinds
            for group in rows_by_call(widths, valid.device, self.row_numbers)
        ]
        return PatternPass(
            calls, owner, valid, valid, valid, plan.shadows, False, state, state["kind"], state["answer"]
        )

    def _call(self, valid: Tensor, state: State, most: Sequence[int], group: Group, columns: Tensor) -> PatternCall:
        """A call of some rows, which computes their columns. most: by kind, the widest row that may be in it."""
        valid, kind, answer = (select_or_all(tensor, group.rows) for tensor in (valid, state["kind"], state["answer"]))
        queries = packed(valid, columns, group.width)
        visible = Visible(queries < self.length, valid.sum(1).int())
        widest = max(most) if most[ALL_KEYS] or most[MEASURES] else most[BY_PATTERN]
        most_blocks = -(-min(widest, group.width) // self.policy.block_size) if most[BY_PATTERN] else None
        return PatternCall(
            group.rows,
            queries,
            visible=visible,
            kind=kind,
            valid=valid,
            answer=answer,
            measures=most[MEASURES] > 0,
            most_blocks=most_blocks,
        )

    def memory(self, forward: ForwardPass, call: Call) -> Memory:
        assert isinstance(forward, PatternPass) and isinstance(call, PatternCall)
        one_kind = call.most_blocks is None and not call.measures
        return NoCacheMemory(call.visible) if one_kind else PatternMemory(self, forward, call)

    def cost(self, forward: ForwardPass, scored_rows: Tensor) -> ForwardCost:
        """In a sparse forward, keys are the mean over heads and queries."""
        assert isinstance(forward, PatternPass)
        rows, size = forward.valid.sum(1, keepdim=True), self.policy.block_size
        keys = rows.expand(-1, self.config.layers)
        layers = self.kept["counts"].layers.values()
        if layers and any(isinstance(call, PatternCall) and call.most_blocks for call in forward.calls):
            counts = torch.stack([layer.to(rows.device) for layer in layers], 1).double()
            block_sizes = F.pad(forward.valid, (0, -self.length % size)).unflatten(1, (-1, size)).sum(-1).double()
            mean_keys = torch.einsum("bq,blqk,bk->bl", block_sizes, counts, block_sizes) / self.config.heads
            mean_keys = self.config.ranks.mean(mean_keys) / rows
            keys = torch.where((forward.kind == BY_PATTERN)[:, None], mean_keys.round().long(), keys)
        rows_run = forward.rows_run().expand_as(keys)
        return ForwardCost(rows.expand_as(keys), keys, torch.zeros_like(keys), rows_run, scored_rows)


class PatternMemory(NoCacheMemory):
    """The rows of a call measure their patterns, or attend by them."""

    def __init__(self, session: PatternSession, forward: PatternPass, call: PatternCall) -> None:
        super().__init__(call.visible)
        self.session, self.forward, self.call = session, forward, call

    def attend(self, layer: int, fresh: Projected, columns: Tensor | None) -> Tensor:
        query, keys, values, visible = self.exchange(layer, fresh, columns)
        policy, most_blocks = self.session.policy, self.call.most_blocks
        size = policy.block_size
        rows, kind = (self.copies(x, query.device) for x in (self.call.candidates, self.call.kind))
        valid = self.copies(self.call.valid, query.device)
        assert valid is not None and kind is not None
        valid, blocks = valid[:, : query.shape[1]], -(-query.shape[1] // size)
        patterns, counts = (self.session.kept.tensor(name, layer, query) for name in ("patterns", "counts"))
        if self.call.measures:
            answer = self.copies(self.call.answer, query.device)
            assert answer is not None
            fresh_patterns = find_pattern(
                query, keys, valid, answer, policy.select, size, policy.measure_scale, self.session.config.ranks.size
            )
            self.forward.found["patterns"].append(fresh_patterns)
            heads = fresh_patterns.sum(1).to(counts)
            put_where(kind == MEASURES, fresh_patterns, patterns[..., :blocks, :blocks], rows)
            put_where(kind == MEASURES, heads, counts[:, :blocks, :blocks], rows)
        if most_blocks is None:
            return fresh.attend(query, keys, values, visible)
        pattern = select_or_all(patterns, rows)[..., :blocks, :blocks] | (kind != BY_PATTERN)[:, None, None, None]
        return attend_by_blocks(query, keys, values, pattern, valid, size, most_blocks)


def put_where(which: Tensor, values: Tensor, target: Tensor, rows: Tensor | None) -> None:
    """Write those of ``values`` [b, ...] that are ``which`` [b] to their ``rows`` [b] (None: all) of ``target``."""
    merged = torch.where(which.view(-1, *[1] * (values.dim() - 1)), values, select_or_all(target, rows))
    target[slice(None) if rows is None else rows] = merged
