"""The messages of a conversation: chat's as typed models, those of every form as values, and what a template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dllm.common.coerce import is_list_of, is_text, is_whole
from dllm.common.json_text import as_object, loaded
from dllm.models.text.chat_template import REASONING
from dllm.prompts import Message
from dllm.serve.dialects.other_fields import others_of
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.typed import AnyText, BodyObject, TextOr, must, value_json, wrong

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_ENTRIES = 2048  # messages of a conversation, and the parts of their contents
WRITTEN_OUT = (
    "The chat template of this model has no place for calls of tools and their results: they stand in the conversation "
    "as plain text."
)
ONLY_TEXT = "there are only texts. Drop it"
EMPTY = "is empty: what is to be answered?"
# Kinds of parts that hold no text, and fields of such parts.
NO_TEXT = ("image_url", "input_image", "image", "input_audio", "audio_url", "audio", "video_url", "input_video",
           "video", "file", "input_file", "document", "file_url")  # fmt: skip


@dataclass(frozen=True)
class MessageCall:
    """A call of a function that an assistant made."""

    id: str  # by which its result names it
    name: str  # of the function
    arguments: str  # the text of one JSON object

    def template(self, as_object: bool) -> dict[str, Any]:
        """As a chat template takes it. as_object: its arguments are an object."""
        arguments = loaded(self.arguments) if as_object else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation, whatever form of request it came in."""

    role: Literal["system", "user", "assistant", "tool"]  # who speaks
    text: str  # of the message
    content: str  # the field that holds the text
    calls: tuple[MessageCall, ...] = ()  # that the assistant made
    result_of: str | None = None  # of a result: the id of its call
    result_field: str = ""  # the field that says so
    thought: str | None = None  # what the assistant thought before
    name: str | None = None  # of the speaker, for templates that read it

    @property
    def message(self) -> Message:
        """As chat templates take it, without its calls."""
        more = {"tool_call_id": self.result_of, "reasoning_content": self.thought, "name": self.name}
        message: Message = {"role": self.role, "content": self.text}
        return message | {name: value for name, value in more.items() if value is not None}


class TextPart(BodyObject):
    """A part of a content. Only texts are served."""

    others = others_of("part")
    type: Literal["text"] = Field(description="its kind")
    text: str = Field(description="what it says")

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if is_text(kind := value.get("type")) and kind in NO_TEXT:
            raise wrong(f"of type {kind!r} is not served: there are only texts. Send its text, or drop it.")
        return value


def joined_text(content: str | list[Any]) -> str:
    """A content, of which several parts, each with a ``text``, stand line by line."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _as_arguments(value: str) -> str:
    """The text of a JSON object, exactly as it was written; "" is what others write of a call without arguments."""
    text = as_object(value)
    if text is None:
        raise wrong('must be the text of a JSON object; none is "{}".', value=value)
    return text


Arguments = Annotated[str, AfterValidator(_as_arguments)]


class SentFunction(BodyObject):
    """The function of a call that an assistant made."""

    name: str = Field(description="of the function")
    arguments: Arguments = Field("{}", description="the text of one JSON object")


class SentCall(BodyObject):
    """A call that an assistant made."""

    others = others_of("call")
    id: str = Field(description="by which its result names it")
    type: Literal["function"] = Field("function", description="its kind")
    function: SentFunction = Field(description="name and arguments")


Content = Annotated[
    TextOr[TextPart],
    must(
        lambda value: isinstance(value, str) or (isinstance(value, list) and value),
        'a text, or a list of {"type": "text", "text": ...}',
        False,
    ),
]


class SentMessage(BodyObject):
    """One message of a conversation."""

    others = others_of("message")
    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="who speaks")
    content: Content | None = Field(None, description="a text, or a list of text parts")
    name: AnyText | None = Field(None, description="of the speaker, for templates that read it")
    type: Literal["text"] = Field("text", description="without effect")
    tool_calls: list[SentCall] = Field([], description="calls that the assistant made")
    tool_call_id: str | None = Field(None, description="of a result: the id of its call")
    reasoning_content: str | None = Field(None, description="what the assistant thought")
    thinking: str | None = Field(None, description="the same")
    reasoning: str | None = Field(None, description="the same")

    @model_validator(mode="after")
    def _by_role(self) -> SentMessage:
        """What goes with which role."""
        if self.role != "assistant":
            for name in ("tool_calls", *REASONING):
                if getattr(self, name):
                    raise wrong("goes with role assistant. Drop it.", name)
        if self.role != "tool" and self.tool_call_id is not None:
            raise wrong("goes with role tool. Drop it.", "tool_call_id", self.tool_call_id)
        if self.role == "tool" and self.tool_call_id is None:
            raise wrong("must be the id of a call.", "tool_call_id", None)
        if self.content is None and not self.tool_calls:
            raise wrong('must be a text, or a list of {"type": "text", "text": ...}.', "content")
        return self

    @property
    def text(self) -> str:
        """The content; of several parts line by line."""
        return joined_text(self.content or "")

    def as_message(self, place: str) -> ChatMessage:
        """The message, which is at a place of the request."""
        calls = tuple(MessageCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls)
        thought = next((value for value in (getattr(self, name) for name in REASONING) if value is not None), None)
        role: Any = ROLES[self.role]
        return ChatMessage(
            role, self.text, f"{place}.content", calls, self.tool_call_id, f"{place}.tool_call_id", thought, self.name
        )


def few_entries(value: Any) -> Any:
    """The messages, once their number, with parts of contents and calls, is small enough to read each."""
    entries = value if isinstance(value, list) else []
    count = len(entries)
    for entry in entries[:MAX_ENTRIES]:
        for key in ("content", "tool_calls", "output") if isinstance(entry, Mapping) else ():
            count += len(entry[key]) if isinstance(entry.get(key), list) else 0
    if count > MAX_ENTRIES:
        raise wrong(f"holds {count} messages, parts and calls, more than {MAX_ENTRIES}. Join some, or send fewer.")
    return value


def check_order(messages: Sequence[ChatMessage]) -> None:
    """Raise ApiError unless results follow their calls, and the last message, if a user's, says something."""
    idents = set[str]()
    for message in messages:
        ident, field = message.result_of, message.result_field
        if ident is not None and ident not in idents:
            raise ApiError(400, f"{field}={value_json(ident)} is the id of no call before it.", field)
        idents.update(call.id for call in message.calls)
    if messages and messages[-1].role == "user" and not messages[-1].text.strip():
        raise ApiError(400, f"{messages[-1].content} {EMPTY}", messages[-1].content)


