"""``/v1/messages``: each reply is what chat answers to the same conversation, whole and in events, and errors have
Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dllm.parts import ChoiceEnd, MessagesBody, MessagesWriter, Model, Request, Turns, conversation, read_body
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import CHAT, Place, events
from tests.serve.folds import MESSAGES, both
from tests.serve.test_tools import WrittenAnswers

SORT = 'Sort the list:\n["Kai", "Emma", "Hugo"]'
ASK = [{"role": "user", "content": SORT}]
NAMES = {"type": "array", "items": {"enum": ["Kai", "Emma", "Hugo"]}, "minItems": 3, "maxItems": 3}
SEATS = {"type": "object", "properties": {"names": NAMES}, "required": ["names"], "additionalProperties": False}
TOOL = {"name": "seat", "description": "seat people", "input_schema": SEATS, "cache_control": {"type": "ephemeral"}}
FUNCTION = {"name": "seat", "description": "seat people", "parameters": SEATS, "strict": False}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "seat", "input": {"names": ["Kai"]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "done"}]}


@pytest.fixture(scope="module")
def mini_place(mini_model: Model) -> Iterator[Place]:
    place = Place(mini_model, defaults=replace(mini_defaults(mini_model), name="mini-llada"))
    yield place
    place.close()


def said(place: Place, **body: Any) -> dict[str, Any]:
    """The message, which its events make up, too."""
    whole, stream = both(place, MESSAGES, {"max_tokens": 32, "messages": ASK, **body})
    assert whole == stream and whole["id"].startswith("msg_")
    for block in whole["content"]:
        block.pop("id", "")
    return dict(whole)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("body", "chat"), [
    ({}, {}),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": SORT, "cache_control": None}]}]}, {}),
    ({"stop_sequences": ["Hugo", "Emma"]}, {"stop": ["Hugo", "Emma"]}),
    ({"temperature": 1.0, "seed": 3, "top_k": 4}, {"temperature": 1.0, "seed": 3, "top_k": 4}),
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"diffusion": {"sampler": "static", "block_length": 8}}, {"diffusion": {"sampler": "static", "block_length": 8}}),
    ({"system": [{"type": "text", "text": "x-anthropic-billing-header: 7"}, {"type": "text", "text": "Be brief."}]},
     {"messages": [{"role": "system", "content": "Be brief."}, *ASK]}),
], ids=lambda body: "-".join(body) or "plain")  # fmt: skip
def test_a_message_is_the_answer_of_chat(mini_place: Place, body: dict[str, Any], chat: dict[str, Any]) -> None:
    reply = said(mini_place, **body)
    other = mini_place.call("POST", CHAT, json={"messages": ASK, "max_tokens": 32, **chat}).json()
    (choice,) = other["choices"]
    assert "".join(block["text"] for block in reply["content"]) == choice["message"]["content"]
    usage = reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]
    assert usage == (other["usage"]["prompt_tokens"], other["usage"]["completion_tokens"])
    assert reply["diffusion"]["nfe"] == choice["diffusion"]["nfe"]
    stop = next((one for one in body.get("stop_sequences", ()) if one == "Emma"), None)
    expected = "max_tokens" if choice["finish_reason"] == "length" else "stop_sequence" if stop else "end_turn"
    assert (reply["stop_reason"], reply["stop_sequence"]) == (expected, stop)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "seat"}, {"type": "function", "function": {"name": "seat"}}),
    ],
    ids=["any", "none", "named"],
)
def test_calls_are_those_of_chat(mini_place: Place, choice: Any, asked: Any) -> None:
    pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
    reply = said(mini_place, tools=[TOOL], tool_choice=choice)
    body = {"messages": ASK, "max_tokens": 32, "tools": [{"type": "function", "function": FUNCTION}]}
    message = mini_place.call("POST", CHAT, json={**body, "tool_choice": asked}).json()["choices"][0]["message"]
    calls = [json.loads(one["function"]["arguments"]) for one in message.get("tool_calls", ())]
    assert [block["input"] for block in reply["content"] if block["type"] == "tool_use"] == calls
    assert reply["stop_reason"] == ("tool_use" if calls else "end_turn") and bool(calls) == (asked != "none")


def test_a_form_is_kept(mini_place: Place) -> None:
    pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
    form = {"format": {"type": "json_schema", "schema": NAMES}, "effort": "high"}
    reply = mini_place.call("POST", MESSAGES, json={"max_tokens": 32, "messages": ASK, "output_config": form}).json()
    assert sorted(json.loads(reply["content"][0]["text"])) == ["Emma", "Hugo", "Kai"]


def test_an_answer_goes_on_from_its_beginning(mini_place: Place) -> None:
    tokenizer: Any = mini_place.service.defaults.model.tokenizer
    begun = [*tokenizer.encode_chat(ASK), *tokenizer.encode('["Emma", "')]
    other = mini_place.call("POST", "/v1/completions", json={"prompt": begun, "max_tokens": 32}).json()
    reply = said(mini_place, messages=[*ASK, {"role": "assistant", "content": '["Emma", "'}])
    assert reply["usage"]["input_tokens"] == len(begun)
    assert "".join(block["text"] for block in reply["content"]) == other["choices"][0]["text"] != ""


def test_a_length_beyond_the_model_is_shortened_and_counted(mini_place: Place) -> None:
    reply = mini_place.call("POST", MESSAGES, json={"messages": ASK, "max_tokens": 32000}).json()
    (note,) = reply["diffusion"]["notes"]
    assert note.startswith("max_tokens=32000 is more") and note.endswith(" 704 tokens.")
    body = {"messages": ASK, "tools": [TOOL], "system": "Be brief."}
    count = mini_place.call("POST", f"{MESSAGES}/count_tokens", json=body).json()
    assert count == {"input_tokens": said(mini_place, **body, tool_choice={"type": "none"})["usage"]["input_tokens"]}
    defaults = replace(mini_place.service.defaults, max_tokens=5)
    small = Place(mini_place.service.defaults.model, defaults=defaults)
    cut = small.call("POST", MESSAGES, json={"messages": ASK, "max_tokens": 32000}).json()
    assert cut["stop_reason"] == "model_context_window_exceeded" and cut["usage"]["output_tokens"] == 5
    small.close()


def test_tokens_that_were_known_are_counted_apart() -> None:
    """Anthropic's input_tokens are those after the last known one."""
    parsed: Any = SimpleNamespace(
        jobs=[SimpleNamespace(request=Request.answer([1, 2, 3], 3, 0))], prompt_tokens=3, model="m", diffusion_notes={}
    )
    message = MessagesWriter("a", parsed, parsed)
    message.take(ChoiceEnd(0, "stop", 3, {}, cached_tokens=2))
    used = message.whole()["usage"]
    assert (used["input_tokens"], used["cache_read_input_tokens"], used["output_tokens"]) == (1, 2, 3)


