"""OpenAI's Responses: a request of ``/v1/responses`` made one of chat.

Text, streams, JSON schemas and functions. Nothing is stored, so there is nothing to go on with by an id: send the turns
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dllm.common.hints import meaning
from dllm.serve.api_errors import ApiError
from dllm.serve.efforts import with_budget
from dllm.serve.fields import FORMS, object_of, stream_usage
from dllm.serve.neutral import NEUTRAL, THOUGHT, WITHOUT_EFFECT, is_one_of, is_set
from dllm.serve.request_parts import Defaults
from dllm.serve.response_input import messages_of_input, tools_of
from dllm.serve.unknown import pass_or_refuse, passing, slip_of
from dllm.serve.wire import ParsedRequest, parse_request

# Fields that are chat's, too, under the name that chat has for them.
AS_IN_CHAT = {
    "model": "model", "max_output_tokens": "max_completion_tokens", "temperature": "temperature", "top_p": "top_p",
    "stream": "stream", "diffusion": "diffusion", "seed": "seed", "top_k": "top_k",
    "chat_template_kwargs": "chat_template_kwargs", "thinking_token_budget": "thinking_token_budget",
}  # fmt: skip
# What sentences of chat call fields, and what this request calls them.
CALLED = {
    "max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens", "messages": "input",
    "response_format.json_schema": "text.format", "response_format": "text.format",
}  # fmt: skip
CHAT_LENGTHS = ("max_tokens", "max_completion_tokens")
# Fields that the reply repeats as they were sent.
REPEATED = ("instructions", "metadata", "parallel_tool_calls", "text", "tool_choice", "tools", "top_p", "user")
# Fields of Responses alone: the values that ask for nothing here, and why another is not served.
NEUTRAL_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((True, False), "nothing is stored"), "background": ((False,), "an answer comes in its own reply"),
    "parallel_tool_calls": ((True, False), "must be true or false"),
    "truncation": (("disabled", "auto"), "a prompt is never cut"),
    "top_logprobs": ((0,), "log-probabilities are told by /v1/chat/completions"),
    "previous_response_id": ((), "nothing is stored. Send the turns before in input"),
    "conversation": ((), "nothing is stored. Send the turns before in input"),
    "prompt": ((), "there are no stored prompts"), "max_tool_calls": ((), "no tool runs here: functions are yours"),
    "context_management": (([],), "a prompt is never cut"),
}  # fmt: skip
# What ``include`` may ask for: nothing of it exists here, so that nothing is left out.
NOTHING_TO_INCLUDE = (
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip
# Fields of chat, vLLM's and others, that mean the same in a response.
SHARED = tuple({*FORMS, *NEUTRAL, *WITHOUT_EFFECT, "stop", "ignore_eos", "min_tokens"} - {*NEUTRAL_VALUES})
OWN = ("input", "instructions", "text", "tools", "tool_choice", "include", "reasoning", "stream_options")
_KNOWN = tuple(sorted({*AS_IN_CHAT, *NEUTRAL_VALUES, *SHARED, *OWN}))


def parse_response(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Responses call them, for what cannot be served."""
    with passing(not defaults.refuses_unknown) as unknown:
        found, called = _parsed(with_budget(body, defaults), defaults)
    places = tuple(_sent(place, called) for place in unknown.values())
    return replace(found, unknown=places)


def _parsed(body: Mapping[str, Any], defaults: Defaults) -> tuple[ParsedRequest, dict[str, str]]:
    """What a body asks for, and of chat's names, the longer first, this request's."""
    fields = {name: value for name, value in body.items() if is_set(AS_IN_CHAT.get(name, name), value)}
    for name in [name for name in fields if name not in _KNOWN]:
        pass_or_refuse(name, name, f"{name!r} is no field of this request", _instead(name, fields.pop(name)))
    for name, (allowed, why) in NEUTRAL_VALUES.items():
        if name in fields and not is_one_of(fields[name], allowed):
            raise ApiError(400, f"{name}={fields[name]!r} is not served: {why}. Drop it.", name)
    _check_include(fields.get("include", []))
    _check_reasoning(fields.get("reasoning", {}))
    stream_usage("stream_options", fields)  # a response tells its usage at its end in any case
    chat, called = _as_chat(fields)
    try:
        found = parse_request(chat, True, defaults)
    except ApiError as refused:
        raise _called(refused, called) from None
    names = {usual: _sent(sent, called) for usual, sent in found.names.items()}
    names |= {usual: sent for usual, sent in called.items() if usual not in names}
    repeated = {name: fields[name] for name in REPEATED if name in fields}
    # a form is refused when it is compiled, which comes later
    return replace(found, names=names, repeated=repeated), called


def _instead(name: str, value: Any) -> str:
    """The end of a sentence about an unknown field; empty: nobody knows."""
    meant, slip = meaning(name, value, lambda _: False), slip_of(name, (*_KNOWN, *CHAT_LENGTHS))
    if name in CHAT_LENGTHS or any(length in slip for length in CHAT_LENGTHS):
        return ": write max_output_tokens."
    if meant is not None:
        return f": {meant.request().replace(CHAT_LENGTHS[0], 'max_output_tokens')}."
    return f".{slip}" if slip else ""


def _check_include(value: Any) -> None:
    if not isinstance(value, list):
        raise ApiError(400, f"include={value!r} must be a list of texts.", "include")
    for asked in value:
        if not is_one_of(asked, NOTHING_TO_INCLUDE):
            why = "log-probabilities are told by /v1/chat/completions" if asked == "message.output_text.logprobs" else (
                "nothing more is told")  # fmt: skip
            raise ApiError(400, f"include={asked!r} is not served: {why}. Drop it.", "include")


def _check_reasoning(value: Any) -> None:
    """A summary of no thoughts is none; an effort is refused."""
    held = object_of("reasoning", value, ("effort", "summary", "generate_summary"))
    if held.get("effort", "none") != "none":
        raise ApiError(400, f"reasoning={value!r} is not served: {THOUGHT}. Drop it.", "reasoning")


def _as_chat(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The request of chat, and of its names, the longer first, this request's."""
    chat = {AS_IN_CHAT.get(name, name): value for name, value in fields.items() if name in (*AS_IN_CHAT, *SHARED)}
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
