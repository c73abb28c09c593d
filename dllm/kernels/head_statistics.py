"""The output head fused with ``row_statistics``: statistics of z = scale * h W^T, without storing the logits z.

Hidden rows h [R, D], head W [V, D], statistics [R]. A stored logit costs some 28 bytes of memory traffic (written,
widened, read by a softmax): 0.9 GB for 256 rows of 126,464, beside 1 GB of weights. Here a program multiplies a tile of
the vocabulary with a few hidden states and summarises it (``row_statistics.summarise_tile``), as fused cross-entropy
losses do (arXiv 2410.10989, 2411.09009). As long as reading W is the limit, the kernel can be as fast as the library's
product. Above ``FUSED_ROWS`` rows the library multiplies, in chunks that ``row_statistics`` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.jit import Build, LaunchConfig, contiguous_rows, interpreted, jit, power_of_two, processors, tl
from dllm.kernels.row_statistics import (
    ALL_STATISTICS,
    Summaries,
    empty_summaries,
    join_summaries,
    row_statistics,
    statistics_of,
    summarise_tile,
)
from dllm.kernels.slot_logits import slot_logits

CHUNK_ROWS = 256  # rows whose logits exist at once: 65 MB of bfloat16 at a vocabulary of 126,464
CONFIGS = {  # by rows
    16: LaunchConfig({"BLOCK_R": 16, "BLOCK_V": 128, "BLOCK_D": 64}, warps=4, stages=3),
    32: LaunchConfig({"BLOCK_R": 32, "BLOCK_V": 128, "BLOCK_D": 64}, warps=4, stages=3),
}
# Measured on an H200 (width 4,096, 126,464 tokens; torch 2.11, Triton 3.6): 269 us fused and 277 in chunks at 16 rows,
# 275 and 280 at 32, 470 and 287 at 64, 727 and 311 at 128, by ``experiments.bench.kernels``. Neither a measured time
# nor the kind of GPU may choose: the two ways round differently, so two ranks could decode differently.
FUSED_ROWS = 32
FUSED_BANNED = 2  # MASK and EOS; a model with more stop tokens bans more under ``forbid_eos``
_COMPILED: set[tuple[Any, ...]] = set()


def logits_of(hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0) -> Tensor:
    """Logits [R, V] of hidden states [R, D] under head ``weight`` [V, D], -inf at the ``banned`` ids."""
    logits = F.linear(hidden, weight)
    logits = logits if scale == 1.0 else logits * scale
    for token in banned:
        logits.select(-1, token).fill_(-torch.inf)
    return logits


def reference(
    hidden: Tensor,
    weight: Tensor,
    banned: tuple[int, ...] = (),
    scale: float = 1.0,
    wanted: frozenset[str] = ALL_STATISTICS,
) -> dict[str, Tensor]:
    """``row_statistics`` of the logits of hidden states [R, D], each [R]."""
    logits = logits_of(hidden, weight, banned, scale)
    return row_statistics(logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted)


@jit("R", "plane", "splits", "banned_a", "banned_b")
def _head(hidden, weight, sums, index, R, V, D, plane, splits, banned_a, banned_b, SCALE: tl.constexpr,
          UPCAST: tl.constexpr, WIDE: tl.constexpr,
          BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of rows and split of the vocabulary. It takes the tiles of its split one after the other.

    The vocabulary is the long side of the product, so 16 rows suffice for Hopper's wgmma. UPCAST: widen before the
    product, because the interpreter multiplies the bits of bfloat16 numbers.
    """
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    width = tl.cdiv(tl.cdiv(V, BLOCK_V), splits) * BLOCK_V
    begin = tl.program_id(1) * width
    end = tl.minimum(begin + width, V)
    depth = tl.arange(0, BLOCK_D)
    m = tl.full([BLOCK_R, 1], -1e30, KIND)
    at, second = tl.zeros([BLOCK_R, 1], tl.int32), m
    rest, spread = tl.zeros([BLOCK_R, 1], KIND), tl.zeros([BLOCK_R, 1], KIND)
    for start in range(begin, end, BLOCK_V):
        tokens = start + tl.arange(0, BLOCK_V)
        total = tl.zeros([BLOCK_V, BLOCK_R], KIND)
        for chunk in range(0, D, BLOCK_D):
            inside = chunk + depth < D
            w = tl.load(
                weight + tokens[:, None].to(tl.int64) * D + chunk + depth[None, :],
                mask=(tokens[:, None] < end) & inside[None, :],
                other=0.0,
            )
            h = tl.load(
                hidden + rows[None, :].to(tl.int64) * D + chunk + depth[:, None],
                mask=(rows[None, :] < R) & inside[:, None],
                other=0.0,
            )
            if UPCAST:
                w, h = w.to(KIND), h.to(KIND)
            total = tl.dot(w, h, total, input_precision="ieee", out_dtype=KIND)
        # Round as the library rounds its logits, so that both ways propose the same tokens.
        z = (total.to(weight.dtype.element_ty).to(KIND) * SCALE).to(weight.dtype.element_ty).to(KIND)
        real = (tokens < end) & (tokens != banned_a) & (tokens != banned_b)
        z = tl.trans(tl.maximum(tl.where(real[:, None], z, -1e30), -1e30))
        m_b, at_b, second_b, rest_b, spread_b = summarise_tile(z, tokens[None, :])
        m, at, second, rest, spread = join_summaries(m, at, second, rest, spread, m_b, at_b, second_b, rest_b, spread_b)
    place = rows[:, None].to(tl.int64) * splits + tl.program_id(1)
    inside = rows[:, None] < R
    tl.store(index + place, at, mask=inside)
    tl.store(sums + place, m, mask=inside)
    tl.store(sums + plane + place, second, mask=inside)
    tl.store(sums + 2 * plane + place, rest, mask=inside)
    tl.store(sums + 3 * plane + place, spread, mask=inside)


