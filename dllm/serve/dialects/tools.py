"""Function calling: ``tools`` and ``tool_choice`` of a request, and the calls in its answer.

A call that must be made is a constraint (``dllm.constraints.kinds.FunctionCall``), under which the answer is decoded:
of one function its arguments, of several an object with name and arguments. Arguments are the text of one JSON object,
as it was decoded. Where the model decides (``auto``), it writes a call between the marks that its chat template shows,
and what is there is read (Qwen's and Hermes' form, ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from dllm.common.coerce import is_text
from dllm.common.errors import nearest
from dllm.common.json_text import as_object, end_of_value, members
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.typed import AnyText, BodyObject, must, wrong

BEGIN, END = "<tool_call>", "</tool_call>"
MODES = ("none", "auto", "required")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_TOOLS = 128  # tools of a request, as OpenAI has it
NOT_SEEN = (
    "The chat template of this model has no place for tools: the model did not see their descriptions, and only the "
    "form of the call is sure. Describe the function in a message."
)


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str  # of the function
    parameters: Mapping[str, Any]  # the JSON schema of its arguments
    strict: bool  # an unknown keyword of the schema is refused
    place: str  # where it is in the request
    schema: str  # the field of its schema


@dataclass(frozen=True)
class Tools:
    """What a request says of functions, in whatever form."""

    functions: tuple[Tool, ...] = ()  # that it describes
    template_tools: tuple[Any, ...] = ()  # the same as a chat template reads them
    mode: str | None = None  # none, auto or required; None: auto if there are any
    required_function: str | None = None  # its name; None: as ``mode`` says
    words: Mapping[str, str] = field(default_factory=lambda: {mode: json.dumps(mode) for mode in MODES})  # of the modes

    @property
    def must_call(self) -> bool:
        """Whether an answer must be a call."""
        return self.required_function is not None or self.mode == "required"


NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores"
SentName = Annotated[str, must(lambda value: is_text(value) and NAME.fullmatch(value), NAME_RULE)]
SentParameters = Annotated[dict[str, Any], must(lambda value: isinstance(value, Mapping), "a JSON schema: an object")]
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionSpec(BodyObject):
    """What a function is called, and the JSON schema of its arguments."""

    name: SentName = Field(description=f"of the function: {NAME_RULE}")
    description: AnyText | None = Field(None, description="what it does, for chat templates that show it")
    parameters: SentParameters = Field(NO_PARAMETERS, description="the JSON schema of its arguments")
    strict: bool = Field(False, description="an unknown keyword of the schema is refused")

    def tool(self, place: str) -> Tool:
        """The function, which is at a place of the request."""
        return Tool(self.name, self.parameters, self.strict, place, f"{place}.parameters")


class FunctionTool(BodyObject):
    """A function that an answer may call."""

    type: Literal["function"] = Field(description="its kind")
    function: FunctionSpec = Field(description="name, description, parameters")

    @property
    def name(self) -> str:
        return self.function.name


def distinct_names(field: str, rule: str = "is there twice. Rename one.") -> AfterValidator:
    """The check of a list of tools, or of questions, whose names, if they have some, are in a field of each."""

    def check(entries: list[Any]) -> list[Any]:
        names = [entry.name for entry in entries]
        for number, name in enumerate(names):
            if name and name in names[:number]:
                raise wrong(rule, f"[{number}].{field}", name)
        return entries

    return AfterValidator(check)


few_tools = must(
    lambda value: isinstance(value, list) and len(value) <= MOST_TOOLS,
    f"a list of at most {MOST_TOOLS} functions",
    False,
)
ToolList = Annotated[list[FunctionTool], distinct_names("function.name"), few_tools]


class FunctionName(BodyObject):
    """A function by its name."""

    name: str = Field(description="of the function")


class NamedChoice(BodyObject):
    """The function that must be called."""

    type: Literal["function"] = Field(description="its kind")
    function: FunctionName = Field(description="by its name")


def tool_choice_of(shape: str) -> BeforeValidator:
    """The check of ``tool_choice``: a mode, or a function as a route writes it."""

    def check(value: Any) -> Any:
        if not (isinstance(value, Mapping) and value.get("type") == "function") and not (
            is_text(value) and value in MODES
        ):
            raise wrong(f"must be one of {', '.join(MODES)}, or {shape}.{nearest(str(value), MODES)}", value=value)
        return value

    return BeforeValidator(check)


NamedFunction = TypeVar("NamedFunction")
ModeOr = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")] | Annotated[NamedFunction, Tag("<named>")],
    Discriminator(lambda value: "<mode>" if isinstance(value, str) else "<named>"),
]
ToolChoice = Annotated[ModeOr[NamedChoice], tool_choice_of('{"type": "function", "function": {"name": NAME}}')]


class CallableTools(BodyObject):
    """The fields of a conversation that tell which functions its answer may call."""

    tools: ToolList = Field([], description="functions that the answer may call")
    tool_choice: ToolChoice | None = Field(
        None, description="none, auto, required, or a function by its name; auto needs a chat template that shows calls"
    )

    def requested_tools(self, raw: Mapping[str, Any]) -> Tools:
        """raw: the body as it was sent, which the chat template reads."""
        tools = tuple(tool.function.tool(f"tools[{number}].function") for number, tool in enumerate(self.tools))
        name = self.tool_choice.function.name if isinstance(self.tool_choice, NamedChoice) else None
        mode = self.tool_choice if isinstance(self.tool_choice, str) else None
        return Tools(tools, tuple(raw.get("tools") or ()), mode, name)


@dataclass(frozen=True)
class ToolCall:
    """A call of a function."""

    name: str  # of the function
    arguments: str  # the text of one JSON object


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, one of them called or callable."""

    tools: tuple[Tool, ...]  # those that may be called
    must_call: bool  # else the model decides
    is_named: bool = False  # the request names the function

    @property
    def single(self) -> Tool | None:
        """The only function that can be called, whose arguments are the whole text of an answer."""
        return self.tools[0] if self.must_call and len(self.tools) == 1 else None

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Of the constraint of an answer that must be a call."""
        return [{"name": tool.name, "parameters": tool.parameters, "strict": tool.strict} for tool in self.tools]

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text beside calls, and the calls, of a whole answer. What is no call of these tools stays text."""
        if self.single is not None:
            return "", [ToolCall(self.single.name, text.strip())]
        if self.must_call:
            call = _call_in(text, self.tools)
            assert call is not None, "the constraint allows nothing else"
            return "", [call]
        beside, calls, at = "", list[ToolCall](), 0
        while (begin := text.find(BEGIN, at)) >= 0:
            beside, begin = beside + text[at:begin], begin + len(BEGIN)
            end = end_of_value(text, begin)  # an argument may spell the mark
            call = _call_in(text[begin:end], self.tools)
            if call is None or not (end == len(text) or text.startswith(END, end)):
                return text, []
            calls.append(call)
            at = min(end + len(END), len(text))
        return (beside + text[at:]).rstrip() if calls else text, calls


