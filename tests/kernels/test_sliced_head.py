"""Statistics of a head that ranks share, against those of the whole logits, for any cut."""

from __future__ import annotations

import math
import random

import pytest
import torch
from rank_threads import threads, together
from torch import Tensor

from dllm.kernels.row_statistics import reference
from dllm.parts import ALL_STATISTICS, CHUNK_ROWS, ROW_STATISTICS, HeadSlice, Ranks, sliced_head_statistics


def joined(z: Tensor, size: int, banned: tuple[int, ...] = (), at: Tensor | None = None) -> dict[str, Tensor]:
    """What ranks find of logits [R, V], which stand for hidden states."""
    ranks = threads(size)

    def own(rank: Ranks) -> dict[str, Tensor]:
        begin, end = rank.share(z.shape[1])
        head = HeadSlice(rank, z.shape[1], lambda rows: rows[:, begin:end].clone(), None)
        return sliced_head_statistics(z, head, banned, ALL_STATISTICS, at)

    first, *others = together(ranks, lambda rank: own(ranks[rank]))
    assert all(torch.equal(one[name], first[name]) for one in others for name in first)
    assert all(one.account.gathers == 1 for one in ranks)
    return first


# Few values, so that many tie; what counts as minus infinity; rows of nothing else.
NUMBERS = [-math.inf, -1e31, -3.0, 0.0, 0.5, 0.5, 2.0, 9.0, 17.25]


@pytest.mark.daily(12)
@pytest.mark.parametrize("seed", range(40))
def test_summaries_of_any_cut_join_to_the_statistics_of_the_row(seed: int) -> None:
    dice = random.Random(seed)
    size, vocab, rows = dice.randint(2, 5), dice.randint(5, 23), dice.randint(1, 4)
    dead = dice.random() < 0.2
    cells = [dice.choice(NUMBERS[:2] if dead else [*NUMBERS, dice.uniform(-50, 50)]) for _ in range(rows * vocab)]
    z = torch.tensor(cells, dtype=torch.float64).view(rows, vocab)
    banned = tuple(dice.sample(range(vocab), dice.randint(0, 3)))
    at = torch.tensor([dice.randrange(vocab) for _ in range(rows)])
    kept = z.masked_fill(z < -1e30, -torch.inf)
    kept[:, list(banned)] = -torch.inf
    expected, found = reference(kept), joined(z, size, banned, at)
    assert torch.equal(found["token"], expected["token"])
    for name in ROW_STATISTICS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-12, msg=name)
    wanted = z.gather(1, at[:, None])[:, 0]
    assert torch.equal(found["logit"], wanted.masked_fill(torch.isin(at, torch.tensor(banned).long()), -torch.inf))


def test_many_rows_take_one_exchange() -> None:
    z = torch.randn(CHUNK_ROWS + 3, 37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, found = reference(z), joined(z, 3)
    for name in ROW_STATISTICS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [False, True])
def test_the_kernel_s_summaries_join_as_well(kernel: bool) -> None:
    """Interpreted: of logits, and fused with the product."""
    noise = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(5, 32, generator=noise), torch.randn(301, 32, generator=noise)
    logits = hidden @ weight.T
    logits[:, [7, 200]] = -torch.inf
    ranks = threads(2)

    def own(rank: Ranks) -> dict[str, Tensor]:
        begin, end = rank.share(301)
        mine = weight[begin:end].contiguous()
        head = HeadSlice(rank, 301, lambda rows: rows @ mine.T, mine if kernel else None)
        at = torch.arange(5) * 49
        return sliced_head_statistics(hidden, head, (7, 200), ALL_STATISTICS, at, triton=True)

    expected, expected_at = reference(logits.double()), logits[torch.arange(5), torch.arange(5) * 49].double()
    for found in together(ranks, lambda rank: own(ranks[rank])):
        assert torch.equal(found["token"], expected["token"])
        for name in ROW_STATISTICS:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found["logit"], expected_at, rtol=1e-5, atol=1e-5)


def test_a_lookup_gives_the_owner_s_logits() -> None:
    noise = torch.Generator().manual_seed(2)
    hidden, weight = torch.randn(4, 8, generator=noise), torch.randn(11, 8, generator=noise)
    ids, ranks = torch.tensor([[0, 10], [5, 4], [3, 7], [6, 6]]), threads(3)

    def own(rank: Ranks) -> Tensor:
        begin, end = rank.share(11)
        return HeadSlice(rank, 11, lambda rows: rows, weight[begin:end], 0.5).lookup(hidden, ids, False)

    for found in together(ranks, lambda rank: own(ranks[rank])):
        torch.testing.assert_close(found, 0.5 * (hidden @ weight.T).gather(1, ids))
