"""The body of ``/v1/messages``: Anthropic's Messages, every field with its kind, range and default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from dllm.serve.dialects.fields import (
    DIFFUSION,
    MAX_BUDGET,
    Common,
    Diffusion,
    TemplateKwargs,
    WholeDiffusion,
    as_stops,
)
from dllm.serve.dialects.messages import ONLY_TEXT, SOME_MESSAGES, joined_text
from dllm.serve.dialects.other_fields import NO_TOOLS, others_of
from dllm.serve.dialects.response_formats import AnswerForm, SentSchema
from dllm.serve.dialects.tools import (
    NAME_RULE,
    NO_PARAMETERS,
    SentName,
    SentParameters,
    Tool,
    distinct_names,
    few_tools,
)
from dllm.serve.http.typed import AnyText, BodyObject, TextOr, must, wrong


class OfEveryBlock(BodyObject):
    """What every block of a content may have."""

    others = others_of("block")


class TextBlock(OfEveryBlock):
    """A text."""

    others = others_of("block", "text_block")
    type: Literal["text"] = Field(description="its kind")
    text: str = Field(description="what it says")


class TextSource(BodyObject):
    """The text of a document."""

    others = others_of("source")
    type: Literal["text"] = Field(description="its kind: only texts are read")
    data: str = Field(description="the text")


class DocumentBlock(OfEveryBlock):
    """A document that is a text."""

    others = others_of("block", "document")
    type: Literal["document"] = Field(description="its kind")
    source: TextSource = Field(description="what it holds")

    @property
    def text(self) -> str:
        return self.source.data


class CallBlock(OfEveryBlock):
    """A call that the model made."""

    others = others_of("block", "tool_use")
    type: Literal["tool_use"] = Field(description="its kind")
    id: str = Field(description="by which its result names it")
    name: str = Field(description="of the function")
    input: dict[str, Any] = Field(description="its arguments")


class ReferencePart(BodyObject):
    """The name of a tool that was found."""

    type: Literal["tool_reference"] = Field(description="its kind")
    tool_name: str = Field(description="of the tool")

    @property
    def text(self) -> str:
        return self.tool_name


def _of_kind(*kinds: str) -> tuple[Discriminator, BeforeValidator]:
    """Tells blocks apart by their type, and refuses other types."""

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind not in kinds:
            raise wrong(f"is not served: it takes {', '.join(kinds)}; {ONLY_TEXT}.", "type", kind)
        return value

    return Discriminator(lambda value: f"<{value.get('type')}>"), BeforeValidator(check)


ResultPart = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[ReferencePart, Tag("<tool_reference>")],
    *_of_kind("text", "document", "tool_reference"),
]
_TEXT_OR_BLOCKS = must(lambda value: isinstance(value, str | list), "a text, or a list of blocks", False)


class ResultBlock(OfEveryBlock):
    """What a call gave."""

    type: Literal["tool_result"] = Field(description="its kind")
    tool_use_id: str = Field(description="of the call")
    content: Annotated[TextOr[ResultPart], _TEXT_OR_BLOCKS] = Field("", description="a text, or a list of blocks")
    is_error: bool = Field(False, description="the call failed: its text begins with Error")

    @property
    def text(self) -> str:
        return f"Error: {joined_text(self.content)}" if self.is_error else joined_text(self.content)


class ThoughtBlock(OfEveryBlock):
    """What the model thought."""

    others = others_of("block", "thought")
    type: Literal["thinking"] = Field(description="its kind")
    thinking: str = Field(description="the thought")


class HiddenThoughtBlock(OfEveryBlock):
    """What another server's model thought, encrypted: it is ignored."""

    others = others_of("block", "hidden_thought")
    type: Literal["redacted_thinking"] = Field(description="its kind")


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[CallBlock, Tag("<tool_use>")]
    | Annotated[ResultBlock, Tag("<tool_result>")]
    | Annotated[ThoughtBlock, Tag("<thinking>")]
    | Annotated[HiddenThoughtBlock, Tag("<redacted_thinking>")],
    *_of_kind("text", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"),
]
_Content = Annotated[TextOr[Block], _TEXT_OR_BLOCKS]


