"""Constraints on a model of noise: a block is committed at once, with its best filling of those that leave a text."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from dllm import Decoder, Result, UserError, load, part
from dllm.parts import Choice, Model, Regex, Sampler
from tests.support.tiny import MODELS, make_written

BLOCK = 8


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(make_written(tmp_path_factory.mktemp("noise") / "dg_dev", source=MODELS / "dg_dev"), dtype="float64")


def decoded(
    model: Model, constraint: Any, length: int = 16, rule: Sampler | None = None, seeds: int = 4
) -> list[Result]:
    rule = rule or part("sampler", "renoise", steps=4)
    decoder = Decoder(
        model,
        rule,
        part("blocks", "fixed", block_length=BLOCK),
        "finished",
        "fill_after_block",
        gen_length=length,
        constraint=constraint,
    )
    return [decoder([7, 9, 11], seed=seed, trace=True)[0] for seed in range(seeds)]


@pytest.mark.parametrize("name", ["renoise", "ancestral"])
def test_every_text_is_one_of_the_language_and_draws_stay_free(noisy: Model, name: str) -> None:
    """In two blocks, of which the first knows nothing of the second."""
    found = decoded(noisy, Regex(r"[cde]{10}", joint=True), rule=part("sampler", name, steps=4))
    assert all(len(one.text) == 10 and set(one.text) <= set("cde") for one in found), [one.text for one in found]
    shown = [token for one in found for turn in one.traced().turns for each in turn.shown for token in each.tokens]
    assert len(set(shown)) > 40  # noise and draws of the whole vocabulary
    free = decoded(noisy, None)
    assert all(not set(one.text) <= set("cde") for one in free)


@pytest.mark.parametrize("heat", [0.8, 50.0])
def test_a_block_is_its_best_filling_by_trying_all(noisy: Model, heat: float) -> None:
    """With one forward a block: its logits are those of the network on the first noise. What is drawn is not text yet:
    the temperature changes nothing."""
    texts = ["".join(letters) for letters in product("cde", repeat=3)]
    rule = part("sampler", "renoise", steps=1, t_max=heat)
    (result,) = decoded(noisy, Choice(texts, joint=True), BLOCK, rule, 1)
    assert noisy.tokenizer is not None
    trace, network = result.traced(), noisy.transformer
    tokens = torch.tensor([trace.prompt])
    masked = torch.arange(tokens.shape[1])[None] >= trace.start
    with torch.inference_mode():
        logits = network.logits(network.encode(tokens, None, masked, trace.start))[0, trace.start :].double()
    ends = logits[:, list(noisy.ids.ends)].amax(-1)

    def worth(text: str) -> float:
        ids = noisy.tokenizer.encode(text)
        return float(sum(logits[at, token] for at, token in enumerate(ids)) + ends[len(ids) :].sum())

    assert result.text == max(texts, key=worth)
    assert result.constraint is not None and 0 < result.constraint.seconds <= result.seconds


def test_without_joint_it_is_refused_with_the_way_out(noisy: Model) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="decided together with its whole block.* Set constraint.joint=True"):
            decoded(noisy, Regex(r"[cde]{5}"), seeds=1)
        decoded(noisy, Regex(r"[cde]{5}", joint=True), seeds=1)


def test_every_commit_of_another_token_is_counted_and_no_cut_was_taken_back(noisy: Model) -> None:
    """In one forward a block: eight positions, of which the model proposes few as the one text has them."""
    for result in decoded(noisy, Choice(["cde"], joint=True), BLOCK, part("sampler", "renoise", steps=1), 3):
        report = result.constraint
        assert report is not None and report.replaced > len(result.traced().turns) and report.restored == 0
