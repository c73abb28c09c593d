"""Anthropic's Messages: a request of ``/v1/messages`` made one of chat (docs.anthropic.com, Messages API)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from dllm.serve.anthropic_fields import (
    CallBlock,
    DocumentBlock,
    InputChoice,
    InputTool,
    MessagesBody,
    ResultBlock,
    TextBlock,
    ThoughtBlock,
    TurnMessage,
)
from dllm.serve.api_errors import ApiError
from dllm.serve.dialect import in_words_of, parse_as_chat
from dllm.serve.fields import FittingChat
from dllm.serve.request_parts import Defaults
from dllm.serve.typed import read_body
from dllm.serve.wire import ParsedRequest, count_prompt

BILLING = "x-anthropic-billing-header"  # begins a text of Claude Code that differs in each request
# What sentences of chat call fields, and what this request calls them.
_CALLED = {
    "max_completion_tokens": "max_tokens", "stop": "stop_sequences", "thinking_token_budget": "thinking.budget_tokens",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format.json_schema": "output_config.format", "response_format": "output_config.format",
    '"required"': '{"type": "any"}', '"none"': '{"type": "none"}',
}  # fmt: skip
# Fields that chat has, too.
SHARED = ("model", "stream", "temperature", "top_p", "top_k", "seed", "min_tokens", "ignore_eos", "diffusion",
          "return_token_ids", "cache_salt")  # fmt: skip
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TOO_LONG = "prompt is too long"  # at which clients shorten a conversation


@dataclass
class Turns:
    """The messages of chat, and where each was in the request."""

    messages: list[dict[str, Any]] = field(default_factory=list)  # as chat takes them
    places: dict[str, str] = field(default_factory=dict)  # of chat's names, the longer first: this request's
    begin: str = ""  # how the answer begins

    @classmethod
    def of(cls, body: MessagesBody) -> Turns:
        """Of ``system`` and ``messages``. Raises ApiError for blocks that their role does not have."""
        sent = [(f"messages[{number}]", message) for number, message in enumerate(body.messages)]
        head = next((at for at, (_, message) in enumerate(sent) if message.role != "system"), len(sent))
        found, texts = cls(), [body.system] if isinstance(body.system, str) else [one.text for one in body.system]
        texts += [block.text for _, message in sent[:head] for _, block in _blocks("", message) if _is_text(block)]
        system = "\n\n".join(text for text in texts if text and not text.startswith(BILLING))
        if system:
            found._add({"role": "system", "content": system}, "system")
        # a system message in between is told by the user: few templates know such a one
        for by_assistant, turn in groupby(sent[head:], lambda one: one[1].role == "assistant"):
            blocks = [_blocks(place, message) for place, message in turn]
            found._add_answer(blocks) if by_assistant else found._add_question(blocks)
        return found._with_beginning()

    def _add(self, message: dict[str, Any], place: str) -> None:
        name = f"messages[{len(self.messages)}]"
        self.places |= {f"{name}.tool_call_id": f"{place}.tool_use_id", name: place}
        self.messages.append(message)

    def _add_question(self, turn: list[list[tuple[str, Any]]]) -> None:
        """A turn of the user: results of calls first, since they answer the turn before."""
        for place, block in (one for blocks in turn for one in blocks):
            if isinstance(block, ResultBlock):
                self._add({"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}, place)
            elif not _is_text(block):
                raise ApiError(400, f"{place}.type={block.type!r} goes with role assistant. Drop it.", f"{place}.type")
        texts = ["\n".join(block.text for _, block in blocks if _is_text(block)) for blocks in turn]
        if any(texts) or not self.messages or self.messages[-1]["role"] != "tool":
            place = turn[-1][-1][0] if turn[-1] else "messages"
            self._add({"role": "user", "content": "\n\n".join(filter(None, texts))}, place.partition(".")[0])

    def _add_answer(self, turn: list[list[tuple[str, Any]]]) -> None:
        """A turn of the assistant."""
        texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
        for place, block in (one for blocks in turn for one in blocks):
            if isinstance(block, ResultBlock):
                raise ApiError(400, f"{place}.type={block.type!r} goes with role user. Drop it.", f"{place}.type")
            if isinstance(block, CallBlock):
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            elif isinstance(block, ThoughtBlock):
                thoughts.append(block.thinking)
            elif _is_text(block):
                texts.append(block.text)
        more: dict[str, Any] = {"tool_calls": calls} if calls else {}
        more |= {"reasoning_content": "\n".join(thoughts)} if any(thoughts) else {}
        place = turn[-1][-1][0] if turn[-1] else "messages"
        self._add({"role": "assistant", "content": "\n".join(texts), **more}, place.partition(".")[0])

    def _with_beginning(self) -> Turns:
        """Without the assistant's last turn, which is how the answer begins. Raises ApiError where it calls a tool."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return self
        last, name = self.messages[-1], self.places[f"messages[{len(self.messages) - 1}]"]
        if "tool_calls" in last:
            raise ApiError(400, f"{name} calls a tool, and its result is missing. Send it as a tool_result.", name)
        if len(self.messages) == 1:
            raise ApiError(400, f"{name} is the assistant's, and nothing was asked. Begin with role user.", name)
        return replace(self, messages=self.messages[:-1], begin=last["content"])


