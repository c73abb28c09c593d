"""OpenAI's Responses: a request of ``/v1/responses`` made one of chat, and the objects of its reply.

Text, streams and JSON schemas. Nothing is stored, so there is nothing to go on with by an id: send the turns before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dllm.common.coerce import coerce
from dllm.errors import nearest
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.decoding import Completed
from dllm.serve.fields import object_of
from dllm.serve.replies import Envelope
from dllm.serve.request_parts import Defaults
from dllm.serve.wire import ParsedRequest, parse_request

# Fields that are chat's, too, under the name that chat has for them.
AS_IN_CHAT = {
    "model": "model", "max_output_tokens": "max_completion_tokens", "temperature": "temperature", "top_p": "top_p",
    "stream": "stream", "metadata": "metadata", "user": "user", "safety_identifier": "safety_identifier",
    "prompt_cache_key": "prompt_cache_key", "diffusion": "diffusion", "seed": "seed", "top_k": "top_k",
    "chat_template_kwargs": "chat_template_kwargs", "service_tier": "service_tier",
    "prompt_cache_retention": "prompt_cache_retention",
}  # fmt: skip
# What sentences of chat call fields, and what this request calls them.
CALLED = {
    "max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens", "messages": "input",
    "response_format.json_schema": "text.format", "response_format": "text.format",
}  # fmt: skip
# Fields without effect here, the values that ask for none, and why another is not served.
NEUTRAL_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((True, False), "nothing is stored"), "background": ((False,), "an answer comes in its own reply"),
    "parallel_tool_calls": ((True, False), "must be true or false"),
    "tools": (([],), "functions are called over /v1/chat/completions"),
    "tool_choice": (("auto", "none"), "functions are called over /v1/chat/completions"),
    "truncation": (("disabled",), "a prompt is never cut"), "include": (([],), "nothing more is told"),
    "reasoning": (({}, {"effort": "none"}), "the model does not think before its answer"),
    "top_logprobs": ((0,), "log-probabilities are told by /v1/chat/completions"),
    "previous_response_id": ((), "nothing is stored. Send the turns before in input"),
    "conversation": ((), "nothing is stored. Send the turns before in input"),
    "prompt": ((), "there are no stored prompts"), "max_tool_calls": ((), "no tool is called"),
    "stream_options": (({}, {"include_obfuscation": False}, {"include_obfuscation": True}), "nothing else is served"),
}  # fmt: skip
ITEM = ("type", "role", "content", "id", "status", "phase")
INPUT_PARTS = ("input_text", "output_text", "text")


def parse_response(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Responses call them, for what cannot be served."""
    fields = {name: value for name, value in body.items() if value is not None}
    known = (*AS_IN_CHAT, *NEUTRAL_VALUES, "input", "instructions", "text")
    for name, value in fields.items():
        if name not in known:
            raise ApiError(400, f"{name!r} is no field of this request.{nearest(name, known)}", name, "unknown_field")
        allowed, why = NEUTRAL_VALUES.get(name, ((value,), ""))
        if value not in allowed:
            raise ApiError(400, f"{name}={value!r} is not served: {why}. Drop it.", name)
    try:
        found = parse_request(_as_chat(fields), True, defaults)
    except ApiError as refused:
        raise _called(refused) from None
    names = {usual: CALLED.get(sent, sent) for usual, sent in found.names.items()}
    return replace(found, names={**names, **CALLED})  # a form is refused when it is compiled, which comes later


def _as_chat(fields: Mapping[str, Any]) -> dict[str, Any]:
    chat = {AS_IN_CHAT[name]: value for name, value in fields.items() if name in AS_IN_CHAT}
    if isinstance(chat.get("diffusion"), Mapping) and chat["diffusion"].get("snapshots"):
        sentence = "diffusion.snapshots is served by /v1/chat/completions. Drop it."
        raise ApiError(400, sentence, "diffusion.snapshots")
    if "input" not in fields:
        raise ApiError(400, "input is missing: what is to be answered?", "input", "missing_field")
    chat["messages"] = [*_instructions(fields), *_messages(fields["input"])]
    form = _form(fields.get("text", {}))
    return chat if form is None else {**chat, "response_format": form}


def _instructions(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "instructions" not in fields:
        return []
    with as_refusal("instructions"):
        return [{"role": "system", "content": coerce("instructions", fields["instructions"], "str")}]


def _messages(value: Any) -> list[Any]:
    """The messages of ``input``: a text is one of the user's."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError(400, 'input must be a text, or a list of {"role": ..., "content": ...}.', "input")
    return [_message(f"input[{number}]", entry) for number, entry in enumerate(value)]


def _message(name: str, value: Any) -> dict[str, Any]:
    kind = value.get("type", "message") if isinstance(value, Mapping) else "message"
    if kind != "message":
        sentence = f"{name}.type={kind!r} must be message: functions are called over /v1/chat/completions."
        raise ApiError(400, sentence, f"{name}.type")
    item = object_of(name, value, ITEM)
    content = item.get("content")
    if isinstance(content, list):
        content = [_part(f"{name}.content[{number}]", part) for number, part in enumerate(content)]
    return {"role": item.get("role"), "content": content}


def _part(name: str, value: Any) -> dict[str, Any]:
    part = object_of(name, value, ("type", "text", "annotations", "logprobs"))
    if part.get("type") not in INPUT_PARTS:
        raise ApiError(400, f"{name} of type {part.get('type')!r} must be of type input_text, with a text.", name)
    return {"type": "text", "text": part.get("text")}


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


def _called(refused: ApiError) -> ApiError:
    """A refusal with fields as this request calls them."""
    found = refused.renamed(CALLED)
    for usual, sent in CALLED.items():
        if found.param is not None and found.param.startswith(usual):
            found.param = sent + found.param.removeprefix(usual)
    return found


@dataclass(frozen=True)
class ResponseEnvelope(Envelope):
    """What every object of one response has in common."""

    @property
    def item_id(self) -> str:
        """Of its only output item."""
        return f"msg_{self.ident}"

    def completion(self, choices: Sequence[Completed]) -> dict[str, Any]:
        choice = choices[0]
        text, status = choice.ending.text, "incomplete" if choice.ending.reason == "length" else "completed"
        notes = {"notes": list(self.parsed.notes)} if self.parsed.notes else {}
        used = self.usage(choices)
        usage = {
            "input_tokens": used["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["total_tokens"],
        }  # fmt: skip
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        whole = self.response(status, [self.item(status, text)])
        return {**whole, "incomplete_details": details, "usage": usage, "diffusion": {**choice.cost, **notes}}

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The object without its ending."""
        request = self.parsed.jobs[0].request
        return {
            "id": f"resp_{self.ident}", "object": "response", "created_at": self.created, "status": status,
            "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "model": self.model,
            "max_output_tokens": len(request.tokens) - request.answer_start, "output": output,
            "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
            "service_tier": "default", "store": False, "temperature": request.temperature, "tool_choice": "auto",
            "tools": [], "top_p": None, "truncation": "disabled", "usage": None, "user": None,
        }  # fmt: skip

    def item(self, status: str, text: str | None) -> dict[str, Any]:
        """The output item, a message. text: None: there is none yet."""
        content = [] if text is None else [text_part(text)]
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def text_part(text: str) -> dict[str, Any]:
    """The part of a message that holds its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
