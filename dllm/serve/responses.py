"""OpenAI's Responses: a request of ``/v1/responses`` made one of chat.

Text, streams, JSON schemas and functions. Nothing is stored, so there is nothing to go on with by an id: send the turns
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dllm.errors import nearest
from dllm.serve.api_errors import ApiError
from dllm.serve.fields import object_of
from dllm.serve.request_parts import Defaults
from dllm.serve.response_input import messages_of_input, tools_of
from dllm.serve.wire import ParsedRequest, parse_request

# Fields that are chat's, too, under the name that chat has for them.
AS_IN_CHAT = {
    "model": "model", "max_output_tokens": "max_completion_tokens", "temperature": "temperature", "top_p": "top_p",
    "stream": "stream", "metadata": "metadata", "user": "user", "safety_identifier": "safety_identifier",
    "prompt_cache_key": "prompt_cache_key", "diffusion": "diffusion", "seed": "seed", "top_k": "top_k",
    "chat_template_kwargs": "chat_template_kwargs", "service_tier": "service_tier",
    "thinking_token_budget": "thinking_token_budget",
    "prompt_cache_retention": "prompt_cache_retention",
}  # fmt: skip
# What sentences of chat call fields, and what this request calls them.
CALLED = {
    "max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens", "messages": "input",
    "response_format.json_schema": "text.format", "response_format": "text.format",
}  # fmt: skip
# Fields that the reply repeats as they were sent.
REPEATED = ("instructions", "metadata", "parallel_tool_calls", "text", "tool_choice", "tools", "top_p", "user")
# Fields without effect here, the values that ask for none, and why another is not served.
NEUTRAL_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((True, False), "nothing is stored"), "background": ((False,), "an answer comes in its own reply"),
    "parallel_tool_calls": ((True, False), "must be true or false"),
    "truncation": (("disabled",), "a prompt is never cut"), "include": (([],), "nothing more is told"),
    "reasoning": (({}, {"effort": "none"}), "the model does not think before its answer"),
    "top_logprobs": ((0,), "log-probabilities are told by /v1/chat/completions"),
    "previous_response_id": ((), "nothing is stored. Send the turns before in input"),
    "conversation": ((), "nothing is stored. Send the turns before in input"),
    "prompt": ((), "there are no stored prompts"), "max_tool_calls": ((), "no tool runs here: functions are yours"),
    "stream_options": (({}, {"include_obfuscation": False}, {"include_obfuscation": True}), "nothing else is served"),
}  # fmt: skip


def parse_response(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Responses call them, for what cannot be served."""
    fields = {name: value for name, value in body.items() if value is not None}
    known = (*AS_IN_CHAT, *NEUTRAL_VALUES, "input", "instructions", "text", "tools", "tool_choice")
    for name, value in fields.items():
        if name not in known:
            raise ApiError(400, f"{name!r} is no field of this request.{nearest(name, known)}", name, "unknown_field")
        allowed, why = NEUTRAL_VALUES.get(name, ((value,), ""))
        if value not in allowed:
            raise ApiError(400, f"{name}={value!r} is not served: {why}. Drop it.", name)
    chat, called = _as_chat(fields)
    try:
        found = parse_request(chat, True, defaults)
    except ApiError as refused:
        raise _called(refused, called) from None
    names = {usual: _sent(sent, called) for usual, sent in found.names.items()}
    names |= {usual: sent for usual, sent in called.items() if usual not in names}
    repeated = {name: fields[name] for name in REPEATED if name in fields}
    # a form is refused when it is compiled, which comes later
    return replace(found, names=names, repeated=repeated)


def _as_chat(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The request of chat, and of its names, the longer first, this request's."""
    chat = {AS_IN_CHAT[name]: value for name, value in fields.items() if name in AS_IN_CHAT}
    if isinstance(chat.get("diffusion"), Mapping) and chat["diffusion"].get("snapshots"):
        sentence = "diffusion.snapshots is served by /v1/chat/completions. Drop it."
        raise ApiError(400, sentence, "diffusion.snapshots")
    if "input" not in fields:
        raise ApiError(400, "input is missing: what is to be answered?", "input", "missing_field")
    talk, (tools, places) = messages_of_input(fields), tools_of(fields)
    form = _form(fields.get("text", {}))
    chat |= {"messages": talk.messages, **tools, **({} if form is None else {"response_format": form})}
    return chat, {**talk.places, **places, **CALLED}


def _form(value: Any) -> dict[str, Any] | None:
    """``response_format`` of chat, which holds a schema one level deeper."""
    text = object_of("text", value, ("format", "verbosity"))
    if text.get("verbosity", "medium") != "medium":
        sentence = f"text.verbosity={text['verbosity']!r} must be medium: max_output_tokens says how long. Drop it."
        raise ApiError(400, sentence, "text.verbosity")
    form = text.get("format")
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        return form
    held = {key: entry for key, entry in form.items() if key != "type" and entry is not None}
    return {"type": "json_schema", "json_schema": held}


def _called(refused: ApiError, called: Mapping[str, str]) -> ApiError:
    """A refusal with fields as this request calls them."""
    found = refused.renamed(called)
    if found.param is not None:
        found.param = _sent(found.param, called)
    return found


def _sent(name: str, called: Mapping[str, str]) -> str:
    """What this request calls a field of chat, or the field that holds it."""
    for usual, sent in called.items():
        if name == usual or name.startswith((f"{usual}.", f"{usual}[")):
            return sent + name.removeprefix(usual)
    return name
