"""OpenAI's chat and completions: what their bodies ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.serve.dialects.answer_request import AnswerRequest, same_fields
from dllm.serve.dialects.chat_reply import ChatWriter, CompletionWriter
from dllm.serve.dialects.fields import ChatBody, ChoicesBody, CompletionBody, OpenAIBody
from dllm.serve.dialects.messages import as_messages
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.response_formats import AnswerForm, form_of
from dllm.serve.dialects.wire import ParsedRequest, parsed_request
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.typed import read_body

LENGTHS = ("max_completion_tokens", "max_tokens")
FORM_UNUSED = "binds the text of an answer, and a call is forced: the call follows its function alone."


def parse_request(body: Mapping[str, Any], chat: bool, defaults: Defaults) -> ParsedRequest:
    """What ``body`` asks for; chat: of chat, else of completions. Raises ApiError for what cannot be served."""
    kind: type[ChoicesBody] = ChatBody if chat else CompletionBody
    fields, unknown = read_body(kind, body, defaults.refuses_unknown)
    return parsed_request(_request(fields, body, unknown), defaults)


def _request(body: ChoicesBody, raw: Mapping[str, Any], unknown: tuple[str, ...]) -> AnswerRequest:
    """raw: as it was sent, which the chat template reads of tools."""
    lengths = {name: getattr(body, name) for name in LENGTHS if body.has(name)}
    if len(set(lengths.values())) > 1:
        raise ApiError(400, f"{' and '.join(lengths)} say the same thing differently. Drop one.", LENGTHS[0])
    fields: dict[str, Any] = {
        "length": next(iter(lengths.values()), None),
        "n": body.n if body.has("n") else None,
        "unknown": unknown,
        "logprobs": body.logprobs is not False,
        "likeliest": _likeliest(body),
    }
    form = None if body.response_format is None else body.response_format.answer_form("response_format")
    if isinstance(body, ChatBody):
        tools = body.requested_tools(raw)
        request = AnswerRequest(
            ChatWriter,
            messages=as_messages(body.messages),
            tools=tools,
            chat_template_kwargs=body.chat_template_kwargs,
            **openai_fields(body, form, tools.must_call),
            **fields,
        )
    else:
        prompt = getattr(body, "prompt", None)
        request = AnswerRequest(CompletionWriter, prompt=prompt, **openai_fields(body, form, False), **fields)
    return request.calling({"max_tokens": next(iter(lengths))}) if lengths else request


def _likeliest(body: ChoicesBody) -> int:
    """How many likeliest tokens are told: in chat ``top_logprobs``, else ``logprobs``. Raises ApiError."""
    count = body.top_logprobs if isinstance(body.logprobs, bool) else body.logprobs
    if count and body.logprobs is False:
        raise ApiError(400, f"top_logprobs={count} goes with logprobs=true. Add it.", "top_logprobs")
    return count


def openai_fields(body: OpenAIBody, form: AnswerForm | None, must_call: bool) -> dict[str, Any]:
    """What OpenAI's forms have in common. form: of the request's own field. must_call: the answer must be a call.
    Raises ApiError for two forms."""
    answer_form, unused_field = form_of(body, form, must_call)
    reasoning, budget = body.reasoning, body.thinking_token_budget
    effort = (
        "none" if reasoning.enabled is False or reasoning.max_tokens == 0 else reasoning.effort or body.reasoning_effort
    )
    thought = reasoning.max_tokens or None if budget is None else budget
    return {
        **same_fields(body),
        "form": answer_form,
        "stop": tuple(body.stop),
        "thought_tokens": thought,
        "effort": effort if thought is None else None,
        "include_usage": body.stream_options.include_usage and body.stream,
        "usage_so_far": body.stream_options.continuous_usage_stats and body.stream,
        "notes": (f"{unused_field} {FORM_UNUSED}",) if unused_field else (),
    }
