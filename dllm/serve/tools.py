"""Function calling: ``tools`` and ``tool_choice`` of a request, and the calls in its answer.

A call that must be made is a JSON schema, under which the answer is decoded: of one function its parameters, of several
an object with name and arguments. Where the model decides (``auto``), it writes a call between the marks that its chat
template shows, and what stands there is read (Qwen's and Hermes' form, ``<tool_call>{"name": ..., "arguments":
...}</tool_call>``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm.common.coerce import coerce
from dllm.errors import nearest
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.fields import object_of

BEGIN, END = "<tool_call>", "</tool_call>"
MODES = ("none", "auto", "required")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_TOOLS = 128  # tools of a request, as OpenAI has it
DATA = ("const", "enum", "default", "examples")  # keywords of a schema that hold data, not schemas
NOT_SEEN = (
    "The chat template of this model has no place for tools: the model did not see their descriptions, and only the "
    "form of the call is sure. Describe the function in a message."
)


@dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str  # of the function
    parameters: Mapping[str, Any] | bool  # the JSON schema of its arguments
    strict: bool  # an unknown keyword of the schema is refused
    place: str  # where it stands in the request


@dataclass(frozen=True)
class ToolCall:
    """A call of a function."""

    name: str  # of the function
    arguments: str  # JSON


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, of which a call is made, or may be."""

    tools: tuple[Tool, ...]  # those that may be called
    forced: bool  # a call must be made; else the model decides
    named: bool = False  # the request names the function

    @property
    def single(self) -> Tool | None:
        """The only function that can be called, whose arguments are the whole text of an answer."""
        return self.tools[0] if self.forced and len(self.tools) == 1 else None

    @property
    def schema(self) -> Mapping[str, Any] | bool:
        """Of the text of an answer that must be a call."""
        if self.single is not None:
            return self.single.parameters
        return {"anyOf": [_call_schema(tool, f"#/anyOf/{at}") for at, tool in enumerate(self.tools)]}

    @property
    def field(self) -> str:
        """What the request calls that schema."""
        return f"{self.tools[0].place}.parameters" if len(self.tools) == 1 else "tools"

    def read(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text beside calls, and the calls, of a whole answer. Between the marks, what is no call of these tools
        stays text."""
        if self.single is not None:
            return "", [ToolCall(self.single.name, text.strip())]
        if self.forced:
            return "", [_call_in(text, self.tools) or ToolCall(self.tools[0].name, text)]
        pieces = re.split(f"({BEGIN}.*?(?:{END}|$))", text, flags=re.DOTALL)
        calls = [_call_in(piece.removeprefix(BEGIN).removesuffix(END), self.tools) for piece in pieces[1::2]]
        if not calls or None in calls:
            return text, []
        return "".join(pieces[::2]).rstrip(), [call for call in calls if call is not None]


def parse_tools(fields: Mapping[str, Any], reads: bool, marked: bool) -> ToolUse | None:
    """What a request says of tools; None: nothing, or that none is to be called. reads: the chat template reads
    ``tools``. marked: it shows how a call is written. Raises ApiError."""
    tools = _sound_tools(fields.get("tools", []))
    mode = fields.get("tool_choice", "auto" if tools else "none")
    if isinstance(mode, Mapping):
        return ToolUse((_named(mode, tools),), forced=True, named=True)
    if not isinstance(mode, str) or mode not in MODES:
        rule = f'must be one of {", ".join(MODES)}, or {{"type": "function", "function": {{"name": NAME}}}}'
        raise ApiError(400, f"tool_choice={mode!r} {rule}.{nearest(str(mode), MODES)}", "tool_choice")
    if not tools or mode == "none":
        if mode == "required":
            raise ApiError(400, "tool_choice='required' needs tools to choose from. Send tools, too.", "tool_choice")
        return None
    if mode == "auto" and not (reads and marked):
        why = "does not say how a call is written" if reads else "has no place for tools"
        ways = 'Name a function, or write "required" (a call is then forced) or "none"'
        sentence = f"tool_choice='auto' leaves it to the model, and its chat template {why}. {ways}."
        raise ApiError(400, sentence, "tool_choice")
    return ToolUse(tools, forced=mode == "required")


def _sound_tools(value: Any) -> tuple[Tool, ...]:
    if not isinstance(value, list) or len(value) > MOST_TOOLS:
        raise ApiError(400, f"tools must be a list of at most {MOST_TOOLS} functions.", "tools")
    tools = tuple(_tool(f"tools[{number}]", entry) for number, entry in enumerate(value))
    names = [tool.name for tool in tools]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ApiError(400, f"tools[{number}].function.name={name!r} stands there twice. Rename one.", "tools")
    return tools


def _tool(name: str, value: Any) -> Tool:
    fields = object_of(name, value, ("type", "function"))
    if fields.get("type") != "function" or not isinstance(fields.get("function"), Mapping):
        shape = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
        raise ApiError(400, f"{name} of type {fields.get('type')!r} must be {shape}.", name)
    name = f"{name}.function"
    found = object_of(name, fields["function"], ("name", "description", "parameters", "strict"))
    with as_refusal(name):
        for key, kind in (("name", "str"), ("description", "str"), ("strict", "bool")):
            if key in found:
                found[key] = coerce(f"{name}.{key}", found[key], kind)
    if not NAME.fullmatch(found.get("name", "")):
        rule = "must be 1 to 64 letters, digits, dots, dashes and underscores"
        raise ApiError(400, f"{name}.name={found.get('name')!r} {rule}.", f"{name}.name")
    parameters = found.get("parameters", {"type": "object", "properties": {}})
    if not isinstance(parameters, Mapping):
        raise ApiError(400, f"{name}.parameters={parameters!r} must be a JSON schema: an object.", f"{name}.parameters")
    return Tool(found["name"], parameters, found.get("strict", False), name)


def _named(mode: Mapping[str, Any], tools: Sequence[Tool]) -> Tool:
    fields = object_of("tool_choice", mode, ("type", "function"))
    function = object_of("tool_choice.function", fields.get("function", {}), ("name",))
    name, known = function.get("name"), [tool.name for tool in tools]
    if fields.get("type") != "function" or name not in known:
        hint = nearest(str(name), known)
        listed = f"it is one of {', '.join(known)}" if known else "there are no tools"
        raise ApiError(400, f"tool_choice names the function {name!r}, and {listed}.{hint}", "tool_choice")
    return tools[known.index(name)]


def _call_schema(tool: Tool, place: str) -> dict[str, Any]:
    """Of an object with the name of a tool and its arguments, which stands at ``place`` of a whole schema."""
    arguments = moved(tool.parameters, f"{place}/properties/arguments")
    properties = {"name": {"const": tool.name}, "arguments": arguments}
    return {"type": "object", "properties": properties, "required": ["name", "arguments"]}


def moved(schema: Any, place: str) -> Any:
    """A schema that is to stand at ``place`` of another: what it refers to in itself is found there."""
    if isinstance(schema, Mapping):
        return {
            key: f"#{place[1:]}{value[1:]}" if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else value if key in DATA else moved(value, place)
            for key, value in schema.items()
        }  # fmt: skip
    return [moved(entry, place) for entry in schema] if isinstance(schema, list) else schema


def _call_in(text: str, tools: Sequence[Tool]) -> ToolCall | None:
    """The call that a JSON text is; None: it is none of these tools'."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("name") not in [tool.name for tool in tools]:
        return None
    arguments = found.get("arguments", {})
    return ToolCall(
        found["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )
