"""What a request of ``/v1/responses`` gives the model, as chat has it: ``input``, ``instructions``, ``tools``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dllm.common.coerce import coerce
from dllm.errors import nearest
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.fields import object_of
from dllm.serve.messages import _PASSED_OVER, NOT_IN_PARTS, refuse_many, refuse_no_text
from dllm.serve.tools import MODES

ITEM = ("type", "role", "content", "id", "status", "phase", *_PASSED_OVER)
INPUT_PARTS = ("input_text", "output_text", "text")
ITEM_KINDS = ("message", "function_call", "function_call_output", "reasoning")
REASONING_ITEM = ("type", "id", "status", "summary", "content", "encrypted_content")
CALL, OUTPUT = ("call_id", "name", "arguments"), ("call_id", "output")
OF_EVERY_ITEM = ("type", "id", "status")


@dataclass
class InputMessages:
    """Messages of chat, and where each stood in the request."""

    messages: list[dict[str, Any]] = field(default_factory=list)  # as chat takes them
    places: dict[str, str] = field(default_factory=dict)  # of chat's names, the longer first: this request's
    thoughts: list[str] = field(default_factory=list)  # of the assistant, which speaks next

    def add(self, message: dict[str, Any], place: str) -> None:
        """A message that stood at ``place``."""
        name = f"messages[{len(self.messages)}]"
        self.places |= {f"{name}.tool_call_id": f"{place}.call_id", name: place}
        if self.thoughts and message["role"] == "assistant":
            message["reasoning_content"] = "\n".join(self.thoughts)
        self.thoughts = []
        self.messages.append(message)

    def add_text(self, role: str, text: str, place: str) -> None:
        """A message whose text alone stood at ``place``."""
        self.places[f"messages[{len(self.messages)}].content"] = place
        self.add({"role": role, "content": text}, place)

    def add_call(self, call: dict[str, Any], place: str) -> None:
        """A call, which belongs to the message of the assistant before it, if there is one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": ""}, place)
        calls = self.messages[-1].setdefault("tool_calls", [])
        name = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.places = {f"{name}.function": place, name: place, **self.places}
        calls.append(call)


def messages_of_input(fields: Mapping[str, Any]) -> InputMessages:
    """Of ``input`` and ``instructions``. Raises ApiError."""
    found = InputMessages()
    if "instructions" in fields:
        with as_refusal("instructions"):
            text = coerce("instructions", fields["instructions"], "str")
        found.add_text("system", text, "instructions")
    value = fields["input"]
    if isinstance(value, str):
        found.add_text("user", value, "input")
    elif not isinstance(value, list) or not value:
        raise ApiError(400, 'input must be a text, or a list of {"role": ..., "content": ...}.', "input")
    else:
        refuse_many("input", value)
        for number, entry in enumerate(value):
            _add(found, f"input[{number}]", entry)
    return found


def _add(found: InputMessages, name: str, value: Any) -> None:
    kind = value.get("type", "message") if isinstance(value, Mapping) else "message"
    if kind == "item_reference":
        rule = "no item is stored, so none can be referred to. Send the item itself (AI SDK: store=false)"
        raise ApiError(400, f"{name}.type='item_reference' is not served: {rule}.", f"{name}.type")
    if kind not in ITEM_KINDS:
        hint = nearest(str(kind), ITEM_KINDS)
        raise ApiError(400, f"{name}.type={kind!r} must be one of {', '.join(ITEM_KINDS)}.{hint}", f"{name}.type")
    if kind == "reasoning":
        found.thoughts += _thoughts(name, object_of(name, value, REASONING_ITEM))
    elif kind == "function_call":
        ident, function, arguments = _texts(name, value, CALL)
        call = {"id": ident, "type": "function", "function": {"name": function, "arguments": arguments}}
        found.add_call(call, name)
    elif kind == "function_call_output":
        if isinstance(value.get("output"), list):
            value = {**value, "output": _joined(f"{name}.output", value["output"])}
        ident, output = _texts(name, value, OUTPUT)
        found.add({"role": "tool", "tool_call_id": ident, "content": output}, name)
    else:
        item = object_of(name, value, ITEM)
        content = item.get("content")
        if isinstance(content, list):
            content = [_part(f"{name}.content[{number}]", part) for number, part in enumerate(content)]
        found.add({"role": item.get("role"), "content": content}, name)


