"""The prompts and messages of a request, checked one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dllm.common.coerce import coerce, is_list_of, is_whole
from dllm.common.json_text import as_object, loaded
from dllm.errors import nearest
from dllm.models.chat_template import REASONING
from dllm.prompts import Message
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.fields import object_of

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_ENTRIES = 2048  # messages of a conversation, and the parts of their contents
WRITTEN_OUT = (
    "The chat template of this model has no place for calls of tools and their results: they stand in the conversation "
    "as plain text."
)
# What servers send of a message that no template reads: what it thought in other words, and marks for a cache.
_PASSED_OVER = ("reasoning_details", "cache_control")
MESSAGE_FIELDS = (
    "role", "content", "name", "type", "tool_calls", "tool_call_id", "annotations", *REASONING, *_PASSED_OVER,
)  # fmt: skip
ONLY_TEXT = "there are only texts. Drop it"
NOT_IN_MESSAGES = {
    "function_call": "tool_calls took its place", "audio": ONLY_TEXT, "images": ONLY_TEXT,
    "refusal": "a refusal is a text. Write it into content",
    "tools": "tools are those of the whole request. Write them beside messages",
}  # fmt: skip
# Fields of a part, and kinds of parts, that hold no text.
NOT_IN_PARTS = dict.fromkeys(
    ("image_url", "input_audio", "audio_url", "video_url", "file", "image", "audio", "video", "source"), ONLY_TEXT
)
NO_TEXT = ("image_url", "input_image", "image", "input_audio", "audio_url", "audio", "video_url", "input_video",
           "video", "file", "input_file", "document", "file_url")  # fmt: skip


def validated_messages(value: Any, tools: bool = False) -> list[Message]:
    """The messages of a conversation, with plain texts. tools: the chat template writes calls of tools and what they
    gave; else they are written into the text. Raises ApiError."""
    if not isinstance(value, list) or not value:
        raise ApiError(400, 'messages must be a list of {"role": ..., "content": ...}, and not empty.', "messages")
    refuse_many("messages", value)
    found, called = list[Message](), dict[str, str]()
    for number, entry in enumerate(value):
        name = f"messages[{number}]"
        message = _message(name, entry)
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            ident = message["tool_call_id"]
            raise ApiError(
                400, f"{name}.tool_call_id={ident!r} is the id of no call before it.", f"{name}.tool_call_id"
            )
        if number == len(value) - 1 and message["role"] == "user" and not message["content"].strip():
            raise ApiError(400, f"{name}.content is empty: what is to be answered?", f"{name}.content")
        called |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        found.append(message)
    return [_with_objects(message) for message in found] if tools else _written_out(found, called)


def _with_objects(message: Message) -> Message:
    """A message whose calls have their arguments as objects, which templates write."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": loaded(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _written_out(messages: Sequence[Message], called: Mapping[str, str]) -> list[Message]:
    """A conversation in which a call is a line of JSON that the assistant says, and its result one that the user does,
    together with what the user says next: templates may want the two to take turns. called: names of functions by the
    ids of their calls."""
    found, results = list[Message](), False
    for message in messages:
        text, was_result = message["content"], message["role"] == "tool"
        if was_result:
            text = f"{called[message['tool_call_id']]} returned: {text}"
        for call in message.get("tool_calls", ()):
            line = f'{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}'
            text = f"{text}\n{line}" if text else line
        if results and message["role"] in ("tool", "user"):
            found[-1]["content"] += f"\n{text}"
        else:
            kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
            found.append({**kept, "role": "user" if was_result else message["role"], "content": text})
        results = was_result
    return found


def refuse_many(name: str, entries: list[Any]) -> None:
    """Raise ApiError for more than ``MAX_ENTRIES`` messages, or parts of their contents, calls counted."""
    count = len(entries)
    for entry in entries[:MAX_ENTRIES]:
        for key in ("content", "tool_calls", "output") if isinstance(entry, Mapping) else ():
            count += len(entry[key]) if isinstance(entry.get(key), list) else 0
    if count > MAX_ENTRIES:
        sentence = f"{name} holds {count} messages, parts and calls, more than {MAX_ENTRIES}. Join some, or send fewer."
        raise ApiError(400, sentence, name)


def _message(name: str, value: Any) -> Message:
    message = object_of(name, value, MESSAGE_FIELDS, NOT_IN_MESSAGES)
    if message.get("type", "text") != "text":  # lm-eval up to 0.4.9 sends it
        raise ApiError(400, f"{name}.type={message['type']!r} must be text. Drop it.", f"{name}.type")
    if message.get("annotations", []) != []:
        raise ApiError(
            400, f"{name}.annotations must be empty: nothing here reads them. Drop it.", f"{name}.annotations"
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        hint = nearest(str(role), ROLES)
        raise ApiError(400, f"{name}.role={role!r} must be one of {', '.join(ROLES)}.{hint}", f"{name}.role")
    calls = _calls(f"{name}.tool_calls", role, message.get("tool_calls", []))
    content = "" if calls and "content" not in message else _content(f"{name}.content", message.get("content"))
    found: Message = {"role": ROLES[role], "content": content}
    if calls:
        found["tool_calls"] = calls
    if "tool_call_id" in message or role == "tool":
        found["tool_call_id"] = _call_id(f"{name}.tool_call_id", role, message.get("tool_call_id"))
    found |= _thought(name, role, message)
    if "name" in message:
        with as_refusal(f"{name}.name"):
            found["name"] = coerce(f"{name}.name", message["name"], "str")
    return found


def _thought(name: str, role: str, message: Mapping[str, Any]) -> dict[str, str]:
    """What an assistant thought, which the chat template writes or drops; of several names the first."""
    for key in (key for key in REASONING if key in message):
        if role != "assistant" or not isinstance(message[key], str):
            rule = "must be a text" if role == "assistant" else "goes with role assistant. Drop it"
            raise ApiError(400, f"{name}.{key}={message[key]!r:.100} {rule}.", f"{name}.{key}")
    given = [message[key] for key in REASONING if key in message]
    return {"reasoning_content": given[0]} if given else {}


def _call_id(name: str, role: str, value: Any) -> str:
    if role != "tool" or not isinstance(value, str):
        rule = "must be the id of a call" if role == "tool" else "goes with role tool. Drop it"
        raise ApiError(400, f"{name}={value!r} {rule}.", name)
    return value


def _calls(name: str, role: str, value: Any) -> list[dict[str, Any]]:
    """Calls that an assistant made, with their arguments as the text of an object."""
    if not isinstance(value, list) or (value and role != "assistant"):
        rule = "must be a list of calls" if role == "assistant" else "goes with role assistant. Drop it"
        raise ApiError(400, f"{name} {rule}.", name)
    return [_call(f"{name}[{number}]", entry) for number, entry in enumerate(value)]


def _call(name: str, value: Any) -> dict[str, Any]:
    fields = object_of(name, value, ("id", "type", "function", "index"))
    function = object_of(f"{name}.function", fields.get("function", {}), ("name", "arguments"))
    texts = (fields.get("id"), function.get("name"), function.get("arguments", ""))
    if fields.get("type", "function") != "function" or not all(isinstance(text, str) for text in texts):
        shape = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": JSON}}'
        raise ApiError(400, f"{name} must be {shape}.", name)
    arguments = as_object(function.get("arguments", ""))  # "" is what others write of a call without arguments
    if arguments is None:
        place, given = f"{name}.function.arguments", function["arguments"]
        raise ApiError(400, f'{place}={given!r:.100} must be the text of a JSON object; none is "{{}}".', place)
    return {"id": fields["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _content(name: str, value: Any) -> str:
    """A text, or the texts of its parts, line by line."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ApiError(400, f'{name} must be a text, or a list of {{"type": "text", "text": ...}}.', name)
    texts = []
    for number, part in enumerate(value):
        place = f"{name}[{number}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        refuse_no_text(place, kind)
        fields = object_of(place, part, ("type", "text", "cache_control"), NOT_IN_PARTS)
        if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
            raise ApiError(400, f"{place} of type {fields.get('type')!r} must be of type text, with a text.", place)
        texts.append(fields["text"])
    return "\n".join(texts)


def refuse_no_text(name: str, kind: Any) -> None:
    """Raise ApiError for a part of a kind that holds no text."""
    if isinstance(kind, str) and kind in NO_TEXT:
        raise ApiError(400, f"{name} of type {kind!r} is not served: there are only texts. Send its text, or drop it.",
                      name)  # fmt: skip


def prompts_in(value: Any) -> list[Any]:
    """The prompts, not yet checked, of a field that holds one or several."""
    return value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]


def validated_prompts(value: Any) -> list[tuple[str, str | list[int]]]:
    """The prompts, each a text or token ids, by the names of their places. Raises ApiError."""
    prompts, found = prompts_in(value), list[tuple[str, str | list[int]]]()
    for number, prompt in enumerate(prompts):
        name = f"prompt[{number}]" if len(prompts) > 1 else "prompt"
        if not isinstance(prompt, str) and not (prompt and is_list_of(is_whole)(prompt)):
            raise ApiError(400, f"{name} must be a text, or a list of token ids.", name)
        found.append((name, prompt))
    return found
