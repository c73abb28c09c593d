"""Anthropic's Messages: what a body of ``/v1/messages`` asks for (docs.anthropic.com, Messages API)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from dllm.contract.refusal import MESSAGES_WORDS
from dllm.serve.dialects.answer_request import AnswerRequest, same_fields
from dllm.serve.dialects.anthropic_fields import (
    CallBlock,
    DocumentBlock,
    InputChoice,
    MessagesBody,
    ResultBlock,
    TextBlock,
    ThoughtBlock,
    TurnMessage,
)
from dllm.serve.dialects.anthropic_reply import MessagesWriter
from dllm.serve.dialects.chat_request import FORM_UNUSED
from dllm.serve.dialects.messages import ChatMessage, MessageCall, check_order
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.tools import Tools
from dllm.serve.dialects.wire import ParsedRequest, count_prompt, parsed_request
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.typed import read_body

BILLING = "x-anthropic-billing-header"  # begins a text of Claude Code that differs in each request
_MODES = {"auto": "auto", "any": "required", "none": "none"}  # of tool_choice
_TOO_LONG = "prompt is too long"  # at which clients shorten a conversation
_PlacedBlock = tuple[str, Any]  # place, and block


@dataclass
class Turns:
    """Messages as they are read from turns."""

    messages: list[ChatMessage] = field(default_factory=list)  # in their order
    begin: str = ""  # how the answer begins

    @classmethod
    def of(cls, body: MessagesBody) -> Turns:
        """Of ``system`` and ``messages``. Raises ApiError for blocks that their role does not have."""
        messages = [(f"messages[{number}]", message) for number, message in enumerate(body.messages)]
        head = next((at for at, (_, message) in enumerate(messages) if message.role != "system"), len(messages))
        turns, texts = cls(), [body.system] if isinstance(body.system, str) else [entry.text for entry in body.system]
        texts += [block.text for _, message in messages[:head] for _, block in _blocks("", message) if _is_text(block)]
        system = "\n\n".join(text for text in texts if text and not text.startswith(BILLING))
        if system:
            turns.messages.append(ChatMessage("system", system, "system"))
        # few templates know a system message between others: it becomes one of the user
        for by_assistant, turn in groupby(messages[head:], lambda entry: entry[1].role == "assistant"):
            blocks = [_blocks(place, message) for place, message in turn]
            turns._add_answer(blocks) if by_assistant else turns._add_question(blocks)
        return turns._with_beginning(messages)

    def _add_question(self, turn: list[list[_PlacedBlock]]) -> None:
        """A turn of the user: results of calls first, since they answer the turn before."""
        for place, block in (entry for blocks in turn for entry in blocks):
            if isinstance(block, ResultBlock):
                field = f"{place}.tool_use_id"
                self.messages.append(ChatMessage("tool", block.text, place, (), block.tool_use_id, field))
            elif not _is_text(block):
                raise ApiError(400, f"{place}.type={block.type!r} goes with role assistant. Drop it.", f"{place}.type")
        texts = ["\n".join(_texts(blocks)) for blocks in turn]
        if any(texts) or not self.messages or self.messages[-1].role != "tool":
            place = f"{turn[-1][-1][0].partition('.')[0] if turn[-1] else 'messages'}.content"
            self.messages.append(ChatMessage("user", "\n\n".join(filter(None, texts)), place))

    def _add_answer(self, turn: list[list[_PlacedBlock]]) -> None:
        """A turn of the assistant."""
        blocks = [entry for blocks in turn for entry in blocks]
        for place, block in blocks:
            if isinstance(block, ResultBlock):
                raise ApiError(400, f"{place}.type={block.type!r} goes with role user. Drop it.", f"{place}.type")
        calls = tuple(
            MessageCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
            for _, block in blocks
            if isinstance(block, CallBlock)
        )
        thoughts = [block.thinking for _, block in blocks if isinstance(block, ThoughtBlock)]
        thought = "\n".join(thoughts) if any(thoughts) else None
        self.messages.append(ChatMessage("assistant", "\n".join(_texts(blocks)), "", calls, thought=thought))

    def _with_beginning(self, messages: list[tuple[str, TurnMessage]]) -> Turns:
        """Without the assistant's last turn, which is how the answer begins. Raises ApiError where it calls a tool."""
        if not self.messages or self.messages[-1].role != "assistant":
            return self
        last, name = self.messages[-1], messages[-1][0]
        if last.calls:
            raise ApiError(400, f"{name} calls a tool, and its result is missing. Send it as a tool_result.", name)
        if len(self.messages) == 1:
            raise ApiError(400, f"{name} is the assistant's, and nothing was asked. Begin with role user.", name)
        return Turns(self.messages[:-1], last.text)


