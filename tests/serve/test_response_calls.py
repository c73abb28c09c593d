"""Functions over ``/v1/responses``: calls are those of chat, streamed as whole, read by OpenAI's own client."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import full

from dllm.parts import Model
from tests.serve.conftest import CHAT, Place, events, writing
from tests.serve.live import live
from tests.serve.test_responses import RESPONSES
from tests.serve.test_tools import SAY, SORT, TOOLS, WrittenAnswers, caller, calling  # noqa: F401  fixtures

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
NAMED = {"type": "function", "name": "sort"}
CALL = {"type": "function_call", "call_id": "c1", "name": "sort", "arguments": '{"n": 3, "up": true}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "3"}


def respond(place: Place, **body: Any) -> Any:
    return place.call("POST", RESPONSES, json={"input": "a", **body})


def streamed(place: Place, **body: Any) -> tuple[list[str], list[dict[str, Any]], dict[str, Any]]:
    """Names of the events, each once in a row; output items put together from deltas; the whole response."""
    names, items = list[str](), list[dict[str, Any]]()
    for number, (name, data) in enumerate(events(respond(place, **body, stream=True))):
        assert name == data["type"] and data["sequence_number"] == number
        names += [name] if names[-1:] != [name] else []
        at = data.get("output_index")
        if name == "response.output_item.added":
            assert at == len(items), "items begin in their order"
            items.append({**data["item"], "text": ""})
        elif name.endswith(".delta"):
            assert data["item_id"] == items[at]["id"]
            items[at]["text"] += data["delta"]
        elif name == "response.output_item.done":
            item = data["item"]
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert items[at]["text"] == text and items[at]["id"] == item["id"]
            items[at] = item
    return names, items, data["response"]


@pytest.mark.parametrize(
    ("tools", "choice"),
    [(FLAT, NAMED), (FLAT[1:], "required"), (FLAT, "required")],
    ids=["named", "the only one", "one of two"],
)
def test_a_forced_call_is_chats_and_streamed_as_whole(caller: Place, tools: list[Any], choice: Any) -> None:  # noqa: F811
    for seed in range(4 if full() else 1):
        body = {"temperature": 1.5, "seed": seed}
        reply = respond(caller, tools=tools, tool_choice=choice, **body).json()
        (call,) = reply["output"]
        assert call["type"] == "function_call" and call["status"] == reply["status"] == "completed"
        jsonschema.validate(json.loads(call["arguments"]), {"sort": SORT, "say": SAY}[call["name"]])
        assert reply["tools"] == tools and reply["tool_choice"] == choice
        named = {"type": "function", "function": {"name": "sort"}} if choice == NAMED else choice
        of_chat = [tool for tool in TOOLS if tool["function"]["name"] in [one["name"] for one in tools]]  # type: ignore[index]
        chat = {"messages": [{"role": "user", "content": "a"}], "tools": of_chat, "tool_choice": named, **body}
        (same,) = caller.call("POST", CHAT, json=chat).json()["choices"][0]["message"]["tool_calls"]
        assert same["function"] == {"name": call["name"], "arguments": call["arguments"]}
        names, (item,), whole = streamed(caller, tools=tools, tool_choice=choice, **body)
        assert names == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert whole["output"] == [item]
        assert (item["name"], item["arguments"]) == (call["name"], call["arguments"])


def test_calls_and_their_results_are_messages_of_chat(caller: Place) -> None:  # noqa: F811
    called = [{"id": "c1", "type": "function", "function": {"name": "sort", "arguments": CALL["arguments"]}}]
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": called}, result]
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    parts = {**OUTPUT, "output": [{"type": "input_text", "text": "3"}]}
    for given in ([said, CALL, OUTPUT], [said, CALL, parts]):
        reply = respond(caller, input=[{"role": "user", "content": "a"}, *given], seed=3, max_output_tokens=16).json()
        chat = caller.call("POST", CHAT, json={"messages": talk, "seed": 3, "max_tokens": 16}).json()
        assert reply["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert reply["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    alone = respond(caller, input=[CALL, OUTPUT, {**CALL, "call_id": "c2"}], max_output_tokens=1).json()
    assert alone["usage"]["input_tokens"] > 20


def test_a_model_that_decides_says_text_and_calls(mini_model: Model, tmp_path: Path) -> None:
    written = WrittenAnswers(mini_model, tmp_path / "tools", 96)
    calls = '<tool_call>{"name": "say", "arguments": {"w": "bc"}}</tool_call>\n<tool_call>{"name": "sort"}</tool_call>'
    place = written.place
    for beside in ("So: ", ""):
        written.text = beside + calls
        output = respond(place, tools=FLAT, tool_choice="auto").json()["output"]
        assert [item["type"] for item in output] == ["message"] * bool(beside) + ["function_call"] * 2
        assert [item["name"] for item in output[-2:]] == ["say", "sort"] and output[-2]["arguments"] == '{"w": "bc"}'
        assert len({item["call_id"] for item in output[-2:]}) == 2
        _, items, whole = streamed(place, tools=FLAT)
        assert whole["output"] == items and [item["type"] for item in items] == [item["type"] for item in output]
        assert not beside or items[0]["content"][0]["text"] == "So:"
    place.close()


def test_openais_client_reads_calls(calling: Model) -> None:  # noqa: F811
    openai = pytest.importorskip("openai")
    with live(calling, defaults=replace(writing(calling), gen_length=96)) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        asked = {"model": "tiny", "input": "a", "tools": FLAT, "tool_choice": NAMED}
        first = client.responses.create(**asked)
        (call,) = first.output
        assert call.type == "function_call" and set(json.loads(call.arguments)) == {"n", "up"}
        with client.responses.stream(**asked) as stream:
            deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            (same,) = stream.get_final_response().output
        assert "".join(deltas) == same.arguments == call.arguments and len(deltas) > 1
        given = [
            {"role": "user", "content": "a"},
            *first.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "1"},
        ]
        client.responses.create(model="tiny", input=given)
