"""d3llm: little entropy anywhere, and something in the first block that is not full."""

from __future__ import annotations

from dllm.parts import D3LLM, Ahead, DParallel
from tests.samplers.game import Game


def ahead(sampler: D3LLM, length: int = 6, block: int = 3) -> Game:
    """With two blocks open."""
    game = Game(sampler, length, block=block)
    game.blocks = Ahead(block, 0.0)
    game.span = game.blocks.start(game.canvas)
    return game


def test_the_first_block_gets_a_commit_beside_the_best_of_all() -> None:
    game = ahead(D3LLM(0.5))
    assert game.turn(0.5, entropy=[0.9, 0.8, 0.7, 0.6, 0.9, 0.9]) == [2, 3] and game.accepted == []


def test_for_dream_only_the_first_block_is_made_to_commit_and_the_bar_is_strict() -> None:
    game = ahead(D3LLM(0.5, form="dream"))
    assert game.turn(0.5, entropy=[0.9, 0.8, 0.7, 0.6, 0.9, 0.9]) == [2] and game.accepted == []
    assert game.turn(0.5, entropy=[0.9, 0.8, 0.7, 0.4, 0.5, 0.9]) == [1, 3] and game.accepted == [3]


def test_what_passes_in_the_first_block_is_enough() -> None:
    game = ahead(D3LLM(0.5))
    assert game.turn(0.5, entropy=[0.2, 0.8, 0.9, 0.1, 0.5, 0.9]) == [0, 3, 4] and game.accepted == [0, 3, 4]


def test_in_one_block_at_a_time_it_is_dparallel() -> None:
    """Law 7, and the paper's own limit: with an opening share of 1 blocks come one after the other."""
    entropies = [[(7 * at + 3 * turn) % 10 / 10 for at in range(8)] for turn in range(8)]
    one, other = Game(D3LLM(0.3), 8, block=4), Game(DParallel(0.3), 8, block=4)
    assert [one.turn(0.5, entropy=row) for row in entropies] == [other.turn(0.5, entropy=row) for row in entropies]
