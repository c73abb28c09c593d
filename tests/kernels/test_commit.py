"""Threshold, at least one and commit in the merge, against the definition and against the sampler."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dllm.kernels import head_statistics
from dllm.kernels.commit import reference, threshold_commit


def case(rows: int, n: int, vocabulary: int, length: int) -> tuple[Tensor, ...]:
    noise = torch.Generator().manual_seed(n)
    logits = 6 * torch.randn(rows, n, vocabulary, generator=noise)
    columns = torch.stack([torch.randperm(length, generator=noise)[:n].sort().values for _ in range(rows)])
    columns[-1, -1] = length  # padding
    committable = torch.rand(rows, n, generator=noise) < 0.8
    tokens = torch.randint(0, vocabulary, (rows, length), generator=noise)
    masked, threshold = torch.ones_like(tokens, dtype=torch.bool), torch.full((rows,), 0.7).double()
    return logits, columns, committable, tokens, masked, threshold


@pytest.mark.parametrize("shape", [(1, 1, 33, 4), (3, 7, 100, 12), (2, 33, 600, 40)], ids=str)
def test_equals_the_definition(shape: tuple[int, int, int, int]) -> None:
    arguments = case(*shape)
    for found, expected in zip(threshold_commit(*arguments, triton=True), reference(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_ties_commit_the_lowest_position_and_finished_rows_stay() -> None:
    logits = torch.zeros(2, 3, 50)
    logits[:, :, 7] = 1.0
    columns, tokens = torch.tensor([[1, 3, 5], [0, 2, 4]]), torch.full((2, 6), 49)
    committable = torch.tensor([[True, True, True], [False, False, False]])
    masked, threshold = torch.ones(2, 6, dtype=torch.bool), torch.full((2,), 0.9).double()
    found, still, _, _ = threshold_commit(logits, columns, committable, tokens, masked, threshold, triton=True)
    assert found.tolist() == [[49, 7, 49, 49, 49, 49], [49] * 6]
    assert still[0].tolist() == [True, False, True, True, True, True]
    assert still[1].all()
    assert tokens.eq(49).all(), "the canvas that was given is left alone"


@pytest.mark.parametrize(("rows", "n"), [(2, 5), (2, 130), (1, 520)])
def test_commits_from_a_head_whose_logits_were_never_stored(rows: int, n: int) -> None:
    noise = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(rows * n, 32, generator=noise), torch.randn(90, 32, generator=noise)
    _, columns, committable, tokens, masked, threshold = case(rows, n, 90, n + 3)
    summaries = head_statistics.summarise_head(hidden, weight)
    found = threshold_commit(summaries, columns, committable, tokens, masked, threshold, triton=True)
    expected = reference((hidden @ weight.T).view(rows, n, 90), columns, committable, tokens, masked, threshold)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_no_rows_and_no_positions() -> None:
    logits, columns, committable, tokens, masked, threshold = case(2, 3, 9, 5)
    for rows, n in ((0, 3), (2, 0)):
        found = threshold_commit(
            logits[:rows, :n], columns[:rows, :n], committable[:rows, :n], tokens[:rows], masked[:rows],
            threshold[:rows], triton=True,
        )  # fmt: skip
        assert torch.equal(found[0], tokens[:rows])
        assert torch.equal(found[1], masked[:rows])
