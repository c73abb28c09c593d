"""transformers' own ``generate`` decodes as our decoder does on the same object, and what it cannot is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dllm import Decoder, UserError, custom_generate, load, part
from tests.models.test_shared import A2DQwen3LMHeadModel, made
from tests.support.tiny import EOS

PROMPT = torch.tensor([[5, 6, 7], [8, 9, 10]])


@pytest.fixture(scope="module")
def model() -> A2DQwen3LMHeadModel:
    return made().eval()


def answers(model: Any, prompts: Any, **settings: Any) -> list[list[int]]:
    """Those of our decoder, with the end of a text."""
    seed = settings.pop("seed", 0)
    found = []
    for number, prompt in enumerate(prompts):
        row = Decoder(load(model, attention_block=0), gen_length=12, **settings)(list(prompt), seed=seed + number)[0]
        found.append(row.canvas[: len(row.tokens) + (row.stop_reason != "length")])
    return found


def generated(model: Any, ids: Any, **settings: Any) -> Any:
    return model.generate(ids, custom_generate=custom_generate, attention_block=0, max_new_tokens=12, **settings)


def unpadded(rows: Any, start: int, like: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, like))
    assert all(len(row) == start + longest for row in rows)
    assert all(set(row[start + len(one) :]) <= {EOS} for row, one in zip(rows.tolist(), like, strict=True))
    return [row[start : start + len(one)] for row, one in zip(rows.tolist(), like, strict=True)]


def test_generate_returns_what_our_decoder_decodes(model: A2DQwen3LMHeadModel) -> None:
    expected = answers(model, PROMPT.tolist(), sampler=part("sampler", "eb", gamma=0.5), cache="prefix")
    found = generated(model, PROMPT, sampler=part("sampler", "eb", gamma=0.5), cache="prefix")
    assert torch.equal(found[:, :3], PROMPT) and unpadded(found, 3, expected) == expected
    direct = custom_generate(model, PROMPT, max_new_tokens=12, attention_block=0, sampler="confidence", threshold=0.3)
    other = answers(model, PROMPT.tolist(), sampler=part("sampler", "confidence", threshold=0.3))
    assert unpadded(direct, 3, other) == other


def test_padding_on_the_left_changes_nothing(model: A2DQwen3LMHeadModel) -> None:
    ids, mask = torch.tensor([[0, 5, 6], [8, 9, 10]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    expected = answers(model, [[5, 6], [8, 9, 10]])
    found = generated(model, ids, attention_mask=mask, return_dict_in_generate=True)
    assert unpadded(found.sequences, 3, expected) == expected
    with pytest.raises(UserError, match="Did you mean 'threshold'?"):
        custom_generate(model, ids, treshold=0.5)
    with pytest.raises(UserError, match='padding_side="left"'):
        generated(model, ids, attention_mask=mask.flip(1))


def test_samples_of_a_prompt_have_seeds_of_their_own(model: A2DQwen3LMHeadModel) -> None:
    drawn = {"do_sample": True, "temperature": 1.5, "top_k": 40, "top_p": 0.9}
    found = generated(model, PROMPT[:1], **drawn, num_return_sequences=3, seed=7)
    expected = answers(model, PROMPT[:1].tolist() * 3, temperature=1.5, top_k=40, top_p=0.9, seed=7)
    assert unpadded(found, 3, expected) == expected and len({tuple(one) for one in expected}) == 3


def test_results_and_streams_are_those_of_one_decode(model: A2DQwen3LMHeadModel) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def put(self, ids: torch.Tensor) -> None:
            self.told += ids.flatten().tolist()

        def end(self) -> None:
            self.told.append("end")

    (row,) = generated(model, PROMPT[:1], results=True, text_streamer=(streamer := Streamer()))
    assert row.nfe >= 1 and streamer.told == [*PROMPT[0].tolist(), *answers(model, PROMPT[:1].tolist())[0], "end"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_beams": 2}, "there is no beam search"),
        ({"repetition_penalty": 1.3}, "RepetitionPenaltyLogitsProcessor"),
        ({"output_scores": True, "return_dict_in_generate": True}, "results=True returns what is known"),
        ({"max_time": 3.0}, "MaxTimeCriteria works from left to right"),
        ({"sampler": "ebb"}, "Did you mean 'eb'"),
        ({"sampler": part("sampler", "eb"), "threshold": 0.5}, "threshold goes with sampler by its name."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_an_autoregressive_decode_alone_can_do_is_refused(
    model: A2DQwen3LMHeadModel, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        generated(model, PROMPT[:1], **settings)