def _thoughts(name: str, item: Mapping[str, Any]) -> list[str]:
    """The texts of a reasoning item; one whose thought is encrypted, as other servers give it, has none here."""
    parts = item.get("content", [])
    if not isinstance(parts, list):
        raise ApiError(400, f"{name}.content must be a list of texts.", f"{name}.content")
    found = [object_of(f"{name}.content[{at}]", part, ("type", "text")).get("text") for at, part in enumerate(parts)]
    if not all(isinstance(text, str) for text in found):
        raise ApiError(
            400, f'{name}.content must be a list of {{"type": "reasoning_text", "text": ...}}.', f"{name}.content"
        )
    return [str(text) for text in found]


def _texts(name: str, value: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    """The texts that an item must have under ``keys``."""
    item = object_of(name, value, (*OF_EVERY_ITEM, *keys))
    for key in keys:
        if not isinstance(item.get(key), str):
            raise ApiError(400, f"{name}.{key}={item.get(key)!r} must be a text.", f"{name}.{key}")
    return [item[key] for key in keys]


def _joined(name: str, parts: list[Any]) -> str:
    """The texts of parts, line by line, as chat joins them."""
    texts = [_part(f"{name}[{number}]", part)["text"] for number, part in enumerate(parts)]
    with as_refusal(name):
        return "\n".join(coerce(f"{name}[{number}].text", text, "str") for number, text in enumerate(texts))


def _part(name: str, value: Any) -> dict[str, Any]:
    refuse_no_text(name, value.get("type") if isinstance(value, Mapping) else None)
    part = object_of(name, value, ("type", "text", "annotations", "logprobs", "cache_control"), NOT_IN_PARTS)
    if part.get("type") not in INPUT_PARTS:
        raise ApiError(400, f"{name} of type {part.get('type')!r} must be of type input_text, with a text.", name)
    return {"type": "text", "text": part.get("text")}


def tools_of(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """``tools`` and ``tool_choice`` as chat has them, and of chat's names this request's. Raises ApiError."""
    found: dict[str, Any] = {}
    if "tools" in fields:
        tools = fields["tools"]
        found["tools"] = tools if not isinstance(tools, list) else [_tool(at, tool) for at, tool in enumerate(tools)]
    if "tool_choice" in fields:
        found["tool_choice"] = _choice(fields["tool_choice"])
    count = len(found["tools"]) if isinstance(found.get("tools"), list) else 0
    return found, {f"tools[{at}].function": f"tools[{at}]" for at in range(count)}


def _tool(at: int, value: Any) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind != "function":
        sentence = f'tools[{at}] of type {kind!r} must be {{"type": "function", "name": ..., "parameters": {{...}}}}'
        raise ApiError(400, f"{sentence}: there are no other tools here.", f"tools[{at}]")
    if "function" in value:
        sentence = f"tools[{at}].function is chat's: name and parameters stand beside type here"
        raise ApiError(400, f"{sentence}. Write them there.", f"tools[{at}].function")
    return {"type": "function", "function": {key: entry for key, entry in value.items() if key != "type"}}


def _choice(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("type") == "function":
        return {"type": "function", "function": {"name": object_of("tool_choice", value, ("type", "name")).get("name")}}
    if not isinstance(value, str) or value not in MODES:
        rule = f'must be one of {", ".join(MODES)}, or {{"type": "function", "name": NAME}}'
        raise ApiError(400, f"tool_choice={value!r} {rule}.{nearest(str(value), MODES)}", "tool_choice")
    return value
