"""The body of ``/v1/messages``: Anthropic's Messages, every field with its kind, range and default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from dllm.serve.dialect import refuse_snapshots
from dllm.serve.fields import MAX_BUDGET, MAX_SEED, MAX_TEMPERATURE, SALT, Diffusion, Salt, TemplateKwargs
from dllm.serve.messages import ONLY_TEXT, few_entries
from dllm.serve.response_formats import SentSchema
from dllm.serve.tools import few_tools
from dllm.serve.typed import TEXT_OR_LIST, AnyText, BodyObject, must, wrong

NO_SERVER_TOOLS = "no tool runs here. Offer functions of your own: name, description, input_schema"


class OfEveryBlock(BodyObject):
    """What every block of a content may have."""

    cache_control: Any = Field(None, description="without effect")


class TextBlock(OfEveryBlock):
    """A text."""

    type: Literal["text"] = Field(description="its kind")
    text: str = Field(description="what it says")
    citations: Any = Field(None, description="without effect")


class TextSource(BodyObject):
    """The text of a document."""

    type: Literal["text"] = Field(description="its kind: only texts are read")
    data: str = Field(description="the text")
    media_type: Any = Field(None, description="without effect")


class DocumentBlock(OfEveryBlock):
    """A document that is a text."""

    type: Literal["document"] = Field(description="its kind")
    source: TextSource = Field(description="what it holds")
    title: Any = Field(None, description="without effect")
    context: Any = Field(None, description="without effect")
    citations: Any = Field(None, description="without effect")

    @property
    def text(self) -> str:
        return self.source.data


class CallBlock(OfEveryBlock):
    """A call that the model made."""

    type: Literal["tool_use"] = Field(description="its kind")
    id: str = Field(description="by which its result names it")
    name: str = Field(description="of the function")
    input: dict[str, Any] = Field(description="its arguments")
    caller: Any = Field(None, description="without effect")
    toolset_name: Any = Field(None, description="without effect")


class ReferencePart(BodyObject):
    """The name of a tool that was found."""

    type: Literal["tool_reference"] = Field(description="its kind")
    tool_name: str = Field(description="of the tool")

    @property
    def text(self) -> str:
        return self.tool_name


def _of_kind(*kinds: str) -> tuple[Discriminator, BeforeValidator]:
    """Tells blocks apart by their type, and refuses other types."""

    def checked(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind not in kinds:
            raise wrong(f"is not served: it takes {', '.join(kinds)}; {ONLY_TEXT}.", "type", kind)
        return value

    return Discriminator(lambda value: f"<{value.get('type')}>"), BeforeValidator(checked)


ResultPart = Annotated[
    Annotated[TextBlock, Tag("<text>")] | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[ReferencePart, Tag("<tool_reference>")],
    *_of_kind("text", "document", "tool_reference"),
]  # fmt: skip
_TEXT_OR_BLOCKS = must(lambda value: isinstance(value, str | list), "a text, or a list of blocks", False)


class ResultBlock(OfEveryBlock):
    """What a call gave."""

    type: Literal["tool_result"] = Field(description="its kind")
    tool_use_id: str = Field(description="of the call")
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[list[ResultPart], Tag("<list>")], TEXT_OR_LIST, _TEXT_OR_BLOCKS
    ] = Field("", description="a text, or a list of blocks")
    is_error: bool = Field(False, description="the call failed: its text begins with Error")

    @property
    def text(self) -> str:
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return f"Error: {text}" if self.is_error else text


class ThoughtBlock(OfEveryBlock):
    """What the model thought."""

    type: Literal["thinking"] = Field(description="its kind")
    thinking: str = Field(description="the thought")
    signature: Any = Field(None, description="without effect")


class HiddenThoughtBlock(OfEveryBlock):
    """What another server's model thought, encrypted: it says nothing here."""

    type: Literal["redacted_thinking"] = Field(description="its kind")
    data: Any = Field(None, description="without effect")


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")] | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[CallBlock, Tag("<tool_use>")] | Annotated[ResultBlock, Tag("<tool_result>")]
    | Annotated[ThoughtBlock, Tag("<thinking>")] | Annotated[HiddenThoughtBlock, Tag("<redacted_thinking>")],
    *_of_kind("text", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"),
]  # fmt: skip
_Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[Block], Tag("<list>")], TEXT_OR_LIST, _TEXT_OR_BLOCKS
]


class TurnMessage(BodyObject):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"] = Field(description="who speaks")
    content: _Content = Field(description="a text, or a list of blocks")


