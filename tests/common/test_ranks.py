"""Ranks: one process alone exchanges nothing; shares cover everything once."""

from __future__ import annotations

import pytest
import torch

from dllm.parts import ALONE, Ranks, UserError


def test_alone_nothing_is_exchanged() -> None:
    x = torch.ones(3)
    assert ALONE.sum(x) is x
    assert ALONE.largest(x) is x
    assert ALONE.gather(x).shape == (1, 3)
    assert (ALONE.account.sums, ALONE.account.gathers) == (0, 0)


@pytest.mark.parametrize("count", [3, 7, 8, 101])
def test_shares_cover_all_once(count: int) -> None:
    shares = [Ranks(rank, 3).share(count) for rank in range(3)]
    assert [begin for begin, _ in shares] == [0, *(end for _, end in shares[:-1])]
    assert shares[-1][1] == count
    assert {end - begin for begin, end in shares} <= {count // 3, count // 3 + 1}


def test_ranks_need_processes() -> None:
    with pytest.raises(UserError, match="tp=2 needs a process for each rank"):
        Ranks.joined(2)
