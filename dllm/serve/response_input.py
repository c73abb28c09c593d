"""What a request of ``/v1/responses`` gives the model, as typed items, and the messages of chat that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from dllm.common.coerce import is_text
from dllm.errors import nearest
from dllm.serve.messages import TextPart, few_entries
from dllm.serve.tools import FunctionName, FunctionSpec, few_tools, tool_choice_of
from dllm.serve.typed import TEXT_OR_LIST, BodyObject, must, wrong

_MESSAGE_SHAPE = 'a text, or a list of {"role": ..., "content": ...}'


class InputPart(TextPart):
    """A part of a content. Only texts are served."""

    type: Literal["input_text", "output_text", "text"] = Field(description="its kind")  # type: ignore[assignment]
    annotations: Any = Field(None, description="without effect")
    logprobs: Any = Field(None, description="without effect")


InputContent = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[InputPart], Tag("<list>")],
    TEXT_OR_LIST,
    must(
        lambda value: isinstance(value, str | list), 'a text, or a list of {"type": "input_text", "text": ...}', False
    ),
]


def _joined(content: str | list[InputPart]) -> str:
    """The texts of parts, line by line, as chat joins them."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class OfEveryItem(BodyObject):
    """What every item may have."""

    id: Any = Field(None, description="without effect")
    status: Any = Field(None, description="without effect")


class MessageItem(OfEveryItem):
    """A message."""

    type: Literal["message"] = Field("message", description="its kind")
    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="who speaks")
    content: InputContent = Field(description="a text, or a list of text parts")
    phase: Any = Field(None, description="without effect")
    reasoning_details: Any = Field(None, description="without effect")
    cache_control: Any = Field(None, description="without effect")


class CallItem(OfEveryItem):
    """A call that the model made."""

    type: Literal["function_call"] = Field(description="its kind")
    call_id: str = Field(description="by which its result names it")
    name: str = Field(description="of the function")
    arguments: str = Field(description="the text of one JSON object")


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
    """What the model thought. One whose thought is encrypted, as other servers give it, says nothing here."""

    type: Literal["reasoning"] = Field(description="its kind")
    content: list[ThoughtPart] = Field([], description="the thought")
    summary: Any = Field(None, description="without effect")
    encrypted_content: Any = Field(None, description="without effect")


KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _kind(value: Any) -> str:
    return value.get("type") or "message" if isinstance(value, Mapping) else "message"


def _known_kind(value: Any) -> Any:
    kind = _kind(value)
    if kind == "item_reference":
        rule = "no item is stored, so none can be referred to. Send the item itself (AI SDK: store=false)"
        raise wrong(f"is not served: {rule}.", "type", kind)
    if kind not in KINDS:
        raise wrong(f"must be one of {', '.join(KINDS)}.{nearest(str(kind), KINDS)}", "type", kind)
    return value


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")] | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[OutputItem, Tag("<function_call_output>")] | Annotated[ReasoningItem, Tag("<reasoning>")],
    Discriminator(lambda value: f"<{_kind(value)}>"),
    BeforeValidator(_known_kind),
]  # fmt: skip
Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[InputItem], Tag("<list>")],
    TEXT_OR_LIST,
    BeforeValidator(few_entries),
    must(lambda value: is_text(value) or (isinstance(value, list) and value), _MESSAGE_SHAPE, False),
]


class FlatTool(FunctionSpec):
    """A function that an answer may call."""

    type: Literal["function"] = Field(description="its kind")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("type") != "function":
            shape = '{"type": "function", "name": ..., "parameters": {...}}'
            raise wrong(f"of type {value.get('type')!r:.100} must be {shape}: there are no other tools here.")
        if "function" in value:
            raise wrong("is chat's: name and parameters stand beside type here. Write them there.", "function")
        return value


FlatTools = Annotated[list[FlatTool], few_tools]


class FlatChoice(FunctionName):
    """The function that must be called."""

    type: Literal["function"] = Field(description="its kind")


FlatToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")] | Annotated[FlatChoice, Tag("<named>")],
    Discriminator(lambda value: "<mode>" if isinstance(value, str) else "<named>"),
    tool_choice_of('{"type": "function", "name": NAME}'),
]


@dataclass
class InputMessages:
    """Messages of chat, and where each was in the request."""

    messages: list[dict[str, Any]] = field(default_factory=list)  # as chat takes them
    places: dict[str, str] = field(default_factory=dict)  # of chat's names, the longer first: this request's
    thoughts: list[str] = field(default_factory=list)  # of the assistant, which speaks next

    @classmethod
    def of(cls, instructions: str | None, given: Any) -> InputMessages:
        """Of ``instructions`` and ``input``."""
        found = cls()
        if instructions is not None:
            found._add_text("system", instructions, "instructions")
        if isinstance(given, str):
            found._add_text("user", given, "input")
        else:
            for number, item in enumerate(given):
                found._add_item(item, f"input[{number}]")
        return found

    def _add_item(self, item: MessageItem | CallItem | OutputItem | ReasoningItem, place: str) -> None:
        match item:
            case MessageItem():
                self._add({"role": item.role, "content": _joined(item.content)}, place)
            case OutputItem():
                self._add({"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)}, place)
            case ReasoningItem():
                self.thoughts += [part.text for part in item.content]
            case CallItem():
                function = {"name": item.name, "arguments": item.arguments}
                self._add_call({"id": item.call_id, "type": "function", "function": function}, place)

    def _add(self, message: dict[str, Any], place: str) -> None:
        """A message that was at ``place``."""
        name = f"messages[{len(self.messages)}]"
        self.places |= {f"{name}.tool_call_id": f"{place}.call_id", name: place}
        if self.thoughts and message["role"] == "assistant":
            message["reasoning_content"] = "\n".join(self.thoughts)
        self.thoughts = []
        self.messages.append(message)

    def _add_text(self, role: str, text: str, place: str) -> None:
        """A message whose text alone was at ``place``."""
        self.places[f"messages[{len(self.messages)}].content"] = place
        self._add({"role": role, "content": text}, place)

    def _add_call(self, call: dict[str, Any], place: str) -> None:
        """A call, which belongs to the message of the assistant before it, if there is one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": ""}, place)
        calls = self.messages[-1].setdefault("tool_calls", [])
        name = f"messages[{len(self.messages) - 1}].tool_calls[{len(calls)}]"
        self.places = {f"{name}.function": place, name: place, **self.places}
        calls.append(call)
