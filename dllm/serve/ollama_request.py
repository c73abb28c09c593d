"""Ollama's interface: a request of ``/api/chat`` or ``/api/generate`` made one of chat or of completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dllm.serve.api_errors import ApiError
from dllm.serve.dialect import parse_as_chat
from dllm.serve.fields import Answered, FittingChat, FittingCompletion
from dllm.serve.ollama_fields import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaMessage
from dllm.serve.request_parts import Defaults
from dllm.serve.typed import read_body
from dllm.serve.wire import ParsedRequest

LATEST = ":latest"  # a tag that says nothing
UNBOUNDED = (-1, -2)  # lengths: as many tokens as there are
# What sentences of chat call fields, and what this request calls them.
_CALLED = {
    **{name: f"options.{name}" for name in ("temperature", "top_p", "top_k", "seed", "stop")},
    "max_completion_tokens": "options.num_predict", "max_tokens": "options.num_predict",
    "response_format.json_schema.schema": "format", "response_format.json_schema": "format",
    "response_format": "format", "reasoning_effort": "think",
}  # fmt: skip


class NothingAsked(Exception):  # noqa: N818  an answer, no fault
    """A request without a prompt, or with a system message alone, by which clients load a model. name: of the model.
    body: as it was read."""

    def __init__(self, name: str, body: OllamaBody) -> None:
        super().__init__(name)
        self.name, self.is_chat, self.leaves = name, isinstance(body, OllamaChatBody), body.keep_alive == 0


def parse_ollama(body: Mapping[str, Any], is_chat: bool, defaults: Defaults) -> ParsedRequest:
    """What a body asks for; is_chat: of ``/api/chat``. Raises ApiError, with fields as Ollama calls them, for what
    cannot be served, and NothingAsked."""
    kind: type[OllamaBody] = OllamaChatBody if is_chat else OllamaGenerateBody
    fields, unknown = read_body(kind, body, defaults.refuses_unknown)
    name = served_name(fields.model, defaults)
    made, called, into = _as_request(fields, defaults)
    canvas = "messages" not in made and isinstance(made.get("diffusion"), Mapping)
    if not (any(one["role"] != "system" for one in made.get("messages", ())) or made.get("prompt") or canvas):
        raise NothingAsked(name, fields)
    found = parse_as_chat({**made, "model": name}, {**called, **_CALLED}, defaults, into)
    suffix = fields.suffix if isinstance(fields, OllamaGenerateBody) else ""
    kept = {"generate": not is_chat, "raw": into is FittingCompletion, "suffix": suffix}
    return replace(found, model=fields.model or name, unknown=unknown, repeated=kept)


def served_name(asked: str | None, defaults: Defaults) -> str:
    """The model's name without ``:latest``. Raises ApiError for a model that is not served."""
    name = defaults.name if asked is None else asked
    if name not in defaults.names and name.removesuffix(LATEST) in defaults.names:
        name = name.removesuffix(LATEST)
    if name not in defaults.names:
        sentence = f"model {name!r} not found: this server has {defaults.listed_names}."
        raise ApiError(404, sentence, "model", "model_not_found")
    return name


def _as_request(body: OllamaBody, defaults: Defaults) -> tuple[dict[str, Any], dict[str, str], type[Answered]]:
    """The request of chat or completions, what it calls fields, and its model."""
    options, called = body.options, dict[str, str]()
    made: dict[str, Any] = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k", "seed", "stop")}
    length = options.num_predict
    unbounded = length in UNBOUNDED and not isinstance(length, bool)
    made |= {
        "stream": body.stream, "return_token_ids": body.return_token_ids, "cache_salt": body.cache_salt,
        "max_completion_tokens": defaults.model.config.max_length if unbounded else length,
        "diffusion": body.diffusion or options.diffusion, "response_format": _form(body.format),
        "logprobs": True if body.logprobs or body.top_logprobs else None, "top_logprobs": body.top_logprobs or None,
    }  # fmt: skip
    if isinstance(body, OllamaChatBody):
        made |= {"messages": _messages(body.messages), "tools": body.tools or None, "tool_choice": body.tool_choice}
        return {**made, **_thinks(body.think, defaults)}, called, FittingChat
    assert isinstance(body, OllamaGenerateBody)
    if body.suffix:
        return {**made, **_gap(body, length, defaults)}, called, FittingCompletion
    if body.raw:
        if body.top_logprobs:
            made |= {"logprobs": body.top_logprobs, "top_logprobs": None}
        return {**made, "prompt": body.prompt}, called, FittingCompletion
    system = [{"role": "system", "content": body.system}] if body.system else []
    asked = [{"role": "user", "content": body.prompt}] if body.prompt else []
    made["messages"] = [*system, *asked] if asked else []
    called = {f"messages[{len(system)}]": "prompt", "messages": "prompt"}
    return {**made, **_thinks(body.think, defaults)}, called, FittingChat


def _gap(body: OllamaGenerateBody, length: Any, defaults: Defaults) -> dict[str, Any]:
    """The fields of a prompt, a gap and what follows it."""
    if length is not None and (type(length) is not int or length < 1):
        sentence = f"options.num_predict={length!r} must be the tokens of the gap before suffix: a whole number from 1."
        raise ApiError(400, sentence, "options.num_predict")
    settings = body.diffusion.model_dump(exclude_unset=True) if body.diffusion is not None else {}
    settings |= body.options.diffusion or {}
    canvas = [length or defaults.gen_length, body.suffix]
    return {"prompt": body.prompt or None, "max_completion_tokens": None, "diffusion": {**settings, "canvas": canvas}}


def _form(asked: Any) -> dict[str, Any] | None:
    if asked == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked}} if asked else None


def _thinks(asked: bool | str | None, defaults: Defaults) -> dict[str, Any]:
    """The template's own switch of a thought, where it has one and the request says something, and its length."""
    tokenizer = defaults.model.tokenizer
    has = asked is not None and tokenizer is not None and "enable_thinking" in tokenizer.template_names
    effort = {"reasoning_effort": asked} if isinstance(asked, str) else {}
    return {**effort, **({"chat_template_kwargs": {"enable_thinking": bool(asked)}} if has else {})}


def _messages(sent: list[OllamaMessage]) -> list[dict[str, Any]]:
    """The messages of chat, in which each result names its call. Raises ApiError for a result without a call."""
    found = list[dict[str, Any]]()
    open_calls = list[tuple[str, str]]()  # id and function of those without a result
    for number, message in enumerate(sent):
        made: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking is not None:
            made["reasoning_content"] = message.thinking
        if message.tool_calls:
            made["tool_calls"] = calls = [_call(number, at, call) for at, call in enumerate(message.tool_calls)]
            open_calls += [(call["id"], call["function"]["name"]) for call in calls]
        if message.role == "tool":
            made["tool_call_id"] = _answered(message, open_calls, f"messages[{number}]")
        found.append(made)
    return found


def _call(number: int, at: int, call: Any) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": json.dumps(call.function.arguments, ensure_ascii=False)}
    return {"id": call.id or f"call_{number}_{at}", "type": "function", "function": function}


def _answered(message: OllamaMessage, calls: list[tuple[str, str]], place: str) -> str:
    """The id of the call that a result answers: as it says, else the first open one of its function, else the first
    open one. It is open no more."""
    name = message.tool_name or message.name
    asked = [call for call in calls if message.tool_call_id in (None, call[0])]
    mine = next((call for call in asked if name in (None, call[1])), asked[0] if asked else None)
    if mine is None:
        raise ApiError(400, f"{place} has role tool, and no call before it waits for a result. Send the call.", place)
    calls.remove(mine)
    return mine[0]
