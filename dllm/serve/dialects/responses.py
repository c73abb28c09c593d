"""OpenAI's Responses: what a body asks for.

Text, streams, JSON schemas and functions. Nothing is stored, so there is nothing to go on with by an id: send the turns
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dllm.common.hints import as_advice, meaning
from dllm.contract.refusal import CHAT_WORDS
from dllm.serve.dialects.answer_request import AnswerRequest
from dllm.serve.dialects.chat_request import openai_fields
from dllm.serve.dialects.fields import DIFFUSION, POSITIVE, Diffusion, OpenAIBody, TemplateKwargs, WholeDiffusion
from dllm.serve.dialects.messages import check_order
from dllm.serve.dialects.other_fields import is_one_of, others_of
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.response_events import ResponseWriter
from dllm.serve.dialects.response_formats import (
    IS_TYPED,
    AnswerForm,
    ChoiceForm,
    GrammarForm,
    NamedSchema,
    ObjectForm,
    RegexForm,
    TextForm,
)
from dllm.serve.dialects.response_input import FlatChoice, FlatToolChoice, FlatTools, Input, InputMessages
from dllm.serve.dialects.tools import Tools
from dllm.serve.dialects.wire import ParsedRequest, parsed_request
from dllm.serve.http.typed import AnyText, BodyObject, names_near, read_body, slip_of, wrong

RESPONSES_WORDS = CHAT_WORDS.but(
    {
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }
)
CHAT_LENGTHS = ("max_tokens", "max_completion_tokens")
# Of the request, in the reply.
REPEATED_FIELDS = ("instructions", "metadata", "parallel_tool_calls", "text", "tool_choice", "tools", "top_p", "user")
# What ``include`` may ask for: nothing of it exists here, so that nothing is left out.
NOTHING_TO_INCLUDE = (
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


def _check_include(value: Any) -> Any:
    if not isinstance(value, list):
        raise wrong("must be a list of texts.", value=value)
    for entry in value:
        if not is_one_of(entry, NOTHING_TO_INCLUDE):
            is_logprobs = entry == "message.output_text.logprobs"
            why = (
                "log-probabilities are returned by /v1/chat/completions" if is_logprobs else "nothing more is returned"
            )
            raise wrong(f"is not served: {why}. Drop it.", value=entry)
    return value


class FlatSchema(NamedSchema):
    """JSON that validates under a schema."""

    type: Literal["json_schema"] = Field(description="its kind")

    def answer_form(self, field: str) -> AnswerForm:
        return self.form(field, f"{field}.schema")


FlatForm = Annotated[
    TextForm | ObjectForm | FlatSchema | RegexForm | GrammarForm | ChoiceForm, Field(discriminator="type"), IS_TYPED
]


class TextSpec(BodyObject):
    """What the text of an answer must be."""

    others = others_of("response_text")
    format: FlatForm | None = Field(None, description="its form")


class ResponseBody(OpenAIBody):
    """A conversation to be answered, in the form of OpenAI's Responses."""

    others = others_of("responses")
    diffusion: WholeDiffusion = Field(default_factory=Diffusion, description=DIFFUSION)
    input: Input = Field(description="what is to be answered: a text, or messages, calls and their results")
    instructions: AnyText | None = Field(None, description="a message of the system before all others")
    max_output_tokens: int | None = Field(
        None, json_schema_extra=POSITIVE, description="masks after the prompt: the answer's longest length in tokens"
    )
    text: TextSpec = Field(default_factory=TextSpec, description="what the answer must be")
    tools: FlatTools = Field([], description="functions that the answer may call")
    tool_choice: FlatToolChoice | None = Field(None, description="none, auto, required, or a function by its name")
    include: Annotated[list[Any], BeforeValidator(_check_include)] = Field([], description="nothing more is returned")
    chat_template_kwargs: TemplateKwargs = Field({}, description="what else the chat template reads")

    @classmethod
    def instead(cls, name: str, value: Any) -> str:
        meaning_here = meaning(name, value, lambda _: False, RESPONSES_WORDS)
        slip = slip_of(name, (*names_near(cls), *CHAT_LENGTHS))
        if name in CHAT_LENGTHS or any(length in slip for length in CHAT_LENGTHS):
            return ": write max_output_tokens."
        if meaning_here is not None:
            return f": {as_advice(meaning_here, RESPONSES_WORDS)}."
        return f".{slip}" if slip else ""

    def requested_tools(self, raw: Mapping[str, Any]) -> Tools:
        """raw: the body as it was sent, which the chat template reads in chat's form."""
        templates = [
            {"type": "function", "function": {key: entry for key, entry in tool.items() if key != "type"}}
            for tool in raw.get("tools") or ()
        ]
        tools = tuple(tool.tool(f"tools[{number}]") for number, tool in enumerate(self.tools))
        choice = self.tool_choice
        if isinstance(choice, FlatChoice):
            return Tools(tools, tuple(templates), None, choice.name)
        return Tools(tools, tuple(templates), choice)


def parse_response(body: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """What a body asks for. Raises ApiError, with fields as Responses call them, for what cannot be served."""
    fields, unknown = read_body(ResponseBody, body, defaults.refuses_unknown)
    messages, tools = InputMessages.of(fields.instructions, fields.input), fields.requested_tools(body)
    check_order(messages)
    form = None if fields.text.format is None else fields.text.format.answer_form("text.format")
    shared = openai_fields(fields, form, tools.must_call)
    repeated_fields = {name: body[name] for name in REPEATED_FIELDS if body.get(name) is not None}
    return parsed_request(
        AnswerRequest(
            partial(ResponseWriter, request_fields=repeated_fields),
            RESPONSES_WORDS,
            messages=messages,
            tools=tools,
            length=fields.max_output_tokens,
            chat_template_kwargs=fields.chat_template_kwargs,
            unknown=unknown,
            **shared,
        ),
        defaults,
    )