def summarise_head(hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0) -> Summaries:
    """The summaries of the logits of hidden states [R, D] under head ``weight`` [V, D], by the fused kernel."""
    assert len(banned) <= FUSED_BANNED
    assert weight.is_contiguous()
    hidden = contiguous_rows(hidden)
    rows, (vocabulary, width) = len(hidden), weight.shape
    config = CONFIGS[min(max(CONFIGS), max(16, power_of_two(rows)))]
    tiles = -(-rows // config.blocks["BLOCK_R"])
    max_splits = power_of_two(vocabulary // config.blocks["BLOCK_V"] + 1)
    splits = max(1, min(256, max_splits, power_of_two(2 * processors(hidden.device) // max(tiles, 1) + 1) // 2))
    kind = torch.promote_types(weight.dtype, torch.float32)
    out = empty_summaries(rows, splits, kind, hidden.device)
    if rows:
        first, second = (*banned, -1, -1)[:2]
        arguments = hidden, weight, *out, rows, vocabulary, width, rows * splits, splits, first, second
        upcast, wide = interpreted() and weight.dtype == torch.bfloat16, kind == torch.float64
        constants = {"SCALE": scale, "UPCAST": upcast, "WIDE": wide}
        _compile_every_tile(arguments, constants)
        _head[(tiles, splits)](*arguments, **constants, **config.arguments)
    return out


def _compile_every_tile(arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Compile all configurations before the first launch: while a block fills, the rows become fewer."""
    _, weight, *_ = arguments
    key = (weight.device, weight.dtype, weight.shape, *constants.values())
    if key not in _COMPILED:
        _COMPILED.add(key)
        for config in CONFIGS.values():
            _head.compile(*arguments, **constants, **config.arguments)


def fused_head(hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0) -> dict[str, Tensor]:
    """``reference`` with all statistics, by the fused kernel. At most two ids may be banned."""
    return statistics_of(summarise_head(hidden, weight, banned, scale))


def chunked_head(
    hidden: Tensor,
    logits: Callable[[Tensor], Tensor],
    wanted: frozenset[str] = ALL_STATISTICS,
    at: Tensor | None = None,
    triton: bool = False,
) -> dict[str, Tensor]:
    """The same by the library's product, ``CHUNK_ROWS`` rows at a time. logits, at: see ``head_statistics``."""
    parts = []
    for begin in range(0, max(1, len(hidden)), CHUNK_ROWS):
        chunk = logits(hidden[begin : begin + CHUNK_ROWS])
        parts.append(row_statistics(chunk, wanted, triton))
        if at is not None:
            parts[-1]["logit"] = chunk.gather(1, at[begin : begin + CHUNK_ROWS, None]).squeeze(1).double()
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def head_statistics(
    hidden: Tensor,
    logits: Callable[[Tensor], Tensor],
    weight: Tensor | None = None,
    banned: tuple[int, ...] = (),
    scale: float = 1.0,
    wanted: frozenset[str] = ALL_STATISTICS,
    at: Tensor | None = None,
    triton: bool = False,
) -> dict[str, Tensor]:
    """Row statistics of hidden states [R, D], each [R].

    logits: gives the logits [R, V] of hidden rows, -inf at banned ids, in float32 or wider. weight, banned, scale: the
    same head as a plain product, which the fused kernel can compute. weight None: the head is not a plain product, for
    example because it is quantised. wanted: names of statistics beside ``token``. at [R]: ids whose logits are wanted
    too, as ``logit`` in float64. triton: the fused kernel, or chunks above ``FUSED_ROWS`` rows or two banned ids.
    """
    few = len(banned) <= FUSED_BANNED and len(hidden) <= FUSED_ROWS
    if weight is None or not triton or not can_fuse(hidden, weight) or not few:
        return chunked_head(hidden, logits, wanted, at, triton)
    out = fused_head(hidden, weight, banned, scale)
    if at is not None:
        out["logit"] = scale * slot_logits(hidden, weight, at[:, None], triton).squeeze(1).double()
    return {name: value for name, value in out.items() if name in wanted or name in ("token", "logit")}


def can_fuse(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernel takes these rows. On a GPU: bfloat16, of a width that 16 divides. Interpreted: all."""
    aligned = weight.dtype == hidden.dtype == torch.bfloat16 and weight.shape[1] % 16 == 0 and weight.is_contiguous()
    return aligned or weight.device.type != "cuda"


BUILDS = tuple(
    Build(
        f"head_statistics-bf16-{rows}", _head, config,
        {"hidden": "*bf16", "weight": "*bf16", "sums": "*fp32", "index": "*i32", "R": "i32", "V": "i32/16",
         "D": "i32/16", "plane": "i32", "splits": "i32", "banned_a": "i32", "banned_b": "i32"},
        {"SCALE": 1.0, "UPCAST": False, "WIDE": False}, wgmma=True,
    )
    for rows, config in CONFIGS.items()
)  # fmt: skip
