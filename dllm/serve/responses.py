"""OpenAI's Responses: a request of ``/v1/responses`` made one of chat.

Text, streams, JSON schemas and functions. Nothing is stored, so there is nothing to go on with by an id: send the turns
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dllm.common.hints import meaning
from dllm.serve.dialect import parse_as_chat, refuse_snapshots
from dllm.serve.fields import FROM_ONE, Sampled, TemplateKwargs
from dllm.serve.neutral import NEUTRAL, WITHOUT_EFFECT, is_one_of
from dllm.serve.request_parts import Defaults
from dllm.serve.response_formats import (
    TYPED,
    ChoiceForm,
    GrammarForm,
    NamedSchema,
    ObjectForm,
    RegexForm,
    SchemaForm,
    TextForm,
)
from dllm.serve.response_input import FlatToolChoice, FlatTools, Input, InputMessages
from dllm.serve.typed import AnyText, BodyObject, names_of, read_body, slip_of, wrong
from dllm.serve.wire import ParsedRequest

# What sentences of chat call fields, and what this request calls them.
CALLED = {
    "max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens", "messages": "input",
    "response_format.json_schema": "text.format", "response_format": "text.format",
}  # fmt: skip
CHAT_LENGTHS = ("max_tokens", "max_completion_tokens")
# Fields that the reply repeats as they were sent.
REPEATED = ("instructions", "metadata", "parallel_tool_calls", "text", "tool_choice", "tools", "top_p", "user")
# Fields of Responses alone: the values that ask for nothing here, and why another is not served.
NEUTRAL_VALUES: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((True, False), "nothing is stored"), "background": ((False,), "an answer comes in its own reply"),
    "parallel_tool_calls": ((True, False), "must be true or false"),
    "truncation": (("disabled", "auto"), "a prompt is never cut"),
    "top_logprobs": ((0,), "log-probabilities are told by /v1/chat/completions"),
    "previous_response_id": ((), "nothing is stored. Send the turns before in input"),
    "conversation": ((), "nothing is stored. Send the turns before in input"),
    "prompt": ((), "there are no stored prompts"), "max_tool_calls": ((), "no tool runs here: functions are yours"),
    "context_management": (([],), "a prompt is never cut"),
}  # fmt: skip
# What ``include`` may ask for: nothing of it exists here, so that nothing is left out.
NOTHING_TO_INCLUDE = (
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip


def _included(value: Any) -> Any:
    if not isinstance(value, list):
        raise wrong("must be a list of texts.", value=value)
    for asked in value:
        if not is_one_of(asked, NOTHING_TO_INCLUDE):
            told = asked == "message.output_text.logprobs"
            why = "log-probabilities are told by /v1/chat/completions" if told else "nothing more is told"
            raise wrong(f"is not served: {why}. Drop it.", value=asked)
    return value


class FlatSchema(NamedSchema):
    """JSON that validates under a schema."""

    type: Literal["json_schema"] = Field(description="its kind")


FlatForm = Annotated[
    TextForm | ObjectForm | FlatSchema | RegexForm | GrammarForm | ChoiceForm, Field(discriminator="type"), TYPED
]


class TextSpec(BodyObject):
    """What the text of an answer must be."""

    format: FlatForm | None = Field(None, description="its form")
    verbosity: Any = Field(None, description="must be medium")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("verbosity") not in (None, "medium"):
            raise wrong("must be medium: max_output_tokens says how long. Drop it.", "verbosity", value["verbosity"])
        return value


class ResponseBody(Sampled):
    """A conversation to be answered, in the form of OpenAI's Responses."""

    is_chat = True
    input: Input = Field(description="what is to be answered: a text, or messages, calls and their results")
    instructions: AnyText | None = Field(None, description="a message of the system before all others")
    max_output_tokens: int | None = Field(
        None, json_schema_extra=FROM_ONE, description="masks after the prompt: the answer's longest length in tokens"
    )
    text: TextSpec = Field(default_factory=TextSpec, description="what the answer must be")
    tools: FlatTools = Field([], description="functions that the answer may call")
    tool_choice: FlatToolChoice | None = Field(None, description="none, auto, required, or a function by its name")
    include: Annotated[list[Any], BeforeValidator(_included)] = Field([], description="nothing more is told")
    chat_template_kwargs: TemplateKwargs = Field({}, description="what else the chat template reads")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        for name, (allowed, why) in NEUTRAL_VALUES.items():
            if value.get(name) is not None and not is_one_of(value[name], allowed):
                raise wrong(f"is not served: {why}. Drop it.", name, value[name])
        refuse_snapshots(value)
        return super().given({name: entry for name, entry in value.items() if name not in NEUTRAL_VALUES})

    @classmethod
    def instead(cls, name: str, value: Any) -> str:
        known = (*names_of(cls), *NEUTRAL_VALUES, *NEUTRAL, *WITHOUT_EFFECT, *CHAT_LENGTHS)
        meant, slip = meaning(name, value, lambda _: False), slip_of(name, known)
        if name in CHAT_LENGTHS or any(length in slip for length in CHAT_LENGTHS):
            return ": write max_output_tokens."
        if meant is not None:
            return f": {meant.request().replace(CHAT_LENGTHS[0], 'max_output_tokens')}."
        return f".{slip}" if slip else ""


def parse_response(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Responses call them, for what cannot be served."""
    fields, unknown = read_body(ResponseBody, body, defaults.refuses_unknown)
    found = parse_as_chat(*_as_chat(fields, body), defaults)
    repeated = {name: body[name] for name in REPEATED if body.get(name) is not None}
    return replace(found, repeated=repeated, unknown=unknown)


def _as_chat(body: ResponseBody, raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The request of chat, and of its names, the longer first, this request's. Values that are models stay the same.
    raw: as it was sent, which the chat template reads of tools."""
    shared = body.model_fields_set.intersection((*Sampled.model_fields, "chat_template_kwargs"))
    chat = {name: getattr(body, name) for name in shared}
    talk = InputMessages.of(body.instructions, body.input)
    tools = [{"type": "function", "function": {key: entry for key, entry in tool.items() if key != "type"}}
             for tool in raw.get("tools") or ()]  # fmt: skip
    named = {"type": "function", "function": {"name": getattr(body.tool_choice, "name", None)}}
    more = {
        "messages": talk.messages, "tools": tools or None, "max_completion_tokens": body.max_output_tokens,
        "tool_choice": body.tool_choice if isinstance(body.tool_choice, str | None) else named,
        "response_format": _nested(body.text.format),
    }  # fmt: skip
    places = {f"tools[{at}].function": f"tools[{at}]" for at in range(len(tools))}
    return {**chat, **more}, {**talk.places, **places, **CALLED}


def _nested(form: Any) -> Any:
    """``response_format`` of chat, which holds a schema one level deeper."""
    if not isinstance(form, FlatSchema):
        return form
    held = NamedSchema(schema=form.schema_, strict=form.strict)
    return SchemaForm(type="json_schema", json_schema=held)