class InputTool(OfEveryBlock):
    """A function that an answer may call."""

    type: Literal["custom"] = Field("custom", description="its kind")
    name: str = Field(description="of the function")
    description: AnyText | None = Field(None, description="what it does")
    input_schema: dict[str, Any] = Field(
        {"type": "object", "properties": {}}, description="the JSON schema of its arguments"
    )
    strict: bool = Field(False, description="an unknown keyword of the schema is refused")
    input_examples: Any = Field(None, description="without effect")
    eager_input_streaming: Any = Field(None, description="without effect")
    defer_loading: Any = Field(None, description="without effect")
    allowed_callers: Any = Field(None, description="without effect")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("type") not in (None, "custom"):
            raise wrong(f"is not served: {NO_SERVER_TOOLS}.", "type", value["type"])
        return value


class InputChoice(BodyObject):
    """Which function must be called."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="auto: the model decides; any: one of them; tool: the named one"
    )
    name: str | None = Field(None, description="of the function")
    disable_parallel_tool_use: Any = Field(None, description="without effect: a forced answer makes one call")


class ThinkingSpec(BodyObject):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "adaptive", "disabled"] = Field(description="switches a thought where the template can")
    budget_tokens: int | None = Field(None, ge=0, le=MAX_BUDGET, description="tokens after which the thought ends")
    display: Any = Field(None, description="without effect")


class OutputForm(BodyObject):
    """JSON that validates under a schema."""

    type: Literal["json_schema"] = Field(description="its kind")
    schema_: SentSchema = Field(alias="schema", description="the schema")


class OutputSpec(BodyObject):
    """What an answer must be."""

    effort: Any = Field(None, description="without effect")
    format: OutputForm | None = Field(None, description="its form")
    task_budget: Any = Field(None, description="without effect")


class MessagesBody(BodyObject):
    """A conversation to be answered, in the form of Anthropic's Messages."""

    not_served = {"container": f"{NO_SERVER_TOOLS}", "mcp_servers": f"{NO_SERVER_TOOLS}"}
    model: AnyText | None = Field(None, description="one of the served names; left out: the server's model")
    max_tokens: int | None = Field(
        None, ge=1, description="the answer's longest length in tokens; it has fewer where the model leaves fewer"
    )
    messages: Annotated[
        list[TurnMessage],
        BeforeValidator(few_entries),
        must(
            lambda value: isinstance(value, list) and value,
            'a list of {"role": ..., "content": ...}, and not empty',
            False,
        ),
    ] = Field(description="what is to be answered; a last one of the assistant is how the answer begins")
    system: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[list[TextBlock], Tag("<list>")], TEXT_OR_LIST, _TEXT_OR_BLOCKS
    ] = Field("", description="a message of the system before all others")
    stop_sequences: list[str] = Field([], description="texts; the answer ends before the first")
    stream: bool = Field(False, description="the reply comes as server-sent events")
    temperature: float | None = Field(
        None, ge=0, le=MAX_TEMPERATURE, description="0: the argmax; left out: the server's"
    )
    top_p: float | None = Field(None, gt=0, le=1, description="the least mass of likeliest tokens that is drawn from")
    top_k: int | None = Field(None, ge=1, description="how many of the likeliest tokens are drawn from")
    tools: Annotated[list[InputTool], few_tools] = Field([], description="functions that the answer may call")
    tool_choice: InputChoice | None = Field(None, description="which of them must be called")
    thinking: ThinkingSpec | None = Field(None, description="whether the model thinks before it answers")
    output_config: OutputSpec = Field(default_factory=OutputSpec, description="what the answer must be")
    output_format: OutputForm | None = Field(None, description="the same, the older name")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="as in chat")
    min_tokens: int | None = Field(None, description="as in chat")
    ignore_eos: bool | None = Field(None, description="as in chat")
    return_token_ids: bool = Field(False, description="as in chat")
    diffusion: Diffusion = Field(default_factory=Diffusion, description="what servers of autoregressive models lack")
    chat_template_kwargs: TemplateKwargs = Field({}, description="what else the chat template reads")
    cache_salt: Salt | None = Field(None, description=SALT)
    metadata: Any = Field(None, description="without effect")
    service_tier: Any = Field(None, description="without effect")
    cache_control: Any = Field(None, description="without effect")
    context_management: Any = Field(None, description="without effect")
    inference_geo: Any = Field(None, description="without effect")
    speed: Any = Field(None, description="without effect")
    user_profile_id: Any = Field(None, description="without effect")
    diagnostics: Any = Field(None, description="without effect")
    betas: Any = Field(None, description="without effect")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        refuse_snapshots(value)
        return {name: one for name, one in value.items() if name != "mcp_servers" or one != []}
