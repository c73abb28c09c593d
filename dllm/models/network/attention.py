"""Softmax attention, by the fastest of PyTorch's ways that gives the right result.

Without a mask all of them are fast. With one, flash attention is out, and grouped heads leave only plain operations,
which store all weights (5 to 20 times slower). But the keys of a row are mostly the first ones of the buffer: those
before its padding, or before what was cut off. Attention over rows of various lengths takes that as a number a row. Its
tensors are one long row; ours need not be copied into it, because the buffers are one with a step from row to row.

Sums over keys depend on how many there are, padding included: vectors of them are added up first, the rest by itself.
For rows that must not depend on their batch (``dllm.kernels.invariant``) queries and keys come in multiples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.common.rowwise import T, each_tensor
from dllm.kernels.invariant import TILE

HALF = (torch.bfloat16, torch.float16)
FLASH_CAPABILITY = (8, 0)  # Ampere
KEY_TILE = 64  # a multiple of it is attended to where numbers must not depend on the batch: whole vectors of any CPU
# A mask of more queries is made for as many at a time, so that none has an entry for every pair of 32,768 columns.
QUERIES_OF_A_MASK = 1024


class MaskParts:
    """What makes the mask of some queries. A subclass is a dataclass of tensors that lead with the row."""

    def mask(self, first: int, last: int) -> Tensor:
        """Which keys the queries from ``first`` to before ``last`` see [B, last - first, S]."""
        raise NotImplementedError

    def in_window(self) -> MaskParts | None:
        """The same in layers with a window (None: no layer has one)."""
        return None

    def ranges(self, first: int, last: int) -> Sequence[tuple[int, int]]:
        """Where the keys lie that these queries see, from and to, ascending (empty: anywhere)."""
        return ()

    def visible(self, queries: int) -> Visible:
        """What the ``queries``, that number of them, see: by masks, if they are few enough for these."""
        if queries > QUERIES_OF_A_MASK:
            return Visible(parts=self)
        near = self.in_window()
        return Visible(self.mask(0, queries), near=None if near is None else near.mask(0, queries))


@dataclass(frozen=True)
class ByRank(MaskParts):
    """A query sees the keys whose rank is at most its reach, and in layers with a window above its edge."""

    rank: Tensor  # [B, S] of a key
    reach: Tensor  # [B, n] of a query
    keys: Tensor | None = None  # [B, S] which keys count (None: all)
    edge: Tensor | None = None  # [B, n] of a query's window (None: no layer has one)
    windowed: bool = False  # whether this is the mask of layers with a window

    def mask(self, first: int, last: int) -> Tensor:
        reached = self.rank[:, None] <= self.reach[:, first:last, None]
        if self.windowed:
            assert self.edge is not None, "some layers have a window"
            reached = reached & (self.rank[:, None] > self.edge[:, first:last, None])
        return reached if self.keys is None else reached & self.keys[:, None]

    def in_window(self) -> ByRank | None:
        return None if self.edge is None else replace(self, windowed=True)


@dataclass(frozen=True)
class AllOf(MaskParts):
    """A query sees the keys that both show."""

    first: MaskParts  # what one of them shows
    second: MaskParts  # what the other shows

    def mask(self, first: int, last: int) -> Tensor:
        return self.first.mask(first, last) & self.second.mask(first, last)

    def ranges(self, first: int, last: int) -> Sequence[tuple[int, int]]:
        return self.first.ranges(first, last)


@dataclass(frozen=True)
class Visible:
    """Which of S keys the queries see."""

    mask: Tensor | None = None  # [B, S] or [B, n, S], which keys each query sees; None: all
    # [B] int32, how many keys are seen, where they are the first of each row; None: not known
    count: Tensor | None = None
    near: Tensor | None = None  # [B, n, S] the same in layers with a window; None: no layer has one
    parts: MaskParts | None = None  # makes the masks of some queries instead of both; None: they are made
    # what all layers of a call share, made in the first: parts by their rows, offsets by number and step
    memo: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def of(self, rows: slice) -> Visible:
        """The same of some of the rows."""
        tensors = [None if tensor is None else tensor[rows] for tensor in (self.mask, self.count, self.near)]
        parts = None if self.parts is None else each_tensor(lambda tensor: tensor[rows], self.parts)
        return self._memo_of((rows.start, rows.stop, 1), lambda: Visible(tensors[0], tensors[1], tensors[2], parts))

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Visible:
        """The same of what ``change`` makes of each tensor."""
        return each_tensor(change, replace(self, memo={}))

    def of_queries(self, first: int, last: int) -> Visible:
        """The same for the queries from ``first`` to before ``last``, by a mask alone."""
        if self.parts is not None:
            return Visible(self.parts.mask(first, last))
        return Visible(self.mask if self.mask is None or self.mask.dim() == 2 else self.mask[:, first:last])

    def offsets(self, rows: int, step: int, device: torch.device) -> Tensor:
        """Where each of ``rows`` begins, and where the last one ends, in a tensor of ``step`` entries a row: int32
        [rows + 1]. Made in every layer they took 64 launches of a forward (8B)."""
        end = rows * step + 1
        return self._memo_of((rows, step), lambda: torch.arange(0, end, step, dtype=torch.int32, device=device))

    def places(self, rows: Tensor, step: int) -> Tensor:
        """The same of ``rows`` [b] in any order: int32 [b + 1], whose last entry counts of keys make idle."""
        return self._memo_of((-1, step), lambda: F.pad(rows * step, (0, 1)).int())

    def _memo_of(self, key: tuple[int, ...], make: Callable[[], T]) -> T:
        """What ``make`` gave for this key in the first layer. Compiled layers make it themselves: one code serves the
        first layer and the others."""
        memo = {} if torch.compiler.is_compiling() else self.memo
        if key not in memo:
            memo[key] = make()
        return memo[key]

    def in_window(self) -> Visible:
        """The same in layers with a window."""
        parts = None if self.parts is None else self.parts.in_window()
        assert parts or self.near is not None, "what a window shows is known where a layer has one"
        return Visible(self.near, parts=parts)


ALL = Visible()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Visible,
    varlen: bool = False,
    tiled: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention [B, n, H * h] of query [B, n, H, h] over key and value [B, H_kv, S, h]. varlen: counts are taken as
    they are (only where ``has_varlen``). tiled: numbers do not depend on n and S. scale: of the products of queries and
    keys (None: 1 / sqrt(h))."""
    if tiled:
        return attend_tiled(query, key, value, visible, scale)
    if visible.parts is not None:
        return torch.cat([*attended_in_parts(query, key, value, visible, visible.parts, scale)], 1)
    if varlen and visible.count is not None:
        return attend_first(query, key, value, visible)
    mask, groups = visible.mask, query.shape[2] // key.shape[1]
    if mask is not None:
        mask = mask[:, None, None] if mask.dim() == 2 else mask[:, None]
    if groups > 1 and query.device.type != "cpu" and (mask is not None or query.dtype not in HALF):
        key, value, groups = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), 1
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key, value, attn_mask=mask, scale=scale, enable_gqa=groups > 1
    )
    return out.transpose(1, 2).flatten(2)


