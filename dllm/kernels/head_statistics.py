"""The output head and the row statistics in one: the logits of a row exist a tile at a time, and are never stored.

Storing them costs some 28 bytes per logit of traffic (written, widened, read by a softmax): 0.9 GB for 256 rows of
126,464, next to 1 GB of weights. Here a program multiplies a tile of the vocabulary with a few hidden rows and sums it
up (``row_statistics.fresh``). Up to about 184 rows an H200 is limited by reading the weights, so the kernel can keep up
with the library; above, the library's matrix product in chunks of rows followed by ``row_statistics`` may win, and
``crossover`` measures where.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

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
_CROSSOVERS: dict[tuple[str, torch.dtype, torch.Size], int] = {}


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


@jit
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
        _head[(tiles, splits)](
            hidden, weight, *out, rows, vocabulary, width, rows * splits, splits, first, second, SCALE=scale,
            UPCAST=interpreted() and weight.dtype == torch.bfloat16, WIDE=kind == torch.float64, **shape.arguments,
        )  # fmt: skip
    return out


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
    """Row statistics of hidden rows [R, D], by the way that was measured to be fastest for so many rows.

    ``logits`` makes [R, V] of them, with banned ids at -inf, in float32 or wider; ``weight``, ``banned`` and ``scale``
    say the same as a plain product (None: it is none, as when it is quantised). ``at`` [R]: ids whose own logit is
    wanted too (``logit``, float64).
    """
    if weight is None or not triton or not shipped(hidden, weight) or len(hidden) > crossover(weight):
        return chunked(hidden, logits, wanted, at, triton)
    out = fused(hidden, weight, banned, scale)
    if at is not None:
        out["logit"] = scale * slot_logits(hidden, weight, at[:, None], triton).squeeze(1).double()
    return {name: value for name, value in out.items() if name in wanted or name in ("token", "logit")}


def shipped(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the fused kernel was compiled for such rows: bfloat16 of an aligned width (the interpreter takes all)."""
    aligned = weight.dtype == hidden.dtype == torch.bfloat16 and weight.shape[1] % 16 == 0 and weight.is_contiguous()
    return aligned or weight.device.type != "cuda"


def crossover(weight: Tensor) -> int:
    """Up to how many rows the fused kernel is the faster one, measured once per GPU kind and head."""
    if weight.device.type != "cuda":
        return 1 << 30  # the interpreter: nothing to measure
    key = (torch.cuda.get_device_name(weight.device), weight.dtype, weight.shape)
    if key not in _CROSSOVERS:
        _CROSSOVERS[key] = 0
        library = partial(logits_of, weight=weight)
        for rows in (16, 32, 64, 128, 256, 512):
            hidden = torch.randn(rows, weight.shape[1], dtype=weight.dtype, device=weight.device)
            if seconds(partial(fused, hidden, weight)) > seconds(partial(chunked, hidden, library, triton=True)):
                break
            _CROSSOVERS[key] = rows
    return _CROSSOVERS[key]


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The median time of one ``run`` on the GPU, after two to warm up."""
    times = []
    for turn in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        if turn > 1:
            times.append(begin.elapsed_time(end) / 1000)
    return sorted(times)[repeats // 2]


BUILDS = tuple(
    Build(f"head_statistics-{kind}-{rows}", _head,
          {"hidden": f"*{kind}", "weight": f"*{kind}", "sums": "*fp32", "index": "*i32", "R": "i32", "V": "i32/16",
           "D": "i32/16", "plane": "i32", "splits": "i32", "banned_a": "i32", "banned_b": "i32"},
          {"SCALE": 1.0, "UPCAST": False, "WIDE": False, **shape.blocks}, shape.warps, shape.stages, wgmma=True)
    for kind in ("bf16",) for rows, shape in SHAPES.items()
)  # fmt: skip