def _is_text(block: Any) -> bool:
    return isinstance(block, TextBlock | DocumentBlock)


def _blocks(place: str, message: TurnMessage) -> list[tuple[str, Any]]:
    """The blocks of a message with their places; a text is one."""
    if isinstance(message.content, str):
        return [(f"{place}.content", TextBlock(type="text", text=message.content))]
    return [(f"{place}.content[{at}]", block) for at, block in enumerate(message.content)]


def parse_messages(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Messages call them, for what cannot be served."""
    fields, unknown = read_body(MessagesBody, body, defaults.refuses_unknown)
    chat, called = _as_chat(fields, defaults)
    try:
        found = parse_as_chat(chat, called, defaults, FittingChat)
    except ApiError as refused:
        raise _too_long(refused, defaults) from None
    job, asked = found.jobs[0], fields.max_tokens
    length = job.columns - job.request.answer_start
    notes = [*found.notes, *_shorter(asked, length)]
    repeated = {"shortened": asked is not None and length < asked}  # by the model's limit or the server's
    return replace(found, notes=tuple(notes), unknown=unknown, repeated=repeated)


def _shorter(asked: int | None, length: int) -> Iterator[str]:
    if asked is not None and length < asked:
        yield f"max_tokens={asked} is more than the model and the prompt leave: the answer has at most {length} tokens."


def _too_long(refused: ApiError, defaults: Defaults) -> ApiError:
    """A refusal of a prompt that is too long, in the words by which clients know it."""
    if refused.code != "context_length_exceeded":
        return refused
    count = re.search(r"takes (?:at least )?(\d+) tokens", refused.message)
    told = f": {count[1]} tokens > {defaults.model.config.max_length} maximum" if count else ""
    sentence = f"{_TOO_LONG}{told}. Shorten the messages."
    return ApiError(refused.status, sentence, refused.param, refused.code)


def count_messages(body: Mapping[str, Any], defaults: Defaults) -> int:
    """The tokens of a conversation, as its request has them. Raises ApiError as ``parse_messages``."""
    fields, _ = read_body(MessagesBody, body, defaults.refuses_unknown)
    chat, called = _as_chat(fields, defaults)
    try:
        return count_prompt(chat, FittingChat, defaults)
    except ApiError as refused:
        raise _too_long(in_words_of(refused, called), defaults) from None


def _as_chat(body: MessagesBody, defaults: Defaults) -> tuple[dict[str, Any], dict[str, str]]:
    """The request of chat, and of its names, the longer first, this request's."""
    turns, choice, form = Turns.of(body), body.tool_choice, body.output_config.format or body.output_format
    chat: dict[str, Any] = {name: getattr(body, name) for name in SHARED if body.has(name)}
    chat |= {
        "messages": turns.messages, "begin": turns.begin, "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences or None, "tools": [_function(tool) for tool in body.tools] or None,
        "tool_choice": None if choice is None else _choice(choice),
        "chat_template_kwargs": {**_switch(body, defaults), **body.chat_template_kwargs},
        "thinking_token_budget": None if body.thinking is None else body.thinking.budget_tokens,
    }  # fmt: skip
    if form is not None:
        schema = {"name": "answer", "schema": form.schema_, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    places = {f"tools[{at}].function.parameters": f"tools[{at}].input_schema" for at in range(len(body.tools))}
    places |= {f"tools[{at}].function": f"tools[{at}]" for at in range(len(body.tools))}
    return chat, {**places, **turns.places, **_CALLED}


def _function(tool: InputTool) -> dict[str, Any]:
    told = {"description": tool.description} if tool.description is not None else {}
    function = {"name": tool.name, **told, "parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": function}


def _choice(choice: InputChoice) -> Any:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise ApiError(400, "tool_choice.name is missing: the name of the function.", "tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _switch(body: MessagesBody, defaults: Defaults) -> dict[str, bool]:
    """The template's own switch of a thought, where it has one and the request says something."""
    tokenizer = defaults.model.tokenizer
    has = tokenizer is not None and "enable_thinking" in tokenizer.template_names
    return {} if body.thinking is None or not has else {"enable_thinking": body.thinking.type != "disabled"}
