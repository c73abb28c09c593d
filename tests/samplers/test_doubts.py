"""Token-to-mask: turns worked by hand, and whole decodes beside a loop of its own that knows the rule alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from harness import model, results

from dllm import UserError
from dllm.parts import Finished, Fixed, FullLength, JointThreshold, NoCache, Parts, Request, Result
from tests.samplers.game import MASK, PROMPT, Game, positions

NAME = "tiny-llada21"
PROMPTS = [
    [62, 52, 13, 38, 2, 37, 10, 27, 25, 32, 23, 34, 28, 32, 55],
    [62, 53, 26, 31, 29, 55],
    [62, 50, 1, 22, 1, 19, 31, 8, 3, 0, 21, 25, 30, 39, 55],
]


def log(*likely: float) -> list[float]:
    return torch.tensor(likely, dtype=torch.float64).log().tolist()


def masked_again(game: Game) -> list[int]:
    return positions(game.step.remask)[0]


def test_an_unlikely_token_is_masked_and_filled_again_until_its_budget_is_spent() -> None:
    game = Game(JointThreshold(0.5, repair="low_prob", budget=2, ratio=1.0), 2)
    assert game.turn([0.9, 0.9], [1, 2], current=log(1, 1)) == [0, 1] and masked_again(game) == []
    for _ in range(2):
        assert game.turn(0.9, 5, current=log(0.5, 0.4)) == [] and masked_again(game) == [1]  # 0.5 is not below 0.5
        assert game.turn(0.9, 5, current=log(0.9, 0.9)) == [1]
    assert game.turn(0.9, 5, current=log(0.9, 0.4)) == [] and masked_again(game) == []
    assert bool(game.span.done[0]) and game.canvas.tokens[0, PROMPT:].tolist() == [1, 5]


def test_a_share_of_the_tokens_is_masked_again_the_most_doubtful_first() -> None:
    game = Game(JointThreshold(0.5, repair="mirrored", remask_threshold=0.3, ratio=0.5), 5)
    game.turn(0.9, [1, 2, 3, 4, 5])
    assert game.turn([0.4, 0.8, 0.9, 0.6, 0.8], [8, 8, 3, 8, 8]) == [] and masked_again(game) == [1, 4]
    assert game.turn([0.3, 0.9, 0.9, 0.7, 0.9], [8, 8, 3, 8, 8]) == [1, 4] and masked_again(game) == [3]


def test_a_fall_is_known_from_the_second_forward_that_finds_tokens() -> None:
    game = Game(JointThreshold(0.5, repair="drop", ratio=1.0), 3)
    assert game.turn([0.9, 0.1, 0.1], [1, 2, 3], current=log(1, 1, 1)) == [0]
    assert game.turn([0.9, 0.8, 0.1], [1, 2, 3], current=log(0.5, 1, 1)) == [1] and masked_again(game) == []
    # 0.5 to 0.3 falls by less than 0.3; 0.8, when it was written, to 0.4 by more
    assert game.turn([0.9, 0.8, 0.9], [1, 2, 3], current=log(0.3, 0.4, 1)) == [2] and masked_again(game) == [1]


def test_what_masks_in_the_last_forward_of_a_full_block_is_filled_and_closes() -> None:
    game = Game(JointThreshold(0.5, repair="low_prob", post_edit_steps=1), 4, block=2)
    game.turn(0.9, [1, 2, 0, 0], current=log(1, 1, 1, 1))
    assert game.turn(0.9, [1, 2, 0, 0], current=log(0.1, 0.9, 1, 1)) == [] and masked_again(game) == [0]
    assert game.turn(0.9, [3, 2, 0, 0], current=log(1, 0.9, 1, 1)) == [0]
    assert game.turn(0.9, 9, current=log(1, 1, 1, 1)) == [2, 3]
    assert game.canvas.tokens[0, PROMPT:].tolist() == [3, 2, 9, 9]


def reference(prompt: list[int], test: str, bar: float, budget: int, ratio: float, post: int) -> tuple[list[int], int]:
    """The rule as a loop over one sequence, which runs the model on all columns up to the open block's end: the answer
    and the number of forwards."""
    tokens, forwards, network = [*prompt, *[MASK] * 16], 0, model(NAME)
    for begin in range(len(prompt) // 8 * 8, len(tokens), 8):
        places, spent = range(begin, min(begin + 8, len(tokens))), 0
        counts, before = Counter[int](), dict[int, float]()
        while True:
            empty = [at for at in places if tokens[at] == MASK]
            if not empty and spent == post:
                break
            spent, forwards = spent + (not empty), forwards + 1
            logits = network.head(network.encode(torch.tensor([tokens[: places.stop]])))[0]
            logits[:, MASK] = -torch.inf
            likely = logits.softmax(-1).double()
            sure, best = (found.tolist() for found in likely.max(-1))
            fill = [at for at in empty if sure[at] > 0.4] or sorted(empty, key=lambda at: (-sure[at], at))[:1]
            written = [at for at in places if at >= len(prompt) and at not in empty]
            now = {at: float(likely[at, tokens[at]]) for at in written}
            if not written:
                counts.clear()
            if test == "low_prob":
                doubt = {at: -now[at] for at in written}
            elif test == "mirrored":
                doubt = {at: sure[at] if best[at] != tokens[at] else -1.0 for at in written}
            else:
                doubt = {at: before.get(at, -1.0) - now[at] for at in written}
            least = -bar if test == "low_prob" else bar
            suspects = sorted((-doubt[at], at) for at in written if doubt[at] > least and counts[at] < budget)
            again = [at for _, at in suspects[: max(1, int(ratio * len(written)))]]
            before = now | {at: sure[at] for at in empty} if written else {}
            counts.update(again)
            for at in fill:
                tokens[at] = best[at]
            for at in again:
                tokens[at] = MASK
            if not (empty or again):
                break
    return tokens[len(prompt) :], forwards


def decode(rule: JointThreshold, rows: list[list[int]], cached: bool = False) -> list[Result]:
    batch = [Request.answer(row, 16, MASK) for row in rows]
    return results(model(NAME), Parts(rule, Fixed(8), Finished() if cached else NoCache(), FullLength()), batch)


@pytest.mark.parametrize(
    ("test", "bar", "budget", "ratio", "post"),
    [("low_prob", 0.7, 2, 0.5, 2), ("mirrored", 0.3, 5, 1.0, 16), ("drop", 0.05, 3, 0.25, 3)],
)
def test_decodes_equal_a_loop_that_knows_the_rule_alone_in_a_batch_and_with_the_exact_cache(
    test: str, bar: float, budget: int, ratio: float, post: int
) -> None:
    rule = JointThreshold(0.4, post_edit_steps=post, repair=test, remask_threshold=bar, budget=budget, ratio=ratio)
    with torch.inference_mode():
        expected = [reference(row, test, bar, budget, ratio, post) for row in PROMPTS]
    for cached in (False, True):
        assert [(one.canvas, one.nfe) for one in decode(rule, PROMPTS, cached)] == expected
    plain = decode(JointThreshold(0.4, None, 0), PROMPTS)
    assert sum(nfe for _, nfe in expected) > sum(one.nfe for one in plain) + len(PROMPTS)  # something was masked again
    at_most = 16 + budget * 16 + 3 * post  # of up to three blocks
    assert all(nfe <= at_most for _, nfe in expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repair": "t2t"}, "sampler.repair='t2t' must be one of edit, low_prob, mirrored, drop"),
        ({"remask_threshold": 0.3}, "sampler.remask_threshold=0.3: sampler.repair=edit replaces tokens"),
        ({"repair": "drop", "remask_threshold": 1.5}, r"sampler.remask_threshold=1.5 must lie in \[0, 1\]"),
        ({"repair": "drop", "budget": 0}, "sampler.budget=0 must be at least 1"),
        ({"repair": "drop", "ratio": 2.0}, r"sampler.ratio=2.0 must lie in \[0, 1\]"),
        ({"repair": "drop", "penalty": 1.0}, "sampler.penalty=1.0 changes what is proposed"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        JointThreshold(**options)
