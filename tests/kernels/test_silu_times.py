"""The gates of MLPs in the interpreter."""

from __future__ import annotations

import pytest
import torch

from dllm.kernels.silu_times import reference
from dllm.parts import silu_times


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("halves", [True, False], ids=["halves", "apart"])
@pytest.mark.parametrize(
    ("dtype", "ulp"),
    [(torch.float32, 1e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float64, 1e-15)],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 100), (7, 128), (2, 3000), (0, 8)], ids=str)
def test_equals_the_definition(shape: tuple[int, ...], dtype: torch.dtype, ulp: float, halves: bool, gate: str) -> None:
    """The interpreter cuts to bfloat16 where torch rounds: after the gate and after the product, an ulp each."""
    both = (4 * torch.randn(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(1))).to(dtype)
    a, b = both.chunk(2, -1) if halves else (part.clone() for part in both.chunk(2, -1))
    found, expected = silu_times(a, b, triton=True, gelu=gate == "gelu"), reference(a, b, gate == "gelu")
    assert found.is_contiguous()
    near = 3 * ulp if gate == "silu" else 16 * ulp  # 1 + tanh cancels where the gate is shut
    torch.testing.assert_close(found, expected, rtol=3 * ulp, atol=near)


def test_far_gates_are_shut_or_open() -> None:
    a, b = torch.tensor([[-200.0, -90.0, 0.0, 90.0]]), torch.ones(1, 4)
    assert silu_times(a, b, triton=True).tolist() == [[0.0, 0.0, 0.0, 90.0]]