def turns(*messages: Any, **more: Any) -> Turns:
    return Turns.of(read_body(MessagesBody, {"messages": list(messages), **more}, True)[0])


def test_turns_become_messages_that_templates_know() -> None:
    found = turns(
        {"role": "system", "content": "one"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, CALL]},
        {"role": "system", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {**RESULT, "is_error": True}]},
        system="zero",
    )
    call = {"id": "toolu_1", "type": "function", "function": {"name": "seat", "arguments": {"names": ["Kai"]}}}
    assert conversation(found.messages, tools=True) == [
        {"role": "system", "content": "zero\n\none"},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: done"},
        {"role": "user", "content": "two\n\nc"},
    ]


def test_a_model_that_calls_tools_has_blocks_of_text_and_calls(mini_model: Model, tmp_path: Path) -> None:
    marked = '{"names": ["Kai"]}'
    written = WrittenAnswers(mini_model, tmp_path / "tools", 160)
    place, written.text = written.place, f'Well. <tool_call>{{"name": "seat", "arguments": {marked}}}</tool_call>'
    body = {
        "tools": [TOOL],
        "max_tokens": 160,
        "messages": [*ASK, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}],
    }
    reply = said(place, **body)
    assert reply["content"] == [
        {"type": "text", "text": "Well.", "citations": None},
        {"type": "tool_use", "name": "seat", "input": json.loads(marked), "caller": {"type": "direct"}},
    ]
    assert reply["stop_reason"] == "tool_use"
    place.close()


def test_a_coding_clients_request_passes(mini_place: Place) -> None:
    """Fields, headers and blocks as Claude Code 2.1 sends them, of which none but the text has an effect here."""
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "mini-llada",
        "max_tokens": 32,
        "temperature": 0,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1"},
            {"type": "text", "text": "You are a coding agent.", **ephemeral},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": SORT, **ephemeral}]}],
        "tools": [{**TOOL, "name": f"Tool{at}", "eager_input_streaming": True} for at in range(15)],
        "tool_choice": {"type": "none"},
        "metadata": {"user_id": "user_1_session_2"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "betas": ["claude-code-20250219"],
        "mcp_servers": [],
        "container": None,
    }
    headers = {
        "x-api-key": "none",
        "anthropic-version": "2023-06-01",
        "x-app": "cli",
        "user-agent": "claude-cli/2.1",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,extended-cache-ttl-2025-04-11",
    }
    reply = mini_place.call("POST", f"{MESSAGES}?beta=true", json=body, headers=headers).json()
    asked = [{"role": "system", "content": "You are a coding agent."}, *ASK]
    other = mini_place.call("POST", CHAT, json={"messages": asked, "max_tokens": 32}).json()
    assert reply["usage"]["input_tokens"] == other["usage"]["prompt_tokens"]
    assert "".join(one["text"] for one in reply["content"]) == other["choices"][0]["message"]["content"]
    assert mini_place.call("HEAD", "/").status_code == 200


def test_what_fails_on_its_way_is_an_event(mini_model: Model) -> None:
    place = Place(mini_model, defaults=mini_defaults(mini_model), timeout=2.0, api_key="abcdefgh")
    place.scheduler.pause = 0.2
    locked = place.call("POST", MESSAGES, json={"messages": ASK})
    assert (locked.status_code, locked.json()["error"]["type"]) == (401, "authentication_error")
    body = {"messages": ASK, "stream": True, "max_tokens": 32, "diffusion": {"sampler": "static"}}
    *_, (name, data) = events(place.call("POST", MESSAGES, json=body, headers={"x-api-key": "abcdefgh"}))
    assert name == "error" and data["error"]["type"] == "timeout_error" and data["request_id"]
    place.close()
