"""Products of a CPU with weights in eight or four bits: few rows and many give the product of the rounded weights."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm.kernels.grouped_narrow_product import reference
from dllm.parts import (
    GROUP,
    NarrowExperts,
    NarrowLinear,
    grouped_narrow_product,
    narrowed,
    packs_by_64,
    rounded_steps,
    widened,
    widened_from,
)
from tests.kernels.test_narrow_product import by_hand, noise


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("outputs", "width"), [(640, 512), (1088, 384), (96, 256)])  # whole tiles, a rest, none of 64
def test_many_rows_are_multiplied_as_few(bits: int, outputs: int, width: int) -> None:
    noise = torch.Generator().manual_seed(outputs)
    linear = nn.Linear(width, outputs, dtype=torch.bfloat16)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(outputs, width, generator=noise) / 16)
    product = NarrowLinear.of(linear, bits, triton=False)
    x = torch.randn(widened_from(bits) + 3, width, generator=noise).to(torch.bfloat16)
    rounded = widened(*narrowed(linear.weight.detach(), bits), torch.float64)
    with torch.inference_mode():
        many, few = product(x), torch.cat([product(row[None]) for row in x])
        expected = F.linear(x.double(), rounded, linear.bias.detach().double())
    for found in (many, few):
        torch.testing.assert_close(found.double(), expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("rows", [1, 47])
def test_columns_come_in_whole_groups_alone(rows: int) -> None:
    """704, as in DiffusionGemma's experts, is no multiple of 128, by which the kernel of a GPU reads."""
    noise = torch.Generator().manual_seed(3)
    linear = nn.Linear(704, 192, bias=False, dtype=torch.bfloat16)
    steps, scale = rounded_steps(linear.weight.detach(), 4)
    size, zero = scale.double().split(1, -1)
    wide = (steps.view(192, -1, GROUP) * size + zero).flatten(1)
    x = torch.randn(rows, 704, generator=noise).to(torch.bfloat16)
    with torch.inference_mode():
        found = NarrowLinear.of(linear, 4, triton=False)(x)
    torch.testing.assert_close(found.double(), x.double() @ wide.t(), rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("triton", [False, True], ids=["cpu", "kernel"])
@pytest.mark.parametrize(("bits", "activation"), [(8, "silu"), (4, "gelu_tanh")])
def test_experts_are_products_of_their_own_rows(bits: int, activation: str, triton: bool) -> None:
    """Against each expert's rounded weights in float64; an expert without rows, one with few and one with many; also
    out of the form of files."""
    noise = torch.Generator().manual_seed(bits)
    gate_up, down = torch.randn(3, 192, 256, generator=noise) / 16, torch.randn(3, 256, 96, generator=noise) / 11
    gate_up, down = gate_up.to(torch.bfloat16), down.to(torch.bfloat16)
    rows = torch.randn(83, 256, generator=noise).to(torch.bfloat16)
    narrow = NarrowExperts.of(gate_up, down, bits, triton, activation=activation)
    filed = NarrowExperts.of(gate_up, down, bits, False, True)
    filed.place(triton)
    assert all(torch.equal(*pair) for pair in zip(filed.buffers(), narrow.buffers(), strict=True))
    with torch.inference_mode():
        found = narrow(rows, torch.tensor([3, 3, 83]))
    for expert, part in ((0, slice(0, 3)), (2, slice(3, 83))):
        up, below = (widened(*narrowed(one[expert], bits), torch.float64) for one in (gate_up, down))
        gate, wide = F.linear(rows[part].double(), up).chunk(2, -1)
        gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        torch.testing.assert_close(found[part].double(), F.linear(gate * wide, below), rtol=2**-5, atol=2**-5)


def test_a_layout_that_is_not_known_is_left_to_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of four bits is the processor's."""
    packs_by_64.cache_clear()
    operator = torch.ops.aten._convert_weight_to_int4pack_for_cpu
    flipped = lambda steps, tiles: operator(steps, tiles).flip(-1)  # noqa: E731
    monkeypatch.setattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu", flipped)
    assert not packs_by_64()
    packs_by_64.cache_clear()


MATRICES = 3
COUNTS = {"some empty": [0, 3, 0, 1, 37, 0], "the last alone": [0, 0, 5], "many": [1] * 6 + [70], "none": [0, 0]}
WIDTHS = {8: (90, 704), 4: (96, 704)}  # 704, as in DiffusionGemma's experts, is no multiple of 128


@cache
def stacks(outputs: int, width: int, bits: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Three random matrices, narrowed one by one."""
    wide = (noise(MATRICES, outputs, width, seed=width) / width**0.5).to(dtype)
    steps, scales = zip(*(narrowed(one, bits) for one in wide), strict=True)
    return torch.stack(steps), torch.stack(scales)


@cache
def wide_stacks(outputs: int, width: int, bits: int, dtype: torch.dtype) -> list[Tensor]:
    """The same in float64, number by number."""
    pairs = zip(*stacks(outputs, width, bits, dtype), strict=True)
    return [torch.from_numpy(by_hand(*pair)) for pair in pairs]


@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize(("bits", "width"), [(bits, width) for bits in (8, 4) for width in WIDTHS[bits]])
def test_equals_the_products_with_the_wide_weights(case: str, bits: int, width: int) -> None:
    counts = COUNTS[case]
    ends, matrix = torch.tensor(counts).cumsum(0), torch.arange(len(counts)) % MATRICES
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7)):
        rows = noise(sum(counts), width, seed=1).to(dtype)
        wide, (weight, scale) = wide_stacks(70, width, bits, dtype), stacks(70, width, bits, dtype)
        parts = [part.double() @ wide[at % MATRICES].t() for at, part in enumerate(rows.split(counts))]
        for triton in (False, True):
            found = grouped_narrow_product(rows, weight[matrix], scale[matrix], ends, triton)
            assert found.shape == (sum(counts), 70) and found.dtype == dtype
            torch.testing.assert_close(found.double(), torch.cat(parts), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_does_not_depend_on_the_others_of_its_group(bits: int) -> None:
    rows, narrow = noise(30, 160, seed=2), stacks(40, 160, bits)
    whole = grouped_narrow_product(rows, *narrow, torch.tensor([4, 21, 30]), triton=True)
    some = torch.tensor([1, 4, 12, 20, 29])  # one of the first group, three of the second
    alone = grouped_narrow_product(rows[some], *narrow, torch.tensor([1, 4, 5]), triton=True)
    torch.testing.assert_close(whole[some], alone, rtol=1e-6, atol=1e-6)


def test_groups_without_rows_are_not_read() -> None:
    weight, scale = stacks(16, 128, 8)
    scale = scale * torch.tensor([torch.nan, 1, torch.nan])[:, None, None]
    found = grouped_narrow_product(noise(2, 128), weight, scale, torch.tensor([0, 2, 2]), triton=True)
    torch.testing.assert_close(found, reference(noise(2, 128), weight, scale, torch.tensor([0, 2, 2])))
