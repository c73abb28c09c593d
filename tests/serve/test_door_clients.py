"""Anthropic's and Ollama's own clients against a server of the shipped model, alone and under load.

They come with ``pip install -e '.[frameworks]'``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.live import Live, live
from tests.serve.test_anthropic import ASK, NAMES, SEATS

pytestmark = pytest.mark.program
PACKAGES = "is not installed: pip install -e '.[frameworks]'"
ASKED = [
    [{"role": "user", "content": f'{word} the list:\n["Kai", "Emma", "Hugo"]'}]
    for word in ("Sort", "Copy", "Reverse", "Shuffle")
]
TOOL = {"name": "seat", "description": "seat people", "input_schema": SEATS}


@pytest.fixture(scope="module")
def server(mini_model: Model) -> Iterator[Live]:
    with live(mini_model, defaults=replace(mini_defaults(mini_model, gen_length=32), name="mini-llada")) as started:
        yield started


@pytest.fixture(scope="module")
def claude(server: Live) -> Any:
    anthropic = pytest.importorskip("anthropic", reason=f"anthropic {PACKAGES}")
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def llama(server: Live) -> Any:
    ollama = pytest.importorskip("ollama", reason=f"ollama {PACKAGES}")
    return ollama.Client(host=server.url)


def openais(server: Live, messages: Any) -> tuple[str, int]:
    """Text and tokens of an answer over OpenAI's address."""
    reply = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages}, timeout=300).json()
    return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]


def anthropics(claude: Any, messages: Any) -> tuple[str, int]:
    reply = claude.messages.create(model="mini-llada", max_tokens=32, messages=messages)
    return "".join(block.text for block in reply.content), reply.usage.output_tokens


def ollamas(llama: Any, messages: Any) -> tuple[str, int]:
    reply = llama.chat("mini-llada", messages)
    return reply.message.content, reply.eval_count


def test_all_addresses_give_the_same_tokens_alone_and_under_load(server: Live, claude: Any, llama: Any) -> None:
    asked = [(openais, server), (anthropics, claude), (ollamas, llama)]
    alone = [openais(server, messages) for messages in ASKED]
    for ask, client in asked:
        assert [ask(client, messages) for messages in ASKED] == alone and len(set(alone)) > 1
    with ThreadPoolExecutor(12) as crowd:
        tried = [
            (crowd.submit(ask, client, messages), expected)
            for _ in range(3)
            for messages, expected in zip(ASKED, alone, strict=True)
            for ask, client in asked
        ]
        assert [one.result() for one, _ in tried] == [expected for _, expected in tried]


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
    talk = [
        *ASK,
        {"role": "assistant", "content": [one.model_dump() for one in called.content]},
        {"role": "user", "content": [result]},
    ]
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
        claude.messages.create(
            model="mini-llada",
            max_tokens=8,
            messages=ASK,
            tools=[{"type": "web_search_20250305", "name": "web_search"}],
        )


def test_ollamas_client_streams_calls_and_looks(llama: Any) -> None:
    whole = llama.chat("mini-llada:latest", ASK)
    *pieces, last = llama.chat("mini-llada", ASK, stream=True, options={"num_ctx": 2048, "repeat_penalty": 1.1})
    assert "".join(piece.message.content for piece in pieces) == whole.message.content and last.done
    generated = llama.generate("mini-llada", ASK[0]["content"])
    assert generated.response == whole.message.content and generated.eval_count == whole.eval_count == 7
    assert len(json.loads(llama.chat("mini-llada", ASK, format=NAMES).message.content)) == 3
    (likeliest, *_) = llama.chat("mini-llada", ASK, logprobs=True, top_logprobs=2).logprobs
    assert len(likeliest.top_logprobs) == 2
    (model,), (running,) = llama.list().models, llama.ps().models
    assert model.model == running.name == "mini-llada" and llama.show(model.model).modelinfo["llada.block_count"] == 4
    assert llama.generate("mini-llada", "").done_reason == "load"


def test_ollamas_client_reads_refusals(llama: Any) -> None:
    import ollama

    function = {"name": "seat", "description": "seat people", "parameters": SEATS}
    for act, status, words in (
        (lambda: llama.chat("other", ASK), 404, "not found"),
        (lambda: llama.pull("other"), 403, "dllm pull NAME"),
        (lambda: llama.embed("mini-llada", "a"), 400, "no embeddings"),
        (lambda: list(llama.chat("mini-llada", ASK, stream=True, options={"top_p": 7})), 400, "options.top_p=7"),
        (lambda: llama.chat("mini-llada", ASK, tools=[{"type": "function", "function": function}]), 400, "auto"),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as refused:
            act()
        assert refused.value.status_code == status
