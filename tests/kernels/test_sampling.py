"""The nucleus and Gumbel's draw: without a sort, in one pass."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm.common import nucleus as module
from dllm.parts import gumbel, gumbel_argmax, mixed, nucleus

TOP_PS, DTYPES = (1e-9, 0.301, 0.77, 0.95, 0.9999), (torch.float32, torch.float64)
ROWS: dict[str, Tensor] = {
    "flat": torch.zeros(2, 50),
    "ties at the bound": torch.tensor([[3.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 3.0, 1.0, 1.0, 0.0, 1.0]]),
    "one certain": torch.tensor([[0.0, 200.0, 0.0, -5.0]]),
    "banned": torch.tensor([[0.0, -torch.inf, 0.5, -torch.inf, 0.4]]),
    "far apart": torch.tensor([[-1e4, 1e4, 1e4 - 1, 0.0, 1e4 - 1]]),
    "one token": torch.tensor([[7.0]]),
    "random": 4 * torch.randn(5, 5000, generator=torch.Generator().manual_seed(1)),
    "wide": torch.randn(3, 3000, generator=torch.Generator().manual_seed(2)) / 50,
}


def by_sorting(logits: Tensor, top_p: float) -> Tensor:
    """The definition as it is published with Dream: sort, add up, cut."""
    ordered, index = logits.double().sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(-1)
    dropped = (mass.cumsum(-1) - mass) > top_p
    return logits.masked_fill(torch.zeros_like(dropped).scatter(-1, index, dropped), -torch.inf)


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", ROWS)
def test_the_nucleus_is_that_of_a_sort(name: str) -> None:
    for top_p, dtype in zip(TOP_PS, cycle(DTYPES), strict=False):
        rows = ROWS[name].to(dtype)
        assert torch.equal(nucleus(rows, top_p), by_sorting(rows, top_p)), top_p


def test_a_nucleus_larger_than_the_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 8)
    for rows in (ROWS["random"], ROWS["wide"], ROWS["flat"]):
        assert torch.equal(nucleus(rows, 0.9), by_sorting(rows, 0.9))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_draw_is_gumbels(dtype: torch.dtype, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against noise made key by key; rows that are not random take the argmax, of equals the lowest."""
    import dllm.kernels.gumbel_argmax as draw

    monkeypatch.setattr(draw, "processors", lambda device: splits)
    count, vocabulary = 6, 2500
    logits: Any = torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(3)).to(dtype)
    logits[0] = logits[1] = 0.0
    logits[2, 100:] = -torch.inf
    seed, position = torch.tensor([5, 5, 7, -3, 2**40, 0]), torch.arange(count)
    random = torch.tensor([True, False, True, True, True, False])
    noise = gumbel(seed[:, None], position[:, None], 9, torch.arange(vocabulary))
    expected = torch.where(random[:, None], logits.double() + noise, logits.double()).argmax(-1)
    for triton in (False, True):
        assert torch.equal(gumbel_argmax(logits, mixed(seed, position, 9), random, triton), expected)
    assert expected[1] == 0 and expected[2] < 100
    monkeypatch.setattr(draw, "CACHED", 5)  # a row at a time
    assert torch.equal(gumbel_argmax(logits, mixed(seed, position, 9), random), expected)
    assert gumbel_argmax(logits[:0], seed[:0], random[:0], True).shape == (0,)


def test_draws_have_the_distribution() -> None:
    """20,000 draws from four tokens: chi-square with three degrees of freedom, at the one in a million."""
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    state = mixed(torch.arange(20000), 1, 2)
    found = gumbel_argmax(chances.log().expand(20000, 4), state, torch.ones(20000) > 0).bincount(minlength=4)
    assert float(((found - 20000 * chances) ** 2 / (20000 * chances)).sum()) < 30.7
