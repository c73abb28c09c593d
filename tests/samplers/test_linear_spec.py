"""Linear speculation: the text of greedy autoregressive decoding, in fewer forwards where drafts are right."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from harness import Combination, model, parts_of, results
from replay_causal import Row, decoded
from replay_parts import CaseParts

from dllm.parts import (
    CausalThenWindow,
    DraftWindow,
    Fixed,
    Ids,
    LinearSpec,
    Request,
    Sampling,
    Sliding,
    StopFront,
    Transformer,
)

MASK, EOS = 60, 61
CAUSAL = ("tiny-nemotron", "tiny-nbdiff")
PLAIN = Sampling(suppress_mask=True)


def greedy(network: Transformer, prompt: list[int], length: int) -> list[int]:
    """The causal network token by token over whole canvases, which knows no loop, cache or order of masks."""
    tokens = list(prompt)
    with torch.inference_mode():
        while len(tokens) < len(prompt) + length and tokens[len(prompt) :][-1:] != [EOS]:
            logits = network.head(network.encode(torch.tensor([tokens]))[0, -1])
            logits[MASK] = -torch.inf
            tokens.append(int(logits.argmax()))
    return tokens


@cache
def random_prompts(name: str) -> list[tuple[list[int], int, list[int]]]:
    """100 prompts of a model, lengths, and what greedy decoding answers."""
    draw = random.Random(51)
    asked = [([draw.randrange(MASK) for _ in range(draw.randint(1, 12))], draw.randint(1, 24)) for _ in range(100)]
    return [(prompt, length, greedy(model(name), prompt, length)) for prompt, length in asked]


def speculated(
    name: str, asked: list[tuple[list[int], int]], window: int, blocks: object, threshold: float
) -> list[Row]:
    """All as one batch, in which some rows draft while others judge."""
    parts = CaseParts(LinearSpec(threshold), blocks, DraftWindow(window), StopFront(), PLAIN)  # type: ignore[arg-type]
    rows = [{"prompt": prompt} for prompt, _ in asked]
    return decoded(model(name), rows, [length for _, length in asked], parts, Ids(MASK, EOS, ()))


@pytest.mark.daily(2)
@pytest.mark.parametrize(("window", "blocks", "threshold"), [(8, Sliding(8), 0.0), (5, Fixed(4), 0.6)])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_text_is_that_of_greedy_autoregressive_decoding(
    name: str, window: int, blocks: object, threshold: float
) -> None:
    """Of 200 random prompts, 100 for each model. Blocks that cut the window change nothing."""
    known = random_prompts(name)
    found = speculated(name, [(prompt, length) for prompt, length, _ in known], window, blocks, threshold)
    assert [row.tokens for row in found] == [tokens for *_, tokens in known]


@pytest.mark.parametrize("name", CAUSAL)
def test_right_drafts_save_forwards(name: str) -> None:
    """On what the models have learnt: copying and the like, whose text alternates symbols with a separator."""
    draw = random.Random(7)
    asked = [([62, 50, *draw.sample(range(40), 5), 55], 24) for _ in range(20)]
    found = speculated(name, asked, 8, Sliding(8), 0.0)
    decided = [greedy(model(name), *one) for one in asked]
    assert [row.tokens for row in found] == decided
    tokens = sum(len(text) - len(prompt) for text, (prompt, _) in zip(decided, asked, strict=True))
    assert sum(len(row.computed) for row in found) < 0.85 * tokens


def test_a_forward_that_drafts_computes_the_window_alone_and_keeps_nothing() -> None:
    """So every column but the prompt's is computed twice or more, and a judged one is a key from then on."""
    (row,) = speculated("tiny-nemotron", [([62, 50, 4, 6, 13, 11, 55], 20)], 6, Sliding(6), 0.0)
    assert row.computed[0] == 7 and set(row.computed[1:-2]) == {6}
    for turn, commit in enumerate(row.committed[1:], 1):
        assert row.kept[turn] == row.front[turn] - 1
        assert (not commit) == (turn % 2 == 1)  # drafts, then judges


def test_the_window_sees_itself_and_what_is_decided_is_causal() -> None:
    masked = torch.tensor([[False, False, False, True, True]])
    order = CausalThenWindow().order(masked, torch.tensor([1]))
    assert order.visible(order, None)[0].long().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]
    causal = CausalThenWindow().order(masked & False, torch.tensor([1]))
    assert causal.visible(causal, None)[0].equal(torch.ones(5, 5).tril().bool())


def test_infilling_goes_around_what_is_given() -> None:
    """Of the text behind a gap a causal row knows nothing, so the gap is as without it; what follows reads both."""
    network = model("tiny-nemotron")
    given = [62, 50, 4, 6, 13, 55, MASK, MASK, MASK, 7, 8, MASK, MASK, MASK, MASK]
    request = Request(given, [token == MASK for token in given])
    parts = parts_of(Combination("linear_spec", "whole", "linear_spec", model="tiny-nemotron"))
    (found,) = results(network, parts, [request])
    gap = greedy(network, given[:6], 3)
    assert found.canvas == greedy(network, [*gap, 7, 8], 4)[6:]


def test_the_width_of_the_window_changes_no_text() -> None:
    asked = [(prompt, length) for prompt, length, _ in random_prompts("tiny-nemotron")[:10]]
    wide, narrow = (speculated("tiny-nemotron", asked, width, Sliding(16), 0.0) for width in (12, 2))
    assert [row.tokens for row in wide] == [row.tokens for row in narrow]