def attended_in_parts(
    query: Tensor, key: Tensor, value: Tensor, visible: Visible, parts: MaskParts, scale: float | None
) -> Iterator[Tensor]:
    """``attend`` for as many queries at a time as share a mask, over the keys alone that they may see."""
    first = 0
    for some, part_visible in queries_at_once(query, visible, QUERIES_OF_A_MASK):
        at = [slice(*span) for span in parts.ranges(first, first + some.shape[1])] or [slice(None)]
        mask = None if part_visible.mask is None else torch.cat([part_visible.mask[..., span] for span in at], -1)
        keys, values = (torch.cat([store[:, :, span] for span in at], 2) if at[1:] else store for store in (key, value))
        yield attend(some, keys, values, Visible(mask), scale=scale)
        first += some.shape[1]


def queries_at_once(query: Tensor, visible: Visible, most: int) -> Iterator[tuple[Tensor, Visible]]:
    """At most that many of the queries [B, n, H, h] at a time, and what they see."""
    ends = [*range(most, query.shape[1], most), query.shape[1]]
    for first, last in zip((0, *ends), ends, strict=False):
        yield query[:, first:last], visible.of_queries(first, last)


def attend_tiled(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scale: float | None = None) -> Tensor:
    """``attend`` with ``TILE`` queries in every call, over a multiple of ``KEY_TILE`` keys."""
    rows, n, length = len(query), query.shape[1], key.shape[2]
    spare, out = -length % KEY_TILE, list[Tensor]()
    key, value = (F.pad(tensor, (0, 0, 0, spare)) for tensor in (key, value))
    for some, part_visible in queries_at_once(query, visible, TILE):
        more, mask = TILE - some.shape[1], part_visible.mask
        mask = torch.ones(rows, length, dtype=torch.bool, device=query.device) if mask is None else mask
        mask = F.pad(mask[:, None] if mask.dim() == 2 else mask, (0, spare)).expand(-1, some.shape[1], -1)
        some, mask = F.pad(some, (0, 0, 0, 0, 0, more)), F.pad(mask, (0, 0, 0, more), value=True)
        out.append(attend(some, key, value, Visible(mask), scale=scale))
    return torch.cat(out, 1)[:, :n]


