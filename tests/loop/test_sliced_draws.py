"""Draws of ranks that share a head, against those of one process on all logits: every number that is asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from rank_threads import threads, together
from torch import Tensor

from dllm.parts import Canvas, HeadSlice, Ids, OwnIds, Proposer, Ranks, Request, Sampling, drawn_statistics

VOCAB, ROWS, LENGTH = 53, 3, 7
WANTED = frozenset({"first", "second", "gap", "entropy", "logsumexp", "current", "own", "drawn", "likeliest"})
SAMPLINGS: dict[str, dict[str, Any]] = {
    "warm": {"temperature": 0.8},
    "hot": {"temperature": 3.0, "tempered": True},
    "few": {"temperature": 1.0, "top_k": 3},
    "tempered": {"temperature": 0.7, "top_k": 19, "tempered": True},
    "all": {"temperature": 1.0, "top_k": 60},
    "late": {"min_tokens": 4},
    "both": {"temperature": 1.3, "min_tokens": 3, "forbid_eos": True, "eos_last": True},
    "cold": {"top_k": 2},
}


def canvas_of(dice: random.Random) -> Canvas:
    rows = [[dice.randrange(VOCAB) for _ in range(LENGTH)] for _ in range(ROWS)]
    requests = [Request(tokens, [False] + [True] * (LENGTH - 1), 1, seed) for seed, tokens in enumerate(rows)]
    return Canvas.of(requests, 0, temperature=[0.0, 0.9, 2.0])


def numbers(dice: random.Random, ties: bool) -> Tensor:
    """Logits, of which many are equal, or none."""
    found = [dice.choice([-2.0, 0.5, 0.5, 3.0]) if ties else dice.uniform(-6, 6) for _ in range(ROWS * LENGTH * VOCAB)]
    return torch.tensor(found, dtype=torch.float64).view(ROWS, LENGTH, VOCAB)


@pytest.mark.daily(8)
@pytest.mark.parametrize("ties", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_ranks_draw_what_one_process_draws(name: str, size: int, ties: bool) -> None:
    dice = random.Random(f"{name} {size}")
    z, canvas = numbers(dice, ties), canvas_of(dice)
    turn, columns = torch.tensor([0, 4, 9]), torch.arange(LENGTH).expand(ROWS, -1)
    proposer = Proposer(Sampling(**SAMPLINGS[name]), Ids(4, 7, (11,)), WANTED)
    expected, ranks = proposer(z.clone(), canvas, turn, columns), threads(size)

    def own(rank: Ranks) -> dict[str, Tensor]:
        begin, end = rank.share(VOCAB)
        head = HeadSlice(rank, VOCAB, lambda rows: rows[..., begin:end].clone(), None)
        return drawn_statistics(proposer, z, head, canvas, turn, columns)

    found, *others = together(ranks, lambda rank: own(ranks[rank]))
    assert all(torch.equal(one[key], found[key]) for one in others for key in found)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key in ("token", "likeliest"):
            assert torch.equal(found[key], value)
        else:
            torch.testing.assert_close(found[key], value, rtol=1e-12, atol=1e-12, msg=key)
    # 88 bytes a row, 128 with a second distribution, and k logits of each rank where these are filtered
    few = min(proposer.sampling.top_k or 0, -(-VOCAB // size)) if (proposer.sampling.top_k or VOCAB) < VOCAB else 0
    second = 0 if proposer.sampling.plain else 40
    assert ranks[0].account.gathered == ROWS * LENGTH * (88 + second + 8 * few)


def test_each_rank_tells_the_logit_of_the_likeliest_of_its_own_ids() -> None:
    dice = random.Random(4)
    logits, ranks = numbers(dice, ties=False)[:, 0], threads(3)

    def own(rank: Ranks) -> Tensor:
        begin, end = rank.share(VOCAB)
        mine, zeros = logits[:, begin:end], torch.zeros(ROWS, dtype=torch.long)
        likeliest = mine.argmax(-1) + begin
        head = HeadSlice(rank, VOCAB, lambda rows: rows, None)
        return OwnIds(mine, mine, zeros, zeros.bool()).report(mine, mine, likeliest, head, zeros, False)[4]

    for rank, best in zip(ranks, together(ranks, lambda rank: own(ranks[rank])), strict=True):
        begin, end = rank.share(VOCAB)
        assert torch.equal(best, logits[:, begin:end].amax(-1))
