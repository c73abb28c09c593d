"""The output head and the row statistics in one: the logits of a row exist a tile at a time, and are never stored.

Storing them costs some 28 bytes per logit of traffic (written, widened, read by a softmax): 0.9 GB for 256 rows of
126,464, next to 1 GB of weights. Here a program multiplies a tile of the vocabulary with a few hidden rows and sums it
up (``row_statistics.fresh``). As long as reading the weights is the limit, the kernel can keep up with the library;
above ``FUSED_ROWS`` the library multiplies, in chunks of rows followed by ``row_statistics``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.kernels.credit import slot_logits
from dllm.kernels.jit import Build, Shape, contiguous_rows, interpreted, jit, power_of_two, processors
from dllm.kernels.row_statistics import ALL, Partial, empty_partial, fresh, join, merge, row_statistics

if TYPE_CHECKING:
    import triton.language as tl

CHUNK = 256  # rows whose logits are held at once: 65 MB of bfloat16 at 126,464
SHAPES = {  # by rows; with 64 of them a deeper tile spills registers on gfx942
    16: Shape({"BLOCK_R": 16, "BLOCK_V": 128, "BLOCK_D": 64}, warps=4, stages=3),
    32: Shape({"BLOCK_R": 32, "BLOCK_V": 128, "BLOCK_D": 64}, warps=4, stages=3),
    64: Shape({"BLOCK_R": 64, "BLOCK_V": 128, "BLOCK_D": 32}, warps=8, stages=4),
}
# By arithmetic, not measured: a weight of two bytes serves two operations a row, so reading it is the limit up to
# FLOP/s over bytes/s rows: 139 on an A100 (250 T / 1.8 T, as reached), 184 on an H200 (790 T / 4.3 T). Two tiles of 64
# rows stay below both. ``experiments.bench_kernels`` times both ways. A stopwatch must not choose, nor the kind of GPU:
# the ways round differently, so two ranks could decode differently.
FUSED_ROWS = 128
_COMPILED: set[tuple[Any, ...]] = set()


def logits_of(hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0) -> Tensor:
    """Logits [R, V] of hidden rows [R, D] under head ``weight`` [V, D], -inf at the ``banned`` ids."""
    logits = F.linear(hidden, weight)
    logits = logits if scale == 1.0 else logits * scale
    for token in banned:
        logits.select(-1, token).fill_(-torch.inf)
    return logits


def reference(
    hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0, wanted: frozenset[str] = ALL
) -> dict[str, Tensor]:
    """``row_statistics`` of the logits of hidden rows [R, D], each [R]."""
    logits = logits_of(hidden, weight, banned, scale)
    return row_statistics(logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted)


@jit("R", "plane", "splits", "banned_a", "banned_b")
def _head(hidden, weight, sums, index, R, V, D, plane, splits, banned_a, banned_b, SCALE: tl.constexpr,
          UPCAST: tl.constexpr, WIDE: tl.constexpr,
          BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One program per tile of rows and split of the vocabulary, whose tiles it takes one after the other.

    The vocabulary is the long side of the product, so 16 rows are enough for Hopper's wgmma. UPCAST: the interpreter
    multiplies bfloat16 wrongly (it does arithmetic on the bits).
    """
    KIND: tl.constexpr = tl.float64 if WIDE else tl.float32
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    width = tl.cdiv(tl.cdiv(V, BLOCK_V), splits) * BLOCK_V
    begin = tl.program_id(1) * width
    end = tl.minimum(begin + width, V)
    depth = tl.arange(0, BLOCK_D)
    m = tl.full([BLOCK_R, 1], -1e30, KIND)
    at, second, rest, spread = tl.zeros([BLOCK_R, 1], tl.int32), m, tl.zeros([BLOCK_R, 1], KIND), tl.zeros([BLOCK_R, 1], KIND)  # noqa: E501
    for start in range(begin, end, BLOCK_V):
        tokens = start + tl.arange(0, BLOCK_V)
        total = tl.zeros([BLOCK_V, BLOCK_R], KIND)
        for chunk in range(0, D, BLOCK_D):
            inside = chunk + depth < D
            w = tl.load(weight + tokens[:, None].to(tl.int64) * D + chunk + depth[None, :],
                        mask=(tokens[:, None] < end) & inside[None, :], other=0.0)  # fmt: skip
            h = tl.load(hidden + rows[None, :].to(tl.int64) * D + chunk + depth[:, None],
                        mask=(rows[None, :] < R) & inside[:, None], other=0.0)  # fmt: skip
            if UPCAST:
                w, h = w.to(KIND), h.to(KIND)
            total = tl.dot(w, h, total, input_precision="ieee", out_dtype=KIND)
        # Rounded as the library rounds its logits, so that both ways decide alike.
        z = (total.to(weight.dtype.element_ty).to(KIND) * SCALE).to(weight.dtype.element_ty).to(KIND)
        real = (tokens < end) & (tokens != banned_a) & (tokens != banned_b)
        z = tl.trans(tl.maximum(tl.where(real[:, None], z, -1e30), -1e30))
        m_b, at_b, second_b, rest_b, spread_b = fresh(z, tokens[None, :])
        m, at, second, rest, spread = join(m, at, second, rest, spread, m_b, at_b, second_b, rest_b, spread_b)
    place = rows[:, None].to(tl.int64) * splits + tl.program_id(1)
    inside = rows[:, None] < R
    tl.store(index + place, at, mask=inside)
    tl.store(sums + place, m, mask=inside)
    tl.store(sums + plane + place, second, mask=inside)
    tl.store(sums + 2 * plane + place, rest, mask=inside)
    tl.store(sums + 3 * plane + place, spread, mask=inside)


