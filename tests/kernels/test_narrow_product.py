"""Products with narrow weights in the interpreter, against weights that are widened here, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dllm.kernels.narrow_product import reference
from dllm.parts import narrow_product, narrowed


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(weight: Tensor, scale: Tensor) -> np.ndarray:
    """The weights [N, D] as the file's head defines them, in float64."""
    sizes = scale.double().numpy()
    if weight.dtype == torch.int8:
        return weight.numpy().astype(float) * sizes
    out = np.empty((len(weight), 2 * weight.shape[1]))
    sizes = np.pad(sizes, ((0, 0), (0, -sizes.shape[1] % 4), (0, 0)))
    for (output, at), byte in np.ndenumerate(weight.numpy()):
        chunk, j = divmod(at, 64)
        for column, nibble in ((128 * chunk + j, byte % 16), (128 * chunk + 64 + j, byte // 16)):
            size, zero = sizes[output, column // 32]
            out[output, column] = (int(nibble) - 8) * size + zero
    return out[:, : 32 * scale.shape[1]]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_rounded_to_the_nearest_step(bits: int, dtype: torch.dtype) -> None:
    weight = noise(37, 384).to(dtype)
    weight[5], weight[6] = 0, 0.375
    weight[7] += 9
    found = by_hand(*narrowed(weight, bits))
    wide = weight.double().numpy()
    groups = wide.reshape(37, -1, 32 if bits == 4 else 384)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    step = np.maximum(np.abs(low), np.abs(high)) / 127 if bits == 8 else (high - low) / 15
    # Half a step; and by rounding the scale (2^-9 at most in bfloat16) the largest weight, 127 steps or 8, loses; in
    # four bits what a step of 0 stands for is rounded, too.
    ulp = 2**-9 if dtype == torch.bfloat16 else 2**-24
    bound = step * (0.5 + (127 if bits == 8 else 16) * ulp) + (np.abs(groups).max(-1, keepdims=True) * ulp)
    error = np.abs(found - wide).reshape(groups.shape)
    assert (error <= bound + 1e-30).all() and (found[5] == 0).all()
    assert bits == 8 or np.allclose(found[6], 0.375, rtol=1e-6), "all equal: none is rounded"
    assert error.mean() < 0.28 * step.mean(), "a quarter of a step on average: rounded, not cut"


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [0, 1, 17, 33, 130])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2**-7)], ids=str)
def test_equals_the_product_with_the_wide_weights(bits: int, rows: int, dtype: torch.dtype, tolerance: float) -> None:
    x, (weight, scale) = noise(rows, 256, seed=1).to(dtype), narrowed(noise(70, 256).to(dtype) / 16, bits)
    expected = torch.from_numpy(x.double().numpy() @ by_hand(weight, scale).T)
    for triton in (False, True):
        found = narrow_product(x, weight, scale, triton)
        assert found.shape == (rows, 70) and found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("bits", "width"), [(8, 90), (4, 32), (4, 224), (4, 288)])
def test_eight_bits_take_any_width_and_four_bits_whole_groups(bits: int, width: int) -> None:
    x, narrow = noise(3, width, seed=1), narrowed(noise(5, width) / 16, bits)
    expected = torch.from_numpy(x.double().numpy() @ by_hand(*narrow).T).float()
    for found in (narrow_product(x, *narrow, triton=True), reference(x, *narrow)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_does_not_depend_on_its_neighbours(bits: int) -> None:
    x, narrow = noise(30, 256, seed=1), narrowed(noise(40, 256), bits)
    whole = narrow_product(x, *narrow, triton=True)
    alone = narrow_product(x[20:25], *narrow, triton=True)
    torch.testing.assert_close(whole[20:25], alone, rtol=1e-5, atol=1e-5)
