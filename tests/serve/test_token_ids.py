"""``return_token_ids``: prompt and answer as ids, and the forward of each, as Python's results have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dllm import Decoder
from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import CHAT, Place, events

ASK = [{"role": "user", "content": 'Sort the list:\n["Kai", "Emma", "Hugo"]'}]
HOT: dict[str, Any] = {"temperature": 3.0, "seed": 3, "n": 2, "max_tokens": 32, "return_token_ids": True}


@pytest.fixture(scope="module")
def mini_place(mini_model: Model) -> Iterator[Place]:
    place = Place(mini_model, defaults=mini_defaults(mini_model))
    yield place
    place.close()


def test_choices_hold_their_ids_and_the_forward_of_each(mini_place: Place, mini_model: Model) -> None:
    """Several choices are decodes of seeds that follow each other."""
    reply = mini_place.call("POST", CHAT, json={"messages": ASK, **HOT}).json()
    tokenizer, choices = mini_model.tokenizer, reply["choices"]
    assert tokenizer is not None and reply["prompt_token_ids"] == tokenizer.encode_chat(ASK)
    decoder = Decoder(mini_model, gen_length=32, temperature=3.0)
    for number, choice in enumerate(choices):
        row, ids = decoder(ASK, seed=3 + number)[0], choice["token_ids"]  # type: ignore[arg-type]
        assert ids[: len(row.tokens)] == row.tokens and len(ids) in (len(row.tokens), len(row.tokens) + 1)
        assert (ids[-1] in mini_model.ids.ends) == (choice["finish_reason"] == "stop")
        assert choice["diffusion"]["forwards"] == row.turns[: len(ids)] and max(row.turns[: len(ids)]) > 0
        assert tokenizer.decode(ids) == choice["message"]["content"] and choice["diffusion"]["seed"] == 3 + number
    assert choices[0]["token_ids"] != choices[1]["token_ids"]
    sent = [data for _, data in events(mini_place.call("POST", CHAT, json={"messages": ASK, **HOT, "stream": True}))]
    first, *rest = (chunk for chunk in sent if chunk != "[DONE]")
    assert first["prompt_token_ids"] == reply["prompt_token_ids"]
    ids = [[], []]  # type: list[list[int]]
    for choice in (one for chunk in rest for one in chunk["choices"]):
        ids[choice["index"]] += choice.get("token_ids", [])
    assert ids == [choice["token_ids"] for choice in choices]


def test_a_stop_string_ends_the_ids(mini_place: Place, mini_model: Model) -> None:
    body = {"messages": ASK, "stop": ["Hugo"], "return_token_ids": True}
    (choice,) = mini_place.call("POST", CHAT, json=body).json()["choices"]
    assert mini_model.tokenizer is not None
    assert mini_model.tokenizer.decode(choice["token_ids"]).startswith(choice["message"]["content"]) != ""
    assert len(choice["diffusion"]["forwards"]) == len(choice["token_ids"]) and choice["diffusion"]["turns"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Copy the list:"}),
        ("/v1/responses", {"input": "Copy the list:"}),
        ("/v1/messages", {"messages": ASK}),
        ("/api/chat", {"messages": ASK, "stream": False}),
        ("/v1/completions", {"prompt": "[", "diffusion": {"canvas": [3, "]"]}}),
    ],
    ids=["completions", "responses", "messages", "ollama", "canvas"],
)
def test_every_address_tells_them(mini_place: Place, path: str, body: dict[str, Any]) -> None:
    reply = mini_place.call("POST", path, json={**body, "return_token_ids": True}).json()
    place = reply["choices"][0] if "choices" in reply else reply
    forwards = place["diffusion"]["forwards"]
    assert len(place["token_ids"]) == len(forwards) and place["prompt_token_ids"], json.dumps(reply)
    if "diffusion" in body:
        assert forwards[:3] and all(forwards[:3]) and not any(forwards[3:]), "what was given was decided by no forward"
