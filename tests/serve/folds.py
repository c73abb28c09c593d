"""Streams of all addresses put together, as clients do: each is the plain reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.serve.conftest import CHAT, Place, events

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