def _texts(blocks: Iterable[_PlacedBlock]) -> list[str]:
    return [block.text for _, block in blocks if _is_text(block)]


def _is_text(block: Any) -> bool:
    return isinstance(block, TextBlock | DocumentBlock)


def _blocks(place: str, message: TurnMessage) -> list[tuple[str, Any]]:
    """The blocks of a message with their places; a text is one."""
    if isinstance(message.content, str):
        return [(f"{place}.content", TextBlock(type="text", text=message.content))]
    return [(f"{place}.content[{at}]", block) for at, block in enumerate(message.content)]


def parse_messages(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Messages call them, for what cannot be served."""
    request = _request(body, defaults)
    try:
        parsed = parsed_request(request, defaults)
    except ApiError as error:
        raise _too_long(error, defaults) from None
    length, room = request.length, parsed.answer_room
    if length is None or length <= room:
        return parsed
    more = f"max_tokens={length} is more than the model and the prompt leave"
    return replace(parsed, notes=(*parsed.notes, f"{more}: the answer has at most {room} tokens."))


def _too_long(error: ApiError, defaults: Defaults) -> ApiError:
    """A refusal of a prompt that is too long, in the words by which clients know it."""
    if error.code != "context_length_exceeded":
        return error
    sizes = "" if error.tokens is None else f": {error.tokens} tokens > {defaults.model.config.max_length} maximum"
    sentence = f"{_TOO_LONG}{sizes}. Shorten the messages."
    return ApiError(error.status, sentence, error.param, error.code)


def count_messages(body: Mapping[str, Any], defaults: Defaults) -> int:
    """The tokens of a conversation, as its request has them. Raises ApiError as ``parse_messages``."""
    request = _request(body, defaults)
    try:
        return count_prompt(request, defaults)
    except ApiError as error:
        raise _too_long(error, defaults) from None


def _request(raw: Mapping[str, Any], defaults: Defaults) -> AnswerRequest:
    body, unknown = read_body(MessagesBody, raw, defaults.refuses_unknown)
    turns, tools = Turns.of(body), _tools(body)
    check_order(turns.messages)
    forms = {"output_config.format": body.output_config.format, "output_format": body.output_format}
    name, form = next(((name, form) for name, form in forms.items() if form is not None), ("", None))
    return AnswerRequest(
        MessagesWriter,
        MESSAGES_WORDS,
        messages=tuple(turns.messages),
        begin=turns.begin,
        tools=tools,
        chat_template_kwargs={**_switch(body, defaults), **body.chat_template_kwargs},
        form=None if form is None or tools.must_call else form.answer_form(name),
        length=body.max_tokens,
        fits=True,
        stop=tuple(body.stop_sequences),
        unknown=unknown,
        **same_fields(body),
        notes=(f"{name} {FORM_UNUSED}",) if form is not None and tools.must_call else (),
        thought_tokens=None if body.thinking is None else body.thinking.budget_tokens,
    )


def _tools(body: MessagesBody) -> Tools:
    choice = body.tool_choice or InputChoice(type="auto")
    if choice.type == "tool" and choice.name is None:
        raise ApiError(400, "tool_choice.name is missing: the name of the function.", "tool_choice.name")
    tools = tuple(tool.tool(f"tools[{number}]") for number, tool in enumerate(body.tools))
    words = {ours: json.dumps({"type": theirs}) for theirs, ours in _MODES.items()}
    mode = None if body.tool_choice is None else _MODES.get(choice.type)
    name = choice.name if choice.type == "tool" else None
    return Tools(tools, tuple(tool.template_form for tool in body.tools), mode, name, words)


def _switch(body: MessagesBody, defaults: Defaults) -> dict[str, bool]:
    """The template's own switch of a thought, where it has one and the request says something."""
    tokenizer = defaults.model.tokenizer
    has = tokenizer is not None and "enable_thinking" in tokenizer.template_names
    return {} if body.thinking is None or not has else {"enable_thinking": body.thinking.type != "disabled"}