def attention_weights(query: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax weights [B, H, r, S], in float32 or wider, of queries [B, r, H, h] over keys [B, H_kv, S, h]. Keys that
    are not ``visible`` [B, S] or [B, r, S] get 0; a row that sees none gets nan."""
    (batch, kv_heads, length, width), (rows, heads) = keys.shape, query.shape[1:3]
    grouped = (query * width**-0.5).transpose(1, 2).reshape(batch * kv_heads, heads // kv_heads * rows, width)
    scores = torch.bmm(grouped, keys.flatten(0, 1).transpose(1, 2)).view(batch, heads, rows, length)
    if visible is not None:
        scores = scores.masked_fill(~(visible[:, None] if visible.dim() == 2 else visible)[:, None], -torch.inf)
    return scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))


def attend_first(query: Tensor, key: Tensor, value: Tensor, visible: Visible, of: Tensor | None = None) -> Tensor:
    """Attention [B, n, H * h] over the first ``visible.count`` [B] keys of each row. of: [B] the rows of ``key`` and
    ``value`` that these are, which are read where they lie (None: all, in order)."""
    from torch.nn.attention.varlen import varlen_attn

    (rows, n, heads, size), kv_heads, width = query.shape, key.shape[1], key.shape[2]
    step = key.stride(0) // key.stride(2)  # from row to row of the keys, counted in keys
    keys, values = (flat_keys(store, (len(store) - 1) * step + width) for store in (key, value))
    assert visible.count is not None, "counts are what it attends by"
    firsts = visible.offsets(rows, n, query.device)
    places = visible.offsets(rows, step, query.device) if of is None else visible.places(of, step)
    queries, counts = query.reshape(rows * n, heads, size), visible.count.int()
    grouped = heads != kv_heads
    out = varlen_attn(queries, keys, values, firsts, places, n, width, enable_gqa=grouped, seqused_k=counts)
    assert isinstance(out, Tensor)
    return out.view(rows, n, heads * size)


def flat_keys(store: Tensor, length: int) -> Tensor:
    """Keys [B, H, S, h] as one row [length, H, h] of all, without a copy: entry b * step + s is key s of row b."""
    _, heads, _, size = store.shape
    assert store.stride(0) % store.stride(2) == 0 and store.stride(3) == 1, "keys lie at a fixed step from row to row"
    return store.as_strided((length, heads, size), (store.stride(2), store.stride(1), 1))


def has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention over rows of various lengths works on ``device`` as ours does: tried once, on a small case."""
    if device.type != "cuda" or dtype not in HALF or torch.cuda.get_device_capability(device) < FLASH_CAPABILITY:
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn

        return "seqused_k" in signature(varlen_attn).parameters and agrees(device, dtype)
    except (ImportError, RuntimeError, NotImplementedError, TypeError):  # a PyTorch without it, or with another one
        return False


def agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether both ways agree on a part of a buffer whose rows end elsewhere, with grouped heads."""
    noise = torch.Generator().manual_seed(0)
    query = torch.randn(3, 5, 4, 64, generator=noise).to(device, dtype)
    key, value = (torch.randn(3, 2, 40, 64, generator=noise).to(device, dtype)[:, :, :33] for _ in "kv")
    count = torch.tensor([33, 20, 1], dtype=torch.int32, device=device)
    visible = Visible(torch.arange(33, device=device) < count[:, None], count)
    actual, expected = (attend(query, key, value, visible, varlen) for varlen in (True, False))
    some = torch.tensor([2, 0], device=device)
    few = attend_first(query[some], key, value, Visible(count=count[some]), some)
    return all(torch.allclose(*pair, rtol=2e-2, atol=2e-2) for pair in ((actual, expected), (few, expected[some])))
