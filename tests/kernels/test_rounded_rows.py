"""Rows in eight bits: products of whole numbers against sums of integers by hand, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_threads import threads, together
from torch import Tensor, nn

from dllm.common import machine_note
from dllm.kernels import native, rounded_four, rounded_rows
from dllm.parts import (
    AT_ONCE,
    FEWEST,
    FourBitTiles,
    NarrowLinear,
    Processor,
    RoundedLinear,
    exact_levels,
    in_steps,
    layout,
    measured_processor,
    narrow_here,
    narrowed,
    scaled,
    widened,
)

COUNTS = (0, 1, 3, 40, AT_ONCE + 5)


@cache
def here() -> Processor:
    """What this processor can do, timed at one size alone."""
    if not exact_levels():
        pytest.skip("this processor has no exact product of bytes")
    return Processor(exact_levels(), layout(), four_from=20)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def rows_with_outliers(count: int, width: int) -> Tensor:
    """Every third row has a number that hides the others; one row is zero."""
    rows = noise(count, width)
    rows[::3, 5] = 300
    rows[1:2] = 0
    return rows


def narrow(bits: int, outputs: int = 192, width: int = 512, bias: bool = False) -> NarrowLinear:
    linear = nn.Linear(width, outputs, bias, dtype=torch.bfloat16)
    with torch.no_grad():
        linear.weight.copy_(noise(outputs, width, seed=bits) / 16)
    return NarrowLinear.of(linear, bits, triton=False)


def by_hand(row: list[float], most: int) -> list[float]:
    """A row as it is rounded, number by number, in float32."""
    numbers = np.float32(row)
    scale = max(map(abs, numbers)) / np.float32(most)
    if not scale:
        return row
    steps = [np.rint(x / scale) for x in numbers]
    first = [step * scale for step in steps]
    if sum(map(abs, steps)) >= FEWEST * len(row):
        return [float(x) for x in first]
    finer = scale / np.float32(2 * most)
    return [float(near + np.rint((x - near) / finer) * finer) for near, x in zip(first, numbers, strict=True)]


@pytest.mark.parametrize("most", [127, 63])
def test_a_row_is_rounded_by_its_own_scale_and_twice_where_one_number_hides_the_others(most: int) -> None:
    rows = rows_with_outliers(9, 96)
    found = in_steps(rows, most)
    assert found.again.tolist() == [0, 1, 3, 6] and found.steps.abs().max() <= most
    expected = torch.tensor([by_hand(row, most) for row in rows.tolist()])
    finer = 300 / most / (2 * most)  # a step of the second rounding; a half of it, where the first has lost digits
    torch.testing.assert_close(found.widened(torch.float32), expected, rtol=1e-5, atol=1.01 * finer)
    assert (found.widened(torch.float64) - rows)[::3].abs().max() <= 0.51 * finer


@pytest.mark.parametrize("outputs", [192, 40])
def test_eight_bits_are_sums_of_whole_numbers(outputs: int) -> None:
    product, most = narrow(8, outputs), here().most
    layer = RoundedLinear(product, here())
    assert layer.eight is not None
    for count in COUNTS[1:]:
        rows = rows_with_outliers(count, 512)
        steps = in_steps(rows, most)
        sums = (steps.steps.long() @ product.narrow.long().t()).double() * product.scale.double()
        expected = steps._replace(scale=steps.scale.double()).joined(sums, torch.float64)
        torch.testing.assert_close(layer.eight(steps, torch.float64), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plain", [False, True], ids=["onednn", "int_mm"])
def test_four_bits_are_widened_to_the_nearest_of_eight(plain: bool) -> None:
    if not here().pack:
        pytest.skip("another layout of four bits")
    product = narrow(4, 320)
    four = FourBitTiles(product.narrow, product.scale, here().pack)
    wide = widened(*narrowed(noise(320, 512, seed=4) / 16, 4), torch.float64)
    tops = four.tops.double()[:, None]
    eight = (wide / tops).round()
    assert (eight.abs().amax(1) == 127).all()
    pack = 2 * four.half
    tile = four.tile(0, pack, torch.empty(512 * pack, dtype=torch.int8)).t()
    assert (tile.long() - eight[:pack]).abs().max() <= 1  # of sixteen bits: 0.2 % end in the next step
    assert (tile.long() != eight[:pack]).double().mean() < 0.02
    rows = in_steps(rows_with_outliers(AT_ONCE + 5, 512), here().most)
    expected = rows.widened(torch.float64) @ (eight * tops).t()
    found = four.product(rows, torch.float32, here().most, plain)
    error = (found.double() - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-9)
    assert error.max() < 6e-3


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_has_the_same_bits_alone_and_among_any_others(bits: int) -> None:
    if bits == 4 and not here().pack:
        pytest.skip("another layout of four bits")
    layer = RoundedLinear(narrow(bits, bias=True), here(), invariant=True)
    rows = rows_with_outliers(COUNTS[-1], 512)
    with torch.inference_mode():
        whole = layer(rows)
        for begin, end in ((0, 0), (0, 1), (1, 2), (3, 43), (100, COUNTS[-1])):
            assert torch.equal(layer(rows[begin:end]), whole[begin:end])


@pytest.mark.parametrize(("bits", "error"), [(8, 0.03), (4, 0.12)])
def test_few_rows_and_many_are_near_the_wide_product(bits: int, error: float) -> None:
    if bits == 4 and not here().pack:
        pytest.skip("another layout of four bits")
    layer, wide = RoundedLinear(narrow(bits), here()), (noise(192, 512, seed=bits) / 16).double()
    for count in COUNTS:
        rows = rows_with_outliers(count, 512)
        expected = rows.double() @ wide.t()
        with torch.inference_mode():
            found = layer(rows.view(1, count, 512)).view(count, 192).double()
        assert ((found - expected).norm(dim=1) <= error * expected.norm(dim=1)).all()


def test_ranks_that_share_columns_have_the_scale_of_the_whole_row() -> None:
    rows, product = rows_with_outliers(7, 512), narrow(8)

    def own(rank: int) -> Tensor:
        part = slice(rank * 256, rank * 256 + 256)
        half = NarrowLinear(product.narrow[:, part].contiguous(), product.scale, None, 8, False)
        layer = RoundedLinear(half, here(), ranks[rank])
        found: Tensor = layer(rows[:, part])
        return found.double()

    ranks = threads(2)
    total = sum(together(ranks, own))
    expected = RoundedLinear(product, here())(rows).double()
    torch.testing.assert_close(total, expected, rtol=2**-6, atol=2**-6)


def test_the_faster_way_is_taken_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts rows: the operator of four bits takes 10 a row, a tile 100 and 1 a row."""
    if not here().pack:
        pytest.skip("another layout of four bits")
    spent = {"FourBitTiles.operator": lambda rows: 10 * len(rows), "FourBitTiles.product": lambda rows: 100 + len(rows)}
    clock = [0.0]
    for name, cost in spent.items():

        def act(_self: Any, rows: Any, *_more: Any, cost: Any = cost) -> None:
            clock[0] += cost(rows if isinstance(rows, Tensor) else rows.steps)

        monkeypatch.setattr(FourBitTiles, name.partition(".")[2], act)
    monkeypatch.setattr(machine_note.time, "process_time", lambda: clock[0])
    assert measured_processor() == replace(
        here(), four_from=12
    )  # at 10 rows 100 are less than 110, at 12 rows 120 more than 112


