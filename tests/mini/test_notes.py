"""Python tells of a prompt what the terminal and the server tell of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dllm import Decoder, load
from dllm.mini import outside

HAIKU, LIST = "Write a haiku", 'Sort the list:\n["Kai", "Emma", "Hugo"]'


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    yield Decoder(load("mini-llada"), gen_length=8)


def test_a_result_has_the_sentence_for_prompts_that_a_mini_model_does_not_know(decoder: Decoder) -> None:
    results = decoder([HAIKU, LIST, [{"role": "user", "content": LIST}, {"role": "user", "content": HAIKU}]])
    sentence = outside.warning([HAIKU])
    assert sentence is not None
    assert [result.notes for result in results] == [(sentence,), (), (sentence,)]
    assert sentence in results[0]._repr_html_() and "notes" not in results[0].to_json()


def test_token_ids_and_other_models_get_none(decoder: Decoder, tiny: str) -> None:
    assert decoder([decoder.encode(HAIKU)])[0].notes == ()
    assert Decoder(load(tiny), gen_length=4)(HAIKU)[0].notes == ()
