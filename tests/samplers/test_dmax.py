"""DMax's rule beside a program in plain Python, its embeddings beside the formula, and what a masked turn pays."""

from __future__ import annotations

import random

import torch
from harness import Combination, forward_of, model, parts_of, requests
from torch import nn

from dllm.parts import Canvas, DMax, MixedInputs, Sampling, Soft, mixed_embeddings, start_rows
from tests.samplers.game import PROMPT, Game, positions

K = 6


def by_hand(tokens: list[int | None], sure: list[float], best: list[int], bar: float) -> tuple[list[int], bool, bool]:
    """What a forward commits in a block of ``tokens`` (None: a mask), which it replaces in place; whether it was sure
    of all, and whether anything changed."""
    masks = [at for at, token in enumerate(tokens) if token is None]
    accepted = list[int]()
    for at in masks:
        if sure[at] < bar:
            break
        accepted.append(at)
    accepted = accepted or masks[:1]
    now = [best[at] if token is not None or at in accepted else None for at, token in enumerate(tokens)]
    changed, tokens[:] = now != tokens, now
    return accepted, None not in now and min(sure) >= 0.9, changed


def test_a_block_is_what_a_program_from_the_rules_text_makes_of_it() -> None:
    closed = {"sure": 0, "same": 0, "limit": 0}
    for seed in range(40):
        draw = random.Random(seed)
        bar = draw.choice([0.0, 0.5, 0.8])
        game, tokens = Game(DMax(bar), K, block=K), list[int | None]([None] * K)
        for forward in range(1, K + 1):
            sure = [draw.choice([0.95, 0.9] if draw.random() < 0.7 else [0.8, 0.5, 0.3]) for _ in range(K)]
            stays = draw.choice([1.0, 0.7])  # of what stands
            best = [token if token and draw.random() < stays else draw.randint(1, 9) for token in tokens]
            committed = game.turn(sure, best)
            accepted, all_sure, changed = by_hand(tokens, sure, best, bar)
            assert committed == accepted
            shown = game.canvas.tokens[0, PROMPT:].tolist()
            assert [
                None if hidden else token
                for token, hidden in zip(shown, game.canvas.masked[0, PROMPT:].tolist(), strict=True)
            ] == tokens
            mixture = game.step.mixture
            assert mixture is not None
            assert positions(mixture.where)[0] == [at for at, token in enumerate(tokens) if token is not None]
            ends = all_sure or not changed or forward == K
            assert bool(game.step.keep_open[0]) == (not ends)
            if ends:
                closed["sure" if all_sure else "same" if not changed else "limit"] += 1
                break
    assert min(closed.values()) > 1, closed


def test_a_mixture_is_stretched_to_the_mean_norm_of_its_parts() -> None:
    noise = torch.Generator().manual_seed(1)
    weight = torch.randn(9, 5, generator=noise)
    embed, soft = nn.Embedding.from_pretrained(weight), Soft("decided", 2, True)
    tokens, weights = (
        torch.tensor([[1, 2], [3, 4], [5, 6]]),
        torch.tensor([[0.6, 0.3], [1.0, 0.0], [0.0, 0.0]]).double(),
    )
    found = mixed_embeddings(embed, tokens, weights, 8, soft)
    wide = weight.double()
    u = 0.6 * wide[1] + 0.3 * wide[2] + 0.1 * wide[8]
    goal = 0.6 * wide[1].norm() + 0.3 * wide[2].norm() + 0.1 * wide[8].norm()
    torch.testing.assert_close(found[0], (u * goal / (u.norm() + 1e-6)).float())
    torch.testing.assert_close(found[1], (wide[3] * wide[3].norm() / (wide[3].norm() + 1e-6)).float())
    torch.testing.assert_close(found[2], weight[8], rtol=2e-6, atol=0)
    plain = mixed_embeddings(embed, tokens, weights, 8, Soft("undecided", 2))
    torch.testing.assert_close(plain[0], u.float())


def test_a_turn_of_tokens_and_masks_carries_nothing_and_is_given_nothing() -> None:
    parts, network = parts_of(Combination("confidence", "fixed", "dual", "none")), model("tiny-llada")
    forward = forward_of(network, parts, Sampling())
    assert not any(isinstance(extra, MixedInputs) for extra in forward.extras)
    rows = start_rows(Canvas.of(requests(), 61), forward, parts, None)
    begun = forward.run(rows)
    assert rows.carried == {} and all(given.conditioning is None for given in begun.inputs)