class TurnMessage(BodyObject):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"] = Field(description="who speaks")
    content: _Content = Field(description="a text, or a list of blocks")


class InputTool(BodyObject):
    """A function that an answer may call."""

    others = others_of("tool")
    type: Literal["custom"] = Field("custom", description="its kind")
    name: SentName = Field(description=f"of the function: {NAME_RULE}")
    description: AnyText | None = Field(None, description="what it does")
    input_schema: SentParameters = Field(NO_PARAMETERS, description="the JSON schema of its arguments")
    strict: bool = Field(False, description="an unknown keyword of the schema is refused")

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("type") not in (None, "custom"):
            raise wrong(f"is not served: {NO_TOOLS}.", "type", value["type"])
        return value

    def tool(self, place: str) -> Tool:
        """The function, which is at a place of the request."""
        return Tool(self.name, self.input_schema, self.strict, place, f"{place}.input_schema")

    @property
    def template_form(self) -> dict[str, Any]:
        """As chat templates read it."""
        about = {"description": self.description} if self.description is not None else {}
        function = {"name": self.name, **about, "parameters": self.input_schema, "strict": self.strict}
        return {"type": "function", "function": function}


class InputChoice(BodyObject):
    """Which function must be called."""

    others = others_of("tool_choice")
    type: Literal["auto", "any", "tool", "none"] = Field(
        description="auto: the model decides; any: one of them; tool: the named one"
    )
    name: str | None = Field(None, description="of the function")


class ThinkingSpec(BodyObject):
    """Whether the model thinks before it answers."""

    others = others_of("thinking")
    type: Literal["enabled", "adaptive", "disabled"] = Field(description="switches a thought where the template can")
    budget_tokens: int | None = Field(None, ge=0, le=MAX_BUDGET, description="tokens after which the thought ends")


class OutputForm(BodyObject):
    """JSON that validates under a schema."""

    type: Literal["json_schema"] = Field(description="its kind")
    schema_: SentSchema = Field(alias="schema", description="the schema")

    def answer_form(self, field: str) -> AnswerForm:
        """The form that a field of the request holds."""
        return AnswerForm("json_schema", self.schema_, field, f"{field}.schema", strict=True)


class OutputSpec(BodyObject):
    """What an answer must be."""

    others = others_of("output")
    format: OutputForm | None = Field(None, description="its form")


class MessagesBody(Common):
    """A conversation to be answered, in the form of Anthropic's Messages."""

    others = others_of("messages")
    diffusion: WholeDiffusion = Field(default_factory=Diffusion, description=DIFFUSION)
    max_tokens: int | None = Field(
        None, ge=1, description="the answer's longest length in tokens; it has fewer where the model leaves fewer"
    )
    messages: Annotated[list[TurnMessage], *SOME_MESSAGES] = Field(
        description="what is to be answered; a last one of the assistant is how the answer begins"
    )
    system: Annotated[TextOr[TextBlock], _TEXT_OR_BLOCKS] = Field(
        "", description="a message of the system before all others"
    )
    stop_sequences: Annotated[list[str], AfterValidator(as_stops)] = Field(
        [], description="texts; the answer ends before the first"
    )
    tools: Annotated[list[InputTool], distinct_names("name"), few_tools] = Field(
        [], description="functions that the answer may call"
    )
    tool_choice: InputChoice | None = Field(None, description="which of them must be called")
    thinking: ThinkingSpec | None = Field(None, description="whether the model thinks before it answers")
    output_config: OutputSpec = Field(default_factory=OutputSpec, description="what the answer must be")
    output_format: OutputForm | None = Field(None, description="the same, the older name")
    chat_template_kwargs: TemplateKwargs = Field({}, description="what else the chat template reads")
