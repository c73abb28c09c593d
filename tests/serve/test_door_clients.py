"""Anthropic's own client against a server of the shipped model, alone and under load.

It comes with ``pip install -e '.[frameworks]'``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dllm.models.bundle import Model
from tests.serve.bodies import mini_defaults
from tests.serve.live import Live, live
from tests.serve.test_anthropic import ASK, NAMES, SEATS

pytestmark = pytest.mark.program
PACKAGES = "is not installed: pip install 'dllm[frameworks]'"
ASKED = [[{"role": "user", "content": f'{word} the list:\n["Kai", "Emma", "Hugo"]'}] for word in (
    "Sort", "Copy", "Reverse", "Shuffle")]  # fmt: skip
TOOL = {"name": "seat", "description": "seat people", "input_schema": SEATS}


@pytest.fixture(scope="module")
def server(mini_model: Model) -> Iterator[Live]:
    with live(mini_model, defaults=replace(mini_defaults(mini_model, gen_length=32), name="mini-llada")) as started:
        yield started


@pytest.fixture(scope="module")
def claude(server: Live) -> Any:
    anthropic = pytest.importorskip("anthropic", reason=f"anthropic {PACKAGES}")
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def openais(server: Live, messages: Any) -> tuple[str, int]:
    """Text and tokens of an answer over OpenAI's address."""
    reply = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages}, timeout=300).json()
    return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]


def anthropics(claude: Any, messages: Any) -> tuple[str, int]:
    reply = claude.messages.create(model="mini-llada", max_tokens=32, messages=messages)
    return "".join(block.text for block in reply.content), reply.usage.output_tokens


def test_anthropics_client_has_the_tokens_of_openais_alone_and_under_load(server: Live, claude: Any) -> None:
    alone = [openais(server, messages) for messages in ASKED]
    assert [anthropics(claude, messages) for messages in ASKED] == alone and len(set(alone)) > 1
    with ThreadPoolExecutor(12) as crowd:
        both = [(crowd.submit(openais, server, one), crowd.submit(anthropics, claude, one)) for one in ASKED * 4]
        assert [(one.result(), two.result()) for one, two in both] == [(one, one) for one in alone * 4]


def test_anthropics_client_streams_calls_and_counts(claude: Any) -> None:
    asked: dict[str, Any] = {"model": "mini-llada", "max_tokens": 64, "messages": ASK}
    with claude.messages.stream(**asked) as stream:
        kinds, last = [event.type for event in stream], stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "text" in kinds
    assert last.content[0].text == claude.messages.create(**asked).content[0].text and last.stop_reason == "end_turn"
    forced = {**asked, "tools": [TOOL], "tool_choice": {"type": "any"}}
    with claude.messages.stream(**forced) as stream:
        called = stream.get_final_message()
    assert called.stop_reason == "tool_use" and sorted(called.content[0].input["names"]) == ["Emma", "Hugo", "Kai"]
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "seated"}
    talk = [*ASK, {"role": "assistant", "content": [one.model_dump() for one in called.content]},
            {"role": "user", "content": [result]}]  # fmt: skip
    after = claude.messages.create(**{**asked, "messages": talk, "tools": [TOOL], "tool_choice": {"type": "none"}})
    count = claude.messages.count_tokens(model="mini-llada", messages=talk, tools=[TOOL])
    assert after.usage.input_tokens == count.input_tokens > 21
    form = {"format": {"type": "json_schema", "schema": NAMES}}
    assert len(json.loads(claude.messages.create(**asked, output_config=form).content[0].text)) == 3
    (model,) = claude.models.list().data
    assert claude.models.retrieve(model.id).max_input_tokens == 768


def test_anthropics_client_reads_refusals(claude: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 3010 tokens > 768 maximum") as refused:
        claude.messages.create(model="mini-llada", max_tokens=8, messages=[{"role": "user", "content": "a " * 3000}])
    assert refused.value.request_id and refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError, match="is not served here"):
        claude.messages.create(model="other", max_tokens=8, messages=ASK)
    with pytest.raises(anthropic.BadRequestError, match="no tool runs here"):
        claude.messages.create(model="mini-llada", max_tokens=8, messages=ASK, tools=[{
            "type": "web_search_20250305", "name": "web_search"}])  # fmt: skip
