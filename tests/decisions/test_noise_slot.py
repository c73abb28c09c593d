"""Decisions on a model of noise: the slot shows noise, the rest of the canvas is given, one forward reads it."""

from __future__ import annotations

import pytest
import torch

from dllm import Decoder, UserError, load, part
from dllm.parts import DiffusionGemma, Model, Uniform
from dllm.scoring.decisions import Choice
from tests.support.tiny import MODELS, make_tiny


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(make_tiny(tmp_path_factory.mktemp("noise") / "dg_dev", MODELS / "dg_dev"), dtype="float64")


def decoder(model: Model) -> Decoder:
    return Decoder(
        model,
        part("sampler", "renoise", steps=5),
        part("blocks", "fixed", block_length=8),
        "finished",
        "fill_after_block",
        gen_length=16,
    )


def by_hand(network: DiffusionGemma, prompt: list[int], given: list[int], ids: list[int]) -> list[float]:
    """Of ids at the one slot behind ``given``: softmax of the denoising pass's logits, that slot alone being noise."""
    tokens = torch.tensor([[*prompt, *given, 0]])
    slot = len(prompt) + len(given)
    masked = torch.arange(tokens.shape[1])[None] == slot
    tokens[0, slot] = Uniform(network.config.vocab).ids(0, torch.tensor(slot), 0)
    with torch.inference_mode():
        logits = network.logits(network.encode(tokens, None, masked, len(prompt))[0, slot])
    return logits[ids].softmax(-1).tolist()


def test_alternatives_of_one_token_have_the_softmax_of_their_logits(noisy: Model) -> None:
    network = noisy.transformer
    assert isinstance(network, DiffusionGemma)
    question = Choice(["w11", "w14", "w20"], template="w5 w6 {slot}")
    found = decoder(noisy).decide([9, 3, 4], q=question)
    expected = by_hand(network, [9, 3, 4], [5, 6], [11, 14, 20])
    assert list(found["q"].probabilities.values()) == pytest.approx(expected, abs=1e-9)
    assert found["q"].probabilities == decoder(noisy).decide([9, 3, 4], q=question)["q"].probabilities


def test_what_lies_behind_the_canvas_of_the_slot_is_refused(noisy: Model) -> None:
    behind = " ".join(["w7"] * 12)
    with pytest.raises(UserError, match="a position does not see the text after its block"):
        decoder(noisy).decide("w9", q=Choice(["w11", "w14"], template=f"w5 {{slot}} {behind}"), slot="closed")
