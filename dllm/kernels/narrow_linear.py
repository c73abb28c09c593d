"""Linear layers with weights in eight or four bits: y = x W^T + b, W as ``narrow_product`` stores it.

A CPU has PyTorch's own operators for few rows, in bfloat16. They widen the weights again for every row or two, so their
time grows with the rows. From ``widened_from`` rows on a tile of weights is widened once, into a buffer that stays in
the processor's cache, and oneDNN multiplies all rows with it. Both give the product of the widened weights with sums in
float32, rounded to bfloat16, up to the order of the sums; in eight bits the scale follows after that rounding, which is
one more, and in four bits the widened weights are rounded to bfloat16. Milliseconds of CPU of a weight of 24,576 x
4,096, one core of a busy EPYC:

| rows | bfloat16 | 8 bits, operator | 8 bits, widened | 4 bits, operator | 4 bits, widened |
|---|---|---|---|---|---|
| 1 | 13 | 8 | 23 | 6 | 64 |
| 8 | 14 | 25 | 28 | 19 | 75 |
| 16 | 19 | 49 | 36 | 39 | 77 |
| 32 | 34 | 98 | 50 | 76 | 88 |
| 44 | 44 | 134 | 61 | 105 | 112 |
| 124 | 113 | 378 | 135 | 297 | 187 |
| 256 | 228 | 792 | 257 | 613 | 338 |

Of the widening in four bits, 44 ms, torch.compile's C++ takes 33; its own product for such weights takes twice the
operator's time (153 ms at 32 rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor, nn

from dllm.common.machine_note import least_seconds, noted
from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.narrow_product import (
    GROUP,
    OUTPUTS_AT_ONCE,
    by_outputs,
    in_bytes,
    narrow_product,
    narrowed,
    rounded_steps,
)

TIMED_WEIGHTS = (512, 2048)  # outputs and columns of the products that are timed
TIMED_ROWS = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)  # among which a crossing is sought
WIDENED = 1 << 21  # weights at a time: 4 MB of bfloat16; more or fewer took up to 30 % longer
PACK = 64  # outputs whose four-bit weights a CPU's operator keeps together


class NarrowLinear(nn.Module):
    """x W^T + b [..., N] of x [..., D], with W in ``bits`` (8 or 4) bits as ``placed`` gives it. triton: our kernel
    multiplies, else a CPU's operators do."""

    narrow: Tensor
    scale: Tensor
    weight = None  # no one multiplies with it in another way

    def __init__(self, narrow: Tensor, scale: Tensor, bias: Tensor | None, bits: int, triton: bool) -> None:
        super().__init__()
        self.triton, self.bits = triton, bits
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_buffer("narrow", narrow)
        self.register_buffer("scale", scale)

    @staticmethod
    def of(linear: nn.Linear, bits: int, triton: bool, as_stored: bool = False, sharing: Ranks = ALONE) -> NarrowLinear:
        """With the weights of ``linear``. as_stored: in the form of files. sharing: ranks that hold columns of it each,
        which then have one scale in eight bits."""
        narrow, weight = narrowed if triton else stored if as_stored else narrow_here, linear.weight.detach()
        return NarrowLinear(*narrow(weight, bits, largest_of(weight, bits, sharing)), linear.bias, bits, triton)

    def place(self, triton: bool) -> None:
        """Turn weights as stored into what our kernel (triton) or this CPU's operators read."""
        self.triton = triton
        self.narrow, self.scale = placed(self.narrow, self.scale, triton)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2).contiguous()
        if self.triton:
            product = narrow_product(rows, self.narrow, self.scale, True)
        else:
            product = cpu_product(rows, self.narrow, self.scale, self.bits)
        product = product.view(*x.shape[:-1], product.shape[-1])
        return product if self.bias is None else product + self.bias


def cpu_product(rows: Tensor, narrow: Tensor, scale: Tensor, bits: int) -> Tensor:
    """[R, N] from rows [R, D] on a CPU, with weights and scales as ``NarrowLinear`` keeps them there."""
    many = not torch.compiler.is_compiling() and len(rows) >= widened_from(bits)
    if bits == 8:
        return widened_eight(rows, narrow, scale) if many else torch._weight_int8pack_mm(rows, narrow, scale)
    if many and len(narrow) % PACK == 0 and packs_by_64():
        return widened_four(rows, narrow, scale)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, narrow, GROUP, scale)


@cache
def widened_from(bits: int) -> int:
    """Rows from which widening a tile of weights in ``bits`` bits is faster on this machine, as noted."""
    return int(noted(f"int{bits} widened from", lambda: _measured_widening(bits)))