@pytest.mark.parametrize("limit", [1 << 15, 1 << 10])
def test_a_product_that_saturates_is_found_out(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of two products in sixteen bits, as vpmaddubsw makes them: exact with steps of seven bits, or with none."""

    def saturating(
        part: Tensor, _: float, zero: int, weight: Tensor, scale: Tensor, zeros: Tensor, bias: Tensor, *_more: Any
    ) -> Tensor:
        pairs = (part.long()[:, None] * weight.long()).unflatten(-1, (-1, 2)).sum(-1).clamp(-limit, limit - 1)
        return pairs.sum(-1).float() * scale + bias

    class Operators:
        qlinear_prepack = staticmethod(lambda weight, shape: weight)
        qlinear_pointwise = staticmethod(saturating)

    monkeypatch.setattr(torch.ops, "onednn", Operators)
    assert exact_levels() == (63 if limit == 1 << 15 else 0)


def test_a_torch_without_the_operators_rounds_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "onednn", object())
    assert exact_levels() == 0 and measured_processor() == Processor()


@pytest.fixture(params=[1, 2], ids=["alone", "two_threads"])
def compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    if native.library() is None:
        pytest.skip("no C compiler")
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("most", [127, 63])
@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.usefixtures("compiled")
def test_compiled_passes_give_the_bits_of_torch(most: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding, widening of four bits for layouts of 64 and 32 outputs, scales of outputs, and joining."""
    rows, weight = rows_with_outliers(count, 128), noise(192, 128) / 16
    rows[-1:] *= 1e-38  # whose scale is the least
    products = torch.randn(2 * count, 192) * 1e3
    whole = (products * 100).int()
    four = [FourBitTiles(*narrow_here(weight, 4), pack) for pack in (64, 32)]

    def all_passes() -> list[Tensor]:
        steps = in_steps(rows, most)
        product = products[: len(steps.steps)]
        out = torch.zeros(count, 300, dtype=torch.bfloat16)
        steps.joined(product, torch.bfloat16, out[:, 20:212])
        tiles = [one.tile(64, 192, torch.empty(128 * 128, dtype=torch.int8)) for one in four]
        joined, whole_product = (
            steps.joined(product, torch.bfloat16),
            four[0].product(steps, torch.bfloat16, most, True),
        )
        return [*steps, joined, whole_product, out, scaled(whole.clone(), torch.linspace(0.1, 3, 192)), *tiles]

    fast = all_passes()
    for module in (rounded_rows, rounded_four):
        monkeypatch.setattr(module, "library", lambda: None)
    for one, expected in zip(fast, all_passes(), strict=True):
        assert one.dtype == expected.dtype and torch.equal(one, expected)


@pytest.mark.parametrize("compiler", ["nothing", "false", "true"])
def test_without_a_compiler_that_works_there_is_no_library(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library.__wrapped__() is None


@pytest.mark.skipif(native.library() is None, reason="no C compiler")
def test_the_library_is_compiled_once_and_again_where_it_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    assert native.library.__wrapped__() is not None
    (file,) = tmp_path.rglob("*.so")
    times = list[Any]()
    run = native.subprocess.run
    monkeypatch.setattr(native.subprocess, "run", lambda *words, **more: times.append(words) or run(*words, **more))
    assert native.library.__wrapped__() is not None and not times
    broken = tmp_path / "c" / file.relative_to(tmp_path / "a")
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"not a library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert native.library.__wrapped__() is not None and len(times) == 1
    (tmp_path / "b").write_text("")  # in the place of the folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert native.library.__wrapped__() is not None and len(times) == 2