def tool_use(request: Tools, reads: bool, shows_calls: bool) -> ToolUse | None:
    """What a request says of tools; None: nothing, or that none is to be called. reads: the chat template reads
    ``tools``. shows_calls: it shows how a call is written. Raises ApiError."""
    tools = request.functions
    if request.required_function is not None:
        return ToolUse((_tool_of_name(request.required_function, tools),), must_call=True, is_named=True)
    mode = request.mode or ("auto" if tools else "none")
    if not tools or mode == "none":
        if mode == "required":
            sentence = f"tool_choice={request.words[mode]} needs tools to choose from. Send tools, too."
            raise ApiError(400, sentence, "tool_choice")
        return None
    if mode == "auto" and not (reads and shows_calls):
        why = "does not say how a call is written" if reads else "has no place for tools"
        required, none = request.words["required"], request.words["none"]
        ways = f"Name a function, or write {required} (a call is then forced) or {none}"
        sentence = f"tool_choice={request.words[mode]} leaves it to the model, and its chat template {why}. {ways}."
        raise ApiError(400, sentence, "tool_choice")
    return ToolUse(tools, must_call=mode == "required")


def _tool_of_name(name: str, tools: Sequence[Tool]) -> Tool:
    names = [tool.name for tool in tools]
    if name not in names:
        offers = f"it is one of {', '.join(names)}" if names else "there are no tools"
        sentence = f"tool_choice names the function {name!r}, and {offers}.{nearest(name, names)}"
        raise ApiError(400, sentence, "tool_choice")
    return tools[names.index(name)]


def _call_in(text: str, tools: Sequence[Tool]) -> ToolCall | None:
    """The call that a JSON text is, its arguments as they are there; None: it is none of these tools'."""
    try:
        fields = members(text)
    except ValueError:
        return None
    names = {json.dumps(tool.name): tool.name for tool in tools}
    name, arguments = names.get(fields.get("name", "")), as_object(fields.get("arguments", ""))
    return None if name is None or arguments is None else ToolCall(name, arguments)
