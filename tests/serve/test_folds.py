"""Law: a plain reply is the fold of its stream, in all six addresses, whatever the answer holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import CHAT, Place, events
from tests.serve.test_thinking import thinker  # noqa: F401  fixture
from tests.serve.test_tools import SAY, TOOLS, WrittenAnswers, caller, calling  # noqa: F401  fixtures

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
TIMES = ("created", "created_at", "seconds", "waited", "total_duration", "eval_duration")  # differ between two calls


def timeless(value: Any) -> Any:
    """The value without what tells the time."""
    if isinstance(value, list):
        return [timeless(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: timeless(entry) for name, entry in value.items() if name not in TIMES}


def merged(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a delta: texts and lists of calls grow, all else is replaced."""
    for name, value in piece.items():
        if name == "tool_calls":
            for call in value:
                calls = whole.setdefault(name, [])
                if call["index"] == len(calls):
                    calls.append({key: entry for key, entry in call.items() if key != "index"})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        elif isinstance(value, str) and name != "role":
            whole[name] = (whole.get(name) or "") + value
        elif value is not None or name not in whole:
            whole[name] = value


def of_chunks(sent: list[tuple[str | None, Any]]) -> Any:
    """OpenAI's chunks. A message that is a call has no content."""
    *chunks, (_, last) = sent
    assert last == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    head: dict[str, Any] = {}
    for _, chunk in chunks:
        head |= {name: value for name, value in chunk.items() if name != "choices"}
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], {"text": ""} if "text" in piece else {"message": {}})
            merged(choice["message"], piece.pop("delta")) if "delta" in piece else merged(
                choice, {"text": piece.pop("text")}
            )
            choice |= piece
    for choice in choices.values():
        message = choice.get("message", {})
        if message.get("tool_calls"):
            message["content"] = message["content"] or None
    kind = head["object"].removesuffix(".chunk")
    return {**head, "object": kind, "choices": [choices[at] for at in sorted(choices)]}


def of_response(sent: list[tuple[str | None, Any]]) -> Any:
    """The last event's response, whose items are those that the events make up."""
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    for name, data in sent:
        if name == "response.output_item.added":
            items.append(data["item"])
            texts.append("")
        elif str(name).endswith(".delta"):
            assert data["item_id"] == items[data["output_index"]]["id"]
            texts[data["output_index"]] += data["delta"]
        elif name == "response.output_item.done":
            items[data["output_index"]] = data["item"]
    held = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in items]
    assert held == texts and sent[-1][1]["response"]["output"] == items
    return sent[-1][1]["response"]


def of_message(sent: list[tuple[str | None, Any]]) -> Any:
    """Blocks one after the other, then how the message ends."""
    message: dict[str, Any] = {}
    for name, data in sent:
        if name == "message_start":
            message = data["message"]
        elif name == "content_block_start":
            message["content"].append(data["content_block"])
            text = ""
        elif name == "content_block_delta":
            (key,) = set(data["delta"]) - {"type"}
            text += data["delta"][key]
        elif name == "content_block_stop":
            block = message["content"][data["index"]]
            block |= {"input": json.loads(text)} if block["type"] == "tool_use" else {block["type"]: text}
        elif name == "message_delta":
            message |= {**data.pop("delta"), **data, "type": "message"}
    return message


def of_lines(lines: list[Any]) -> Any:
    """Ollama's lines."""
    found, message = dict(lines[-1]), dict[str, Any]()
    for line in lines:
        for name, value in line.get("message", line).items():
            if name in ("content", "thinking", "response"):
                message[name] = message.get(name, "") + value
            elif name in ("role", "tool_calls"):
                message[name] = value
    return {**found, "message": message} if "message" in found else {**found, **message}


def both(place: Place, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """A plain reply, and what its stream folds to."""
    named = {"x-request-id": "same"}
    whole = place.call("POST", path, json={**body, "stream": False}, headers=named)
    usage = {"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETIONS) else {}
    sent = place.call("POST", path, json={**body, **usage, "stream": True}, headers=named)
    assert whole.status_code == sent.status_code == 200, (whole.text, sent.text)
    if path in (OLLAMA, GENERATE):
        return timeless(whole.json()), timeless(of_lines([json.loads(line) for line in sent.text.splitlines()]))
    folds: dict[str, Callable[..., Any]] = {RESPONSES: of_response, MESSAGES: of_message}
    return timeless(whole.json()), timeless(folds.get(path, of_chunks)(events(sent)))


def asked(path: str, text: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A request for ``tokens`` tokens at most, in the form of an address. more: fields that all forms have."""
    messages, options = [{"role": "user", "content": text}], {"num_predict": tokens, **more}
    return {
        CHAT: {"messages": messages, "max_tokens": tokens, **more},
        COMPLETIONS: {"prompt": text, "max_tokens": tokens, **more},
        RESPONSES: {"input": text, "max_output_tokens": tokens, **more},
        MESSAGES: {"messages": messages, "max_tokens": tokens, **more},
        OLLAMA: {"messages": messages, "options": options}, GENERATE: {"prompt": text, "options": options},
    }[path]  # fmt: skip


def tooled(path: str, choice: str) -> dict[str, Any]:
    """The same functions in the form of an address. choice: in chat's words."""
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    named = [{"name": one["name"], "input_schema": one["parameters"]} for one in flat]
    words = {"required": "any", "auto": "auto"}
    if path == MESSAGES:
        return {"tools": named, "tool_choice": {"type": words[choice]}}
    return {"tools": flat if path == RESPONSES else TOOLS, "tool_choice": choice}


@pytest.fixture(scope="module")
def small(mini_model: Model) -> Iterator[Place]:
    place = Place(mini_model, defaults=mini_defaults(mini_model))
    yield place
    place.close()


PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA, GENERATE)
CALLS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
SORTING = 'Sort the list:\n["Kai", "Emma", "Hugo"]'


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [32, 3])
def test_of_text_that_ends_or_is_cut(small: Place, path: str, tokens: int) -> None:
    whole, stream = both(small, path, asked(path, SORTING, tokens))
    assert whole == stream


@pytest.mark.parametrize("path", PATHS)
def test_of_a_thought_and_an_answer(thinker: Place, path: str) -> None:  # noqa: F811
    for seed in range(4):
        whole, stream = both(thinker, path, asked(path, "a", 24, temperature=1.5, seed=seed))
        assert whole == stream, seed


@pytest.mark.parametrize("path", CALLS)
def test_of_a_forced_call(caller: Place, path: str) -> None:  # noqa: F811
    for tools in ({}, {"tools": tooled(path, "required")["tools"][1:]}):
        whole, stream = both(
            caller, path, {**asked(path, "a", 96, temperature=1.5, seed=3), **tooled(path, "required"), **tools}
        )
        assert whole == stream


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("text", [
    'So: <tool_call>{"name": "say", "arguments": {"w": "bc"}}</tool_call>\n<tool_call>{"name": "sort"}</tool_call>',
    '<tool_call>{"name": "say", "arguments": {"w": "bc"}}</tool_call> so', "no call < here  ", "", "<tool_call>{",
], ids=["text and two", "call and text", "text", "nothing", "broken"])  # fmt: skip
def test_of_calls_that_a_model_wrote(mini_model: Model, tmp_path: Path, path: str, text: str) -> None:
    written = WrittenAnswers(mini_model, tmp_path / "tools", 96)
    written.text = text
    whole, stream = both(written.place, path, {**asked(path, "a", 96), **tooled(path, "auto")})
    assert whole == stream and (json.dumps(whole).count('"name": "sort"') > 0) == ("sort" in text or path == RESPONSES)
    written.place.close()


def test_of_several_choices_and_their_log_probabilities(small: Place) -> None:
    more = {"n": 2, "temperature": 1.0, "seed": 3, "logprobs": True, "return_token_ids": True}
    for path in (CHAT, COMPLETIONS):
        whole, stream = both(small, path, asked(path, SORTING, 9, **more))
        assert whole == stream


def test_of_a_gap(small: Place) -> None:
    body = {"prompt": '["Kai", ', "suffix": ', "Hugo"]', "options": {"num_predict": 4}}
    whole, stream = both(small, GENERATE, body)
    assert whole == stream and not whole["response"].endswith('"Hugo"]')