_SHAPE = 'a list of {"role": ..., "content": ...}, and not empty'
SOME_MESSAGES = BeforeValidator(few_entries), must(lambda value: isinstance(value, list) and value, _SHAPE, False)
SentConversation = Annotated[list[SentMessage], *SOME_MESSAGES]


def as_messages(bodies: Sequence[SentMessage], field: str = "messages") -> tuple[ChatMessage, ...]:
    """Chat's messages, which a field of the request holds. Raises ApiError as ``check_order``."""
    messages = tuple(message.as_message(f"{field}[{number}]") for number, message in enumerate(bodies))
    check_order(messages)
    return messages


def conversation(messages: Sequence[ChatMessage], tools: bool = False) -> list[Message]:
    """The messages as the chat template takes them. tools: it writes calls and results; else they become text."""
    if not tools:
        return _as_text_messages(messages)
    return [
        {
            **message.message,
            **({"tool_calls": [call.template(True) for call in message.calls]} if message.calls else {}),
        }
        for message in messages
    ]


def _as_text_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """A conversation in which a call is a line of JSON that the assistant says, and its result one that the user does,
    together with what the user says next: templates may want the two to take turns."""
    names = {call.id: call.name for message in messages for call in message.calls}
    out, after_result = list[Message](), False
    for message in messages:
        is_result = message.result_of is not None
        text = f"{names[message.result_of]} returned: {message.text}" if message.result_of is not None else message.text
        lines = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in message.calls]
        text = "\n".join(([text] if text or not lines else []) + lines)
        if after_result and message.role in ("tool", "user"):
            out[-1]["content"] += f"\n{text}"
        else:
            fields = {name: value for name, value in message.message.items() if name != "tool_call_id"}
            out.append({**fields, "role": "user" if is_result else message.role, "content": text})
        after_result = is_result
    return out


def prompts_in(value: Any) -> list[Any]:
    """The prompts, not yet checked, of a field that holds one or several."""
    return value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]


def validated_prompts(value: Any) -> list[tuple[str, str | list[int]]]:
    """The prompts, each a text or token ids, by the names of their places. Raises ApiError."""
    prompts, out = prompts_in(value), list[tuple[str, str | list[int]]]()
    for number, prompt in enumerate(prompts):
        name = f"prompt[{number}]" if len(prompts) > 1 else "prompt"
        if not isinstance(prompt, str) and not (prompt and is_list_of(is_whole)(prompt)):
            raise ApiError(400, f"{name} must be a text, or a list of token ids.", name)
        out.append((name, prompt))
    return out