def sum_up(hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0) -> Partial:
    """The summaries of the rows' logits, by the fused kernel."""
    assert len(banned) <= 2, "at most MASK and EOS are banned"
    assert weight.is_contiguous()
    hidden = contiguous_rows(hidden)
    rows, (vocabulary, width) = len(hidden), weight.shape
    shape = SHAPES[min(64, max(16, power_of_two(rows)))]
    tiles = -(-rows // shape.blocks["BLOCK_R"])
    most = power_of_two(vocabulary // shape.blocks["BLOCK_V"] + 1)
    splits = max(1, min(256, most, power_of_two(2 * processors(hidden.device) // max(tiles, 1) + 1) // 2))
    kind = torch.promote_types(weight.dtype, torch.float32)
    out = empty_partial(rows, splits, kind, hidden.device)
    if rows:
        first, second = (*banned, -1, -1)[:2]
        arguments = hidden, weight, *out, rows, vocabulary, width, rows * splits, splits, first, second
        upcast, wide = interpreted() and weight.dtype == torch.bfloat16, kind == torch.float64
        constants = {"SCALE": scale, "UPCAST": upcast, "WIDE": wide}
        _compile_every_tile(arguments, constants)
        _head[(tiles, splits)](*arguments, **constants, **shape.arguments)
    return out


def _compile_every_tile(arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Before the first launch: the number of rows falls while a block fills, and then comes the next tile."""
    _, weight, *_ = arguments
    key = (weight.device, weight.dtype, weight.shape, *constants.values())
    if key not in _COMPILED:
        _COMPILED.add(key)
        for shape in SHAPES.values():
            _head.compile(*arguments, **constants, **shape.arguments)


def fused(hidden: Tensor, weight: Tensor, banned: tuple[int, ...] = (), scale: float = 1.0) -> dict[str, Tensor]:
    return merge(sum_up(hidden, weight, banned, scale))


def chunked(
    hidden: Tensor, logits: Callable[[Tensor], Tensor], wanted: frozenset[str] = ALL, at: Tensor | None = None,
    triton: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The library's product, ``CHUNK`` rows at a time, each chunk summed up and dropped."""
    parts = []
    for begin in range(0, max(1, len(hidden)), CHUNK):
        chunk = logits(hidden[begin : begin + CHUNK])
        parts.append(row_statistics(chunk, wanted, triton))
        if at is not None:
            parts[-1]["logit"] = chunk.gather(1, at[begin : begin + CHUNK, None]).squeeze(1).double()
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def head_statistics(
    hidden: Tensor, logits: Callable[[Tensor], Tensor], weight: Tensor | None = None, banned: tuple[int, ...] = (),
    scale: float = 1.0, wanted: frozenset[str] = ALL, at: Tensor | None = None, triton: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """Row statistics of hidden rows [R, D], fused with the head for up to ``FUSED_ROWS``.

    ``logits`` makes [R, V] of them, with banned ids at -inf, in float32 or wider; ``weight``, ``banned`` and ``scale``
    say the same as a plain product (None: it is none, as when it is quantised). ``at`` [R]: ids whose own logit is
    wanted too (``logit``, float64).
    """
    if weight is None or not triton or not shipped(hidden, weight) or len(hidden) > FUSED_ROWS:
        return chunked(hidden, logits, wanted, at, triton)
    out = fused(hidden, weight, banned, scale)
    if at is not None:
        out["logit"] = scale * slot_logits(hidden, weight, at[:, None], triton).squeeze(1).double()
    return {name: value for name, value in out.items() if name in wanted or name in ("token", "logit")}


def shipped(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernel was compiled for such rows: bfloat16 of an aligned width (the interpreter takes all)."""
    aligned = weight.dtype == hidden.dtype == torch.bfloat16 and weight.shape[1] % 16 == 0 and weight.is_contiguous()
    return aligned or weight.device.type != "cuda"


BUILDS = tuple(
    Build(f"head_statistics-{kind}-{rows}", _head,
          {"hidden": f"*{kind}", "weight": f"*{kind}", "sums": "*fp32", "index": "*i32", "R": "i32", "V": "i32/16",
           "D": "i32/16", "plane": "i32", "splits": "i32", "banned_a": "i32", "banned_b": "i32"},
          {"SCALE": 1.0, "UPCAST": False, "WIDE": False, **shape.blocks}, shape.warps, shape.stages, wgmma=True)
    for kind in ("bf16",) for rows, shape in SHAPES.items()
)  # fmt: skip