@torch.inference_mode()
def _measured_widening(bits: int) -> int:
    """Measure it, about a fifth of a second."""
    narrow, scale = narrow_here(torch.randn(TIMED_WEIGHTS).to(torch.bfloat16), bits)
    if bits == 8:
        return crossing(
            lambda rows: torch._weight_int8pack_mm(rows, narrow, scale), lambda rows: widened_eight(rows, narrow, scale)
        )
    return crossing(
        lambda rows: torch.ops.aten._weight_int4pack_mm_for_cpu(rows, narrow, GROUP, scale),
        lambda rows: widened_four(rows, narrow, scale) if packs_by_64() else None,
    )


def crossing(few: Callable[[Tensor], object], many: Callable[[Tensor], object]) -> int:
    """The least of ``TIMED_ROWS`` from which on ``many`` is faster with rows [R, D] than ``few``; above them: never."""
    for count in reversed(TIMED_ROWS):
        rows = torch.randn(count, TIMED_WEIGHTS[1]).to(torch.bfloat16)
        if least_seconds(partial(few, rows)) < least_seconds(partial(many, rows)):
            return next((more for more in TIMED_ROWS if more > count), 2 * TIMED_ROWS[-1])
    return 1


def outputs_at_once(width: int) -> int:
    """How many outputs of that many columns are widened together; whole blocks of 64."""
    return max(1, WIDENED // width // PACK) * PACK


def widened_eight(rows: Tensor, narrow: Tensor, scale: Tensor) -> Tensor:
    """[R, N]: steps of -127 to 127 are numbers of bfloat16; ``scale`` [N] follows the product."""
    out = rows.new_empty(len(rows), len(narrow))
    many = outputs_at_once(rows.shape[1])
    buffer = rows.new_empty(many, rows.shape[1])
    for begin in range(0, len(narrow), many):
        steps = narrow[begin : begin + many]
        out[:, begin : begin + len(steps)] = rows @ buffer[: len(steps)].copy_(steps).t()
    return out.mul_(scale)


def widened_four(rows: Tensor, narrow: Tensor, scale: Tensor) -> Tensor:
    """[R, N] from the operator's own layout of an AVX-512 CPU: of 64 outputs, for each column 32 bytes, in which byte j
    holds output j (low) and 32 + j (high), each plus 8. scale [G, N, 2].

    Bytes of several outputs are laid side by side first, so that each operation after it runs over long rows: the
    weights are q s + (z - 8 s) in float32, rounded once.
    """
    width, half = rows.shape[1], PACK // 2
    many = outputs_at_once(width) // PACK
    pieces = narrow.view(torch.complex128).view(-1, width, 2)  # 16 bytes a number: the widest that copies have
    sizes = scale.view(torch.int32).view(len(scale), -1, 2, half)  # s in the low 16 bits, z in the high
    out = rows.new_empty(len(rows), len(narrow))
    parts = out.view(len(rows), -1, 2, half)
    turned = narrow.new_empty(width * many * half)  # buffers: pages that are new cost a third of the time
    steps, weights = torch.empty_like(turned), rows.new_empty(len(turned))
    wide = torch.empty_like(turned, dtype=torch.float32)
    for begin in range(0, len(pieces), many):
        tile, size = pieces[begin : begin + many], sizes[:, begin : begin + many]
        used = width * len(tile) * half
        turned[:used].view(torch.complex128).view(width, len(tile), 2).copy_(tile.transpose(0, 1))
        for low_or_high, nibbles in enumerate((torch.bitwise_and, torch.bitwise_right_shift)):
            nibbles(turned[:used], 4 if low_or_high else 15, out=steps[:used])
            both = size[:, :, low_or_high].reshape(len(scale), 1, -1)
            step = (both << 16).view(torch.float32)
            zero = (both & -(1 << 16)).view(torch.float32).sub_(step, alpha=8)
            grouped = wide[:used].copy_(steps[:used]).view(len(scale), GROUP, -1)
            torch.addcmul(zero, grouped, step, out=grouped)
            product = rows @ weights[:used].copy_(wide[:used]).view(width, -1)
            parts[:, begin : begin + many, low_or_high] = product.view(len(rows), -1, half)
    return out


def largest_of(weight: Tensor, bits: int, sharing: Ranks) -> Tensor | None:
    """The largest magnitude of each output of weights [..., D] over the columns of all ranks; None: their own."""
    alone = bits != 8 or sharing.size == 1 or weight.is_meta
    return None if alone else sharing.largest(weight.abs().amax(-1).float())


def stored(weight: Tensor, bits: int, largest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights [N, D] in ``bits`` bits as files have them, and an AVX-512 CPU's operators: int8 [N, D] with scales [N],
    or four bits by blocks of 64 outputs with scales [G, N, 2]. largest [N]: as in ``rounded_steps``."""
    if weight.is_meta:
        return _shapes(weight, bits)
    if bits == 8:
        narrow, scale = narrowed(weight, bits, largest)
        return narrow, scale.flatten()
    narrow, scale = by_outputs(_in_blocks, weight)
    return narrow, scale.transpose(0, 1).contiguous()


def _shapes(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    count, width = weight.shape
    if bits == 8:
        return weight.new_empty(count, width, dtype=torch.int8), weight.new_empty(count)
    return weight.new_empty(count, width // 2, dtype=torch.uint8), weight.new_empty(width // GROUP, count, 2)


def narrow_here(weight: Tensor, bits: int, largest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights [N, D] as this CPU's operators read them."""
    return placed(*stored(weight, bits, largest), False)


def _in_blocks(weight: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    steps, scale = rounded_steps(weight, 4)
    return in_blocks(steps), scale


def placed(narrow: Tensor, scale: Tensor, triton: bool) -> tuple[Tensor, Tensor]:
    """Weights of ``stored`` as our kernel (triton) or this CPU's operators read them; without a copy where the layout
    is the same."""
    if narrow.dtype == torch.int8:
        return narrow, scale[:, None] if triton else scale
    if triton:
        return in_bytes(out_of_blocks(narrow)), scale.transpose(0, 1).contiguous()
    return narrow if narrow.is_meta or packs_by_64() else laid_out(out_of_blocks(narrow)), scale


def in_blocks(steps: Tensor) -> Tensor:
    """Bytes [N, D / 2] of steps [N, D]: of 64 outputs for each column 32 bytes; byte j holds output j (low)
    and 32 + j (high), each plus 8. Of outputs after the last 64, byte j holds outputs 2 j and 2 j + 1."""
    whole, rest = (steps + 8).to(torch.uint8).split([len(steps) // PACK * PACK, len(steps) % PACK])
    low, high = whole.view(-1, 2, PACK // 2, steps.shape[1]).transpose(2, 3).unbind(1)
    pairs = rest.t()[:, ::2] | rest.t()[:, 1::2] << 4
    return torch.cat([(low | high << 4).flatten(), pairs.flatten()]).view(len(steps), -1)


def out_of_blocks(narrow: Tensor) -> Tensor:
    """The steps [N, D], from -8 to 7, of ``in_blocks``."""
    count, width = len(narrow), 2 * narrow.shape[1]
    whole, rest = narrow.flatten().split([count // PACK * PACK * width // 2, count % PACK * width // 2])
    blocks = whole.view(-1, 1, width, PACK // 2).transpose(2, 3)
    pairs = rest.view(width, -1).t()
    steps = [
        torch.cat([blocks & 15, blocks >> 4], 1).flatten(0, 2),
        torch.stack([pairs & 15, pairs >> 4], 1).flatten(0, 1),
    ]
    return torch.cat(steps).view(count, width).to(torch.int8) - 8


def stored_rows(narrow: Tensor, scale: Tensor, spans: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Some outputs, each from and to, of weights as ``stored``. Without rounding, and where four bits are cut at whole
    blocks of 64 without reading the rest."""
    eight = narrow.dtype == torch.int8
    sizes = _joined([scale[begin:end] if eight else scale[:, begin:end] for begin, end in spans], 0 if eight else 1)
    if eight or all(begin % PACK == end % PACK == 0 for begin, end in spans):
        return _joined([narrow[begin:end] for begin, end in spans], 0), sizes
    steps = []
    for begin, end in spans:
        first = begin // PACK * PACK
        steps.append(out_of_blocks(narrow[first : -(-end // PACK) * PACK])[begin - first : end - first])
    return in_blocks(torch.cat(steps)), sizes


def stored_columns(narrow: Tensor, scale: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """The inputs from ``begin`` to ``end`` of weights as ``stored``; in four bits whole groups of them."""
    if narrow.dtype == torch.int8:
        return narrow[:, begin:end].contiguous(), scale
    assert begin % GROUP == end % GROUP == 0, "check_cut has refused what splits a group"
    count, width = len(narrow), 2 * narrow.shape[1]
    whole, rest = narrow.flatten().split([count // PACK * PACK * width // 2, count % PACK * width // 2])
    blocks, pairs = whole.view(-1, width, PACK // 2), rest.view(width, -1)
    cut = torch.cat([blocks[:, begin:end].flatten(), pairs[begin:end].flatten()])
    return cut.view(count, -1), scale[begin // GROUP : end // GROUP].contiguous()


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Parts one after the other; of one part no copy where it is in order."""
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts), axis)


@cache
def packs_by_64() -> bool:
    """Whether this processor's layout of four-bit weights is that of ``in_blocks``."""
    steps = (torch.arange(PACK + 32)[:, None] * 5 + torch.arange(GROUP) * 3).remainder(16).to(torch.int8) - 8
    return torch.equal(laid_out(steps), in_blocks(steps))


def laid_out(steps: Tensor) -> Tensor:
    """Steps [N, D] as this CPU's operator reads them."""
    parts = [
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(part.int() + 8, 1) for part in steps.split(OUTPUTS_AT_ONCE)
    ]
    return torch.cat(parts)
