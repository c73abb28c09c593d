"""The certainty density against its sums written out."""

from __future__ import annotations

from math import exp

import pytest
import torch

from dllm.parts import certainty_density


def summed(known: list[bool], sigma: float) -> list[float]:
    """The density of an answer: prompt before it, and as many columns behind it as its last one is known."""
    length = len(known)

    def kernel(distance: int) -> float:
        return exp(-(distance**2) / (2 * sigma**2))

    padded = dict.fromkeys(range(-length, 0), True) | dict(enumerate(known))
    padded |= dict.fromkeys(range(length, 2 * length), known[-1])
    whole = sum(kernel(distance) for distance in range(-3 * length, 3 * length))
    return [sum(kernel(at - j) for j, told in padded.items() if told) / whole for at in range(length)]


@pytest.mark.parametrize("sigma", [0.5, 3.0, 10.0, 200.0])
def test_it_is_the_sum_that_it_says(sigma: float) -> None:
    """Rows of several lengths, decided here and there, in a canvas that is wider than each."""
    noise, lengths, starts = torch.Generator().manual_seed(8), [1, 7, 40, 16], [0, 3, 2, 9]
    known = torch.rand(4, 50, generator=noise) < 0.4
    known[2, 41], known[1, 9] = True, False
    start = torch.tensor(starts)
    out = certainty_density(known, start, start + torch.tensor(lengths), sigma)
    for row, (begin, length) in enumerate(zip(starts, lengths, strict=True)):
        expected = torch.zeros(50, dtype=torch.float64)
        answer = known[row, begin : begin + length].tolist()
        expected[begin : begin + length] = torch.tensor(summed(answer, sigma), dtype=torch.float64)
        torch.testing.assert_close(out[row], expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize(("length", "edge"), [(16, 0.95), (32, 0.9994)])
def test_what_lies_beyond_the_padding_counts_as_unknown(length: int, edge: float) -> None:
    known = torch.ones(1, length, dtype=torch.bool)
    density = certainty_density(known, torch.tensor([0]), torch.tensor([length]), 10.0)[0]
    assert float(density[0]) == pytest.approx(edge, abs=0.5 * 10 ** -len(str(edge).partition(".")[2]))
    torch.testing.assert_close(density[0], density[-1])


def test_far_from_the_text_it_falls_and_keeps_its_order() -> None:
    """The tails are far below the rounding of the whole sum, and still tell near from far."""
    known = torch.zeros(1, 120, dtype=torch.bool)
    density = certainty_density(known, torch.tensor([0]), torch.tensor([120]), 3.0)[0]
    assert bool((density[1:100] < density[:99]).all()) and 0 < float(density[99]) < 1e-200
