"""``/v1/responses``: OpenAI's own client reads text, streams and objects, and each is what chat answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import CHAT, Place, events
from tests.serve.live import live

RESPONSES = "/v1/responses"
SORT = 'Sort the list:\n["Kai", "Emma", "Hugo"]'
NAMES = {"type": "array", "items": {"enum": ["Kai", "Emma", "Hugo"]}, "minItems": 3, "maxItems": 3}
FORM = {"type": "json_schema", "name": "names", "schema": NAMES}


@pytest.fixture(scope="module")
def mini_place(mini_model: Model) -> Iterator[Place]:
    place = Place(mini_model, defaults=replace(mini_defaults(mini_model), name="mini-llada"))
    yield place
    place.close()


def chat_text(place: Place, **body: Any) -> str:
    return str(place.call("POST", CHAT, json=body).json()["choices"][0]["message"]["content"])


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["output"][0]["content"][0]["text"])


@pytest.mark.parametrize(
    "given",
    [
        SORT,
        [{"role": "user", "content": SORT}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": SORT}]}],
    ],
    ids=type,
)
def test_a_response_is_the_answer_of_chat(mini_place: Place, given: Any) -> None:
    reply = mini_place.call("POST", RESPONSES, json={"model": "mini-llada", "input": given}).json()
    assert text_of(reply) == chat_text(mini_place, messages=[{"role": "user", "content": SORT}])
    assert reply["object"] == "response" and reply["status"] == "completed" and reply["store"] is False
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"] and usage["output_tokens"] == 7


def test_turns_before_and_instructions_are_messages(mini_place: Place) -> None:
    first = mini_place.call("POST", RESPONSES, json={"input": SORT}).json()
    given = [{"role": "user", "content": SORT}, *first["output"], {"role": "user", "content": "Copy: Ada, Zoe"}]
    reply = mini_place.call("POST", RESPONSES, json={"input": given, "instructions": "Be brief."}).json()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": SORT},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "Copy: Ada, Zoe"},
    ]
    assert text_of(reply) == chat_text(mini_place, messages=messages)


def test_events_come_in_openais_order_and_make_up_the_response(mini_place: Place) -> None:
    body = {"input": SORT, "diffusion": {"sampler": "static"}}
    plain = mini_place.call("POST", RESPONSES, json=body).json()
    found = events(mini_place.call("POST", RESPONSES, json={**body, "stream": True}))
    assert all(name == data["type"] for name, data in found)
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    deltas = [data["delta"] for name, data in found if name == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == text_of(plain)
    names = [name for name, _ in found if name != "response.output_text.delta"]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert found[-1][1]["response"]["output"][0]["content"] == plain["output"][0]["content"]
    of_text = [data for name, data in found if name.startswith(("response.output_text.", "response.content_part."))]
    assert {(data["output_index"], data["content_index"]) for data in of_text} == {(0, 0)}


def test_an_answer_without_room_is_incomplete(mini_place: Place) -> None:
    reply = mini_place.call("POST", RESPONSES, json={"input": SORT, "max_output_tokens": 3}).json()
    assert reply["status"] == "incomplete" and reply["incomplete_details"] == {"reason": "max_output_tokens"}


def test_openais_client_reads_it(mini_model: Model) -> None:
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")

    class Seats(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        first: str = pydantic.Field(json_schema_extra={"enum": ["Kai", "Emma"]})

    with live(mini_model, defaults=replace(mini_defaults(mini_model), name="mini-llada")) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        plain = client.responses.create(model="mini-llada", input=SORT)
        assert plain.output_text == '["Emma", "Hugo", "Kai"]' and plain.usage.output_tokens == 7
        with client.responses.stream(model="mini-llada", input=SORT) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            assert "".join(deltas) == stream.get_final_response().output_text == plain.output_text
        form = {"format": FORM}
        assert sorted(json.loads(client.responses.create(model="mini-llada", input=SORT, text=form).output_text))
        read = client.responses.parse(model="mini-llada", input=SORT, text_format=Seats)
        assert read.output_parsed.first in ("Kai", "Emma")
        with pytest.raises(openai.BadRequestError, match="nothing is stored"):
            client.responses.create(model="mini-llada", input=SORT, previous_response_id="resp_1")
