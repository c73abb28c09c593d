"""Ollama's interface: what a body of ``/api/chat`` or ``/api/generate`` asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dllm.contract.refusal import OLLAMA_WORDS
from dllm.serve.dialects.answer_request import AnswerRequest
from dllm.serve.dialects.fields import Diffusion
from dllm.serve.dialects.messages import ChatMessage, MessageCall, check_order
from dllm.serve.dialects.ollama_fields import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaMessage
from dllm.serve.dialects.ollama_reply import OllamaWriter
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.response_formats import AnswerForm
from dllm.serve.dialects.wire import ParsedRequest, parsed_request
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.typed import read_body

LATEST = ":latest"  # a tag without meaning
UNBOUNDED_LENGTHS = (-1, -2)  # as many tokens as the model leaves


class EmptyRequest(Exception):  # noqa: N818  an answer, no fault
    """A request without a prompt, or with a system message alone, by which clients load a model of that name."""

    def __init__(self, name: str, body: OllamaBody) -> None:
        super().__init__(name)
        self.name, self.is_chat, self.leaves = name, isinstance(body, OllamaChatBody), body.keep_alive == 0


def parse_ollama(body: Mapping[str, Any], is_chat: bool, defaults: Defaults) -> ParsedRequest:
    """What a body asks for; is_chat: of ``/api/chat``. Raises ApiError, in Ollama's names, and EmptyRequest."""
    kind: type[OllamaBody] = OllamaChatBody if is_chat else OllamaGenerateBody
    fields, unknown = read_body(kind, body, defaults.refuses_unknown)
    name = served_name(fields.model, defaults)
    request = _shared(fields, defaults)
    writes: dict[str, Any] = {"name": fields.model or name, "generates": not is_chat}
    if isinstance(fields, OllamaChatBody):
        request = replace(request, messages=_messages(fields.messages), tools=fields.requested_tools(body))
    if isinstance(fields, OllamaGenerateBody):
        writes |= {"suffix": fields.suffix, "plain": fields.raw or bool(fields.suffix)}
        request = _with_prompt(fields, request, defaults)
    asks = request.prompt or any(message.role != "system" for message in request.messages or ())
    if not asks and not writes.get("suffix"):
        raise EmptyRequest(name, fields)
    check_order(request.messages or ())
    if request.tools.must_call:
        request = replace(request, form=None)
    return parsed_request(
        replace(request, writer=partial(OllamaWriter, **writes), model=name, unknown=unknown), defaults
    )


def served_name(requested_name: str | None, defaults: Defaults) -> str:
    """The model's name without ``:latest``. Raises ApiError for a model that is not served."""
    name = defaults.name if requested_name is None else requested_name
    if name not in defaults.names and name.removesuffix(LATEST) in defaults.names:
        name = name.removesuffix(LATEST)
    if name not in defaults.names:
        sentence = f"model {name!r} not found: this server has {defaults.listed_names}."
        raise ApiError(404, sentence, "model", "model_not_found")
    return name


def _shared(body: OllamaBody, defaults: Defaults) -> AnswerRequest:
    """What chat and generate have in common."""
    options, think, length = body.options, body.think, body.options.num_predict
    tokenizer = defaults.model.tokenizer
    switches = tokenizer is not None and "enable_thinking" in tokenizer.template_names and think is not None
    effort: Any = think if isinstance(think, str) else None
    request = AnswerRequest(
        OllamaWriter, OLLAMA_WORDS, chat_template_kwargs={"enable_thinking": bool(think)} if switches else {},
        form=_form(body.format), fits=True,
        length=defaults.model.config.max_length if length in UNBOUNDED_LENGTHS else length,
        temperature=options.temperature, top_p=options.top_p, top_k=options.top_k, seed=options.seed,
        stop=tuple(options.stop), logprobs=bool(body.logprobs or body.top_logprobs), likeliest=body.top_logprobs,
        stream=body.stream, return_token_ids=body.return_token_ids, effort=effort,
        diffusion=body.diffusion or options.diffusion or Diffusion(), cache_salt=body.cache_salt,
    )  # fmt: skip
    return request.calling({"diffusion": "options.diffusion"}) if options.has("diffusion") else request


def _with_prompt(body: OllamaGenerateBody, request: AnswerRequest, defaults: Defaults) -> AnswerRequest:
    """The request with the prompt of generate: in the chat template, or plain."""
    if body.suffix:
        return _gap(body, request, defaults)
    if body.raw:
        return replace(request, prompt=body.prompt, effort=None, chat_template_kwargs={})
    request = request.calling({"messages": "prompt"})
    system = [ChatMessage("system", body.system, "system")] if body.system else []
    question = [ChatMessage("user", body.prompt, "prompt")] if body.prompt else []
    return replace(request, messages=(*system, *question))


def _gap(body: OllamaGenerateBody, request: AnswerRequest, defaults: Defaults) -> AnswerRequest:
    """A gap between prompt and suffix. Its length is a number of tokens: a gap's cannot change."""
    length = body.options.num_predict
    if length is not None and length < 1:
        sentence = f"options.num_predict={length!r} must be the tokens of the gap before suffix: a whole number from 1."
        raise ApiError(400, sentence, "options.num_predict")
    settings = {} if body.options.diffusion is None else body.options.diffusion.model_dump(exclude_unset=True)
    settings = ({} if body.diffusion is None else body.diffusion.model_dump(exclude_unset=True)) | settings
    canvas = [length or defaults.gen_length, body.suffix]
    diffusion = Diffusion.model_validate({**settings, "canvas": canvas})
    return replace(
        request, prompt=body.prompt or None, length=None, diffusion=diffusion, effort=None, chat_template_kwargs={}
    )


def _form(value: Any) -> AnswerForm | None:
    if value == "json":
        return AnswerForm("json_object", None, "format", "format")
    return AnswerForm("json_schema", value, "format", "format") if value else None


def _messages(bodies: Sequence[OllamaMessage]) -> tuple[ChatMessage, ...]:
    """The messages, in which each result names its call. Raises ApiError for a result without a call."""
    out = list[ChatMessage]()
    waiting = list[MessageCall]()  # those without a result
    for number, message in enumerate(bodies):
        place = f"messages[{number}]"
        calls = tuple(
            MessageCall(
                call.id or f"call_{number}_{at}",
                call.function.name,
                json.dumps(call.function.arguments, ensure_ascii=False),
            )
            for at, call in enumerate(message.tool_calls)
        )
        waiting += calls
        call = _call_of_result(message, waiting, place) if message.role == "tool" else None
        ident = None if call is None else call.id
        content = f"{place}.content"
        out.append(ChatMessage(message.role, message.content, content, calls, ident, thought=message.thinking))
    return tuple(out)


def _call_of_result(message: OllamaMessage, waiting: list[MessageCall], place: str) -> MessageCall:
    """The call that a result answers: the one it names, else the first open one. It is open no more."""
    name = message.tool_name or message.name
    candidates = [call for call in waiting if message.tool_call_id in (None, call.id)]
    mine = next((call for call in candidates if name in (None, call.name)), candidates[0] if candidates else None)
    if mine is None:
        raise ApiError(400, f"{place} has role tool, and no call before it waits for a result. Send the call.", place)
    waiting.remove(mine)
    return mine
