"""What a request of ``/v1/responses`` gives the model, as typed items, and the messages that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dllm.common.coerce import is_text
from dllm.common.errors import nearest
from dllm.serve.dialects.messages import ROLES, Arguments, ChatMessage, MessageCall, TextPart, few_entries, joined_text
from dllm.serve.dialects.other_fields import others_of
from dllm.serve.dialects.tools import FunctionName, FunctionSpec, ModeOr, distinct_names, few_tools, tool_choice_of
from dllm.serve.http.typed import BodyObject, TextOr, must, wrong

_MESSAGE_SHAPE = 'a text, or a list of {"role": ..., "content": ...}'


class InputPart(TextPart):
    """A part of a content. Only texts are served."""

    others = others_of("item_part")
    type: Literal["input_text", "output_text", "text"] = Field(description="its kind")  # type: ignore[assignment]


InputContent = Annotated[
    TextOr[InputPart],
    must(
        lambda value: isinstance(value, str | list), 'a text, or a list of {"type": "input_text", "text": ...}', False
    ),
]


class OfEveryItem(BodyObject):
    """What every item may have."""

    others = others_of("item")


class MessageItem(OfEveryItem):
    """A message."""

    others = others_of("item", "message_item")
    type: Literal["message"] = Field("message", description="its kind")
    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="who speaks")
    content: InputContent = Field(description="a text, or a list of text parts")

    @model_validator(mode="after")
    def _no_result(self) -> MessageItem:
        if self.role == "tool":
            raise wrong("must be the id of a call: send an item of type function_call_output.", "call_id", None)
        return self


class CallItem(OfEveryItem):
    """A call that the model made."""

    type: Literal["function_call"] = Field(description="its kind")
    call_id: str = Field(description="by which its result names it")
    name: str = Field(description="of the function")
    arguments: Arguments = Field(description="the text of one JSON object")


class OutputItem(OfEveryItem):
    """What a call gave."""

    type: Literal["function_call_output"] = Field(description="its kind")
    call_id: str = Field(description="of the call")
    output: InputContent = Field(description="a text, or a list of text parts")


class ThoughtPart(BodyObject):
    """A part of a thought."""

    type: Any = Field("reasoning_text", description="its kind")
    text: str = Field(description="what was thought")


class ReasoningItem(OfEveryItem):
    """What the model thought. An encrypted thought, as other servers send it, is ignored."""

    others = others_of("item", "reasoning_item")
    type: Literal["reasoning"] = Field(description="its kind")
    content: list[ThoughtPart] = Field([], description="the thought")


KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _kind(value: Any) -> str:
    return value.get("type") or "message" if isinstance(value, Mapping) else "message"


def _check_kind(value: Any) -> Any:
    kind = _kind(value)
    if kind == "item_reference":
        rule = "no item is stored, so none can be referred to. Send the item itself (AI SDK: store=false)"
        raise wrong(f"is not served: {rule}.", "type", kind)
    if kind not in KINDS:
        raise wrong(f"must be one of {', '.join(KINDS)}.{nearest(str(kind), KINDS)}", "type", kind)
    return value


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[OutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    Discriminator(lambda value: f"<{_kind(value)}>"),
    BeforeValidator(_check_kind),
]
Input = Annotated[
    TextOr[InputItem],
    BeforeValidator(few_entries),
    must(lambda value: is_text(value) or (isinstance(value, list) and value), _MESSAGE_SHAPE, False),
]


class FlatTool(FunctionSpec):
    """A function that an answer may call."""

    type: Literal["function"] = Field(description="its kind")

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("type") != "function":
            shape = '{"type": "function", "name": ..., "parameters": {...}}'
            raise wrong(f"of type {value.get('type')!r:.100} must be {shape}: there are no other tools here.")
        if "function" in value:
            raise wrong("is chat's: name and parameters stand beside type here. Write them there.", "function")
        return value


FlatTools = Annotated[list[FlatTool], distinct_names("name"), few_tools]


class FlatChoice(FunctionName):
    """The function that must be called."""

    type: Literal["function"] = Field(description="its kind")


FlatToolChoice = Annotated[ModeOr[FlatChoice], tool_choice_of('{"type": "function", "name": NAME}')]


@dataclass
class InputMessages:
    """Messages as they are read from items."""

    messages: list[ChatMessage] = field(default_factory=list)  # in their order
    thoughts: list[str] = field(default_factory=list)  # of the assistant, which speaks next

    @classmethod
    def of(cls, instructions: str | None, value: Any) -> tuple[ChatMessage, ...]:
        """The messages of ``instructions`` and ``input``."""
        out = cls()
        if instructions is not None:
            out.messages.append(ChatMessage("system", instructions, "instructions"))
        if isinstance(value, str):
            out.messages.append(ChatMessage("user", value, "input"))
        else:
            for number, item in enumerate(value):
                out._add_item(item, f"input[{number}]")
        return tuple(out.messages)

    def _add_item(self, item: MessageItem | CallItem | OutputItem | ReasoningItem, place: str) -> None:
        match item:
            case MessageItem():
                role: Any = ROLES[item.role]
                self._add(ChatMessage(role, joined_text(item.content), f"{place}.content"))
            case OutputItem():
                text, field = joined_text(item.output), f"{place}.call_id"
                self._add(ChatMessage("tool", text, f"{place}.output", (), item.call_id, field))
            case ReasoningItem():
                self.thoughts += [part.text for part in item.content]
            case CallItem():
                if not self.messages or self.messages[-1].role != "assistant":
                    self._add(ChatMessage("assistant", "", place))
                call = MessageCall(item.call_id, item.name, item.arguments)
                self.messages[-1] = replace(self.messages[-1], calls=(*self.messages[-1].calls, call))

    def _add(self, message: ChatMessage) -> None:
        if self.thoughts and message.role == "assistant":
            message = replace(message, thought="\n".join(self.thoughts))
        self.thoughts = []
        self.messages.append(message)
