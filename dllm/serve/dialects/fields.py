"""The bodies of ``/v1/chat/completions`` and ``/v1/completions``, and what those of other forms share with them: every
field with its kind, range and default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, WithJsonSchema

from dllm.common.coerce import is_text, is_whole
from dllm.common.errors import Set
from dllm.common.hints import as_advice, meaning
from dllm.contract.refusal import CHAT_WORDS
from dllm.models.text.chat_template import RESERVED_FIELDS
from dllm.serve.dialects.messages import SentConversation
from dllm.serve.dialects.other_fields import others_of
from dllm.serve.dialects.response_formats import ResponseFormat, SentSchema, StructuredOutputs, TextOptions
from dllm.serve.dialects.tools import CallableTools
from dllm.serve.http.typed import AnyText, BodyObject, must, names_near, names_of, slip_of, wrong

FIELD_EXAMPLES = {"messages": '"messages": [{"role": "user", "content": TEXT}]', "prompt": '"prompt": TEXT'}
CHAT_ONLY = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs")
MAX_LIKELIEST = 20  # tokens that log-probabilities tell of a position
MAX_STOPS, MAX_STOP = 16, 256  # how many, and characters of each
MAX_METADATA = 16
MAX_TEMPERATURE = 100
MAX_SEED = 2**62 - 1025  # those of further choices follow
MAX_BUDGET = 2**31 - 1  # tokens of a thought
MAX_PIECES = 1024  # texts and holes of a canvas
# A whole number whose bounds are the server's own, which ``dllm.serve.dialects.wire`` holds to.
POSITIVE: dict[str, JsonValue] = {"minimum": 1}
PART = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"name": {"type": "string"}}}]}
PROMPT_SHAPE = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer", "array"]}}]}


def _is_metadata(value: Any) -> bool:
    entries = value.values() if isinstance(value, Mapping) else [0]
    return all(entry is None or is_text(entry) for entry in entries) and len(entries) <= MAX_METADATA


def as_stops(value: Any) -> list[str]:
    """The strings that end an answer, as a list. Their number is checked before any of them is read."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise wrong("must be a text or a list of texts.", value=value)
    lengths = [len(text) if isinstance(text, str) else -1 for text in texts[: MAX_STOPS + 1]]
    if -1 in lengths:
        raise wrong("must be a text or a list of texts.", value=value)
    if len(texts) > MAX_STOPS or not all(0 < length <= MAX_STOP for length in lengths):
        excess = next(
            (f"one of {size} characters" for size in lengths if not 0 < size <= MAX_STOP), f"{len(texts)} texts"
        )
        raise wrong(f"has {excess}, and takes at most {MAX_STOPS} texts of 1 to {MAX_STOP} characters.")
    return texts


def _is_canvas(value: Any) -> bool:
    pieces = value if isinstance(value, list) else []
    return 0 < len(pieces) <= MAX_PIECES and all(
        piece is None or is_text(piece) or (is_whole(piece) and piece > 0) for piece in pieces
    )


def _instead(name: str, value: Any, names: tuple[str, ...]) -> str:
    """The end of a sentence about an unknown field: what says it here, or the nearest field; empty: no one knows."""
    meaning_here = meaning(name, value, lambda _: False, CHAT_WORDS)
    if name in FIELD_EXAMPLES or (isinstance(meaning_here, Set) and meaning_here.name == "prompt"):
        return f": write {next(text for field, text in FIELD_EXAMPLES.items() if field in names)}." if names else ""
    if meaning_here is not None:
        return f": {as_advice(meaning_here, CHAT_WORDS)}."
    if name in CHAT_ONLY and name not in names:
        return ": it goes with /v1/chat/completions."
    if name in names_of(Diffusion) and name not in names:
        return f": write {json.dumps({'diffusion': {name: value}}, default=str)[1:-1]}."
    slip = slip_of(name, names)
    return f".{slip}" if slip else ""


Temperature = Annotated[
    float | None, Field(ge=0, le=MAX_TEMPERATURE, description="0: the argmax; left out: the server's")
]
TopP = Annotated[float | None, Field(gt=0, le=1, description="the least mass of likeliest tokens that is drawn from")]
TopK = Annotated[int | None, Field(ge=1, description="how many of the likeliest tokens are drawn from")]
Seed = Annotated[
    int | None, Field(ge=0, le=MAX_SEED, description="of the first answer; left out: drawn where it matters")
]
Stops = Annotated[str | list[str], BeforeValidator(as_stops)]
Salt = Annotated[str, must(lambda value: is_text(value) and value, "a text that is not empty", False)]
DIFFUSION = "what servers of autoregressive models lack"
SALT = "not empty: prompts are shared with requests of the same salt alone (task.prefix_sharing)"


class StreamOptions(BodyObject):
    """What a stream tells beside its text."""

    others = others_of("stream_options")
    include_usage: bool = Field(False, description="a last chunk tells the usage")
    continuous_usage_stats: bool = Field(False, description="each chunk tells the usage so far, as vLLM's does")


class ConstraintOptions(BodyObject):
    """How a form is meant; each option goes with some forms (GET /v1/parts lists them)."""

    refuses_unknown = True
    confidence: Any = Field(None, description="model: of a proposal among all tokens; admissible: among those that fit")
    whitespace: Any = Field(None, description="of JSON: any, one (after , and :) or none")
    depth: Any = Field(None, description="how often what contains itself is entered in itself")
    additional: Any = Field(None, description="of a schema: members that it does not speak of may be added")
    words: Any = Field(None, description="of a grammar: two words in a row have something between them")


class Diffusion(BodyObject):
    """What servers of autoregressive models lack. GET /v1/parts lists the parts and their options."""

    refuses_unknown = True
    sampler: Annotated[Any, WithJsonSchema(PART)] = Field(None, description="which positions a forward commits")
    blocks: Annotated[Any, WithJsonSchema(PART)] = Field(None, description="which positions are open")
    cache: Annotated[Any, WithJsonSchema(PART)] = Field(None, description="which columns a forward computes")
    eos: Annotated[Any, WithJsonSchema(PART)] = Field(None, description="what follows an end of text")
    threshold: Annotated[Any, WithJsonSchema({"type": "number"})] = Field(None, description="short for the sampler's")
    steps: Annotated[Any, WithJsonSchema({"type": "integer"})] = Field(None, description="short for the sampler's")
    block_length: Annotated[Any, WithJsonSchema({"type": "integer"})] = Field(
        None, description="short for the block schedule's"
    )
    guidance: float | None = Field(
        None, json_schema_extra={"minimum": 0}, description="classifier-free guidance, which doubles the rows"
    )
    guidance_against: Literal["prompt", "doubted"] | None = Field(
        None, description="what guidance is against: a canvas without the prompt, or without doubted tokens"
    )
    guidance_ratio: float | None = Field(
        None, json_schema_extra={"minimum": 0, "maximum": 1}, description="doubted: share of the decided positions"
    )
    eos_last: bool | None = Field(None, description="ends of text are committed after all other tokens")
    canvas: Annotated[
        list[str | int | None] | None,
        must(
            _is_canvas,
            f"a list of at most {MAX_PIECES} texts and numbers of masks, such as ['The ', 4, ' sat.']",
            False,
        ),
    ] = Field(None, description="the answer as texts and numbers of masks; null: a hole that length=cal sizes")
    constraint: ConstraintOptions = Field(
        default_factory=ConstraintOptions, description="how the form of the answer is meant"
    )
    snapshots: bool = Field(False, description="the canvas after every turn, in a stream")
    trace: bool = Field(False, description="the reply holds a trace file, for the viewer and task=replay")
    replay: bool = Field(
        False, description="a choice holds token_ids and meta_info: whole blocks and the forward of each id, for DARE"
    )

    @classmethod
    def instead(cls, name: str, value: Any) -> str:
        return _instead(name, value, names_of(cls))


def _whole(diffusion: Diffusion) -> Diffusion:
    if diffusion.snapshots:
        raise wrong("is served by /v1/chat/completions. Drop it.", "snapshots")
    return diffusion


# Of forms whose streams have no place for the canvas of each turn.
WholeDiffusion = Annotated[Diffusion, AfterValidator(_whole)]
TemplateKwargs = Annotated[
    dict[str, Any],
    must(
        lambda value: isinstance(value, Mapping) and set(value).isdisjoint(RESERVED_FIELDS),
        f"an object of what the chat template reads, and none of {', '.join(RESERVED_FIELDS)}",
    ),
]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Reasoning(BodyObject):
    """How long a thought before an answer may be, as OpenAI's Responses and OpenRouter say it."""

    others = others_of("reasoning")
    effort: Effort | None = Field(None, description="a share of the answer's tokens")
    max_tokens: int | None = Field(None, ge=0, description="the same in tokens (OpenRouter)")
    enabled: bool | None = Field(None, description="false: no thought (OpenRouter)")


class Common(BodyObject):
    """What the bodies of OpenAI's and Anthropic's forms have in common."""

    model: AnyText | None = Field(None, description="one of the served names; left out: the server's model")
    min_tokens: int = Field(
        0, json_schema_extra={"minimum": 0}, description="first tokens in which nothing ends the answer"
    )
    ignore_eos: bool = Field(False, description="no end of text at all: the answer has its longest length")
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    seed: Seed = None
    stream: bool = Field(False, description="the reply comes as server-sent events")
    return_token_ids: bool = Field(
        False, description="return the ids of prompt and answer, and under diffusion the forward of each (vLLM)"
    )
    diffusion: Diffusion = Field(default_factory=Diffusion, description=DIFFUSION)
    cache_salt: Salt | None = Field(None, description=SALT)


class OpenAIBody(Common):
    """What OpenAI's forms have in common."""

    stop: Stops = Field(
        [], description=f"up to {MAX_STOPS} texts of {MAX_STOP} characters; the answer ends before the first"
    )
    stream_options: StreamOptions = Field(
        default_factory=StreamOptions, description="what a stream tells beside its text"
    )
    thinking_token_budget: int | None = Field(
        None, ge=-1, le=MAX_BUDGET, description="tokens after which the thought before an answer ends; -1: no limit"
    )
    reasoning_effort: Effort | None = Field(None, description="the same as a share of the answer's tokens")
    reasoning: Reasoning = Field(default_factory=Reasoning, description="the same as other servers say it")
    structured_outputs: StructuredOutputs | None = Field(None, description="what the answer must be, in vLLM's words")
    guided_json: SentSchema | None = Field(None, description="a JSON schema (vLLM)")
    json_schema: SentSchema | None = Field(None, description="a JSON schema (llama.cpp)")
    guided_regex: str | None = Field(None, description="a pattern of Python's re (vLLM)")
    guided_grammar: str | None = Field(None, description="a grammar in Lark's syntax (vLLM)")
    guided_choice: TextOptions | None = Field(None, description="one of these texts (vLLM)")
    user: AnyText | None = Field(None, description="without effect")
    metadata: Annotated[dict[str, Any], must(_is_metadata, f"an object of at most {MAX_METADATA} texts", False)] = (
        Field({}, description="without effect")
    )

    @classmethod
    def instead(cls, name: str, value: Any) -> str:
        return _instead(name, value, names_near(cls))


class ChoicesBody(OpenAIBody):
    """What chat and completions have in common."""

    max_tokens: int | None = Field(
        None, json_schema_extra=POSITIVE, description="masks after the prompt: the answer's longest length in tokens"
    )
    max_completion_tokens: int | None = Field(
        None, json_schema_extra=POSITIVE, description="the same, OpenAI's newer name"
    )
    n: int = Field(1, json_schema_extra=POSITIVE, description="answers to each prompt; their seeds follow each other")
    logprobs: bool | int = Field(False, description="return log-probabilities of the answer's tokens")
    top_logprobs: int = Field(
        0, ge=0, le=MAX_LIKELIEST, description="with logprobs: likeliest tokens told of each position"
    )
    response_format: ResponseFormat | None = Field(None, description="what the answer must be")


class ChatBody(ChoicesBody, CallableTools):
    """A conversation to be answered, in the chat template of the checkpoint."""

    others = others_of("chat")
    messages: SentConversation = Field(
        description="what is to be answered: a list of messages, each with a role and a content"
    )
    logprobs: bool = Field(
        False, description="log-probabilities of the answer's tokens, in the forward that committed each"
    )
    chat_template_kwargs: TemplateKwargs = Field({}, description="what else the chat template reads")


class CompletionBody(ChoicesBody):
    """A prompt to be continued, or a canvas to be filled in, without a chat template."""

    others = others_of("completions")
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SHAPE)] = Field(
        None, description="a text, token ids, or a list of such; left out only where diffusion.canvas holds given text"
    )
    logprobs: Annotated[
        bool | int,
        must(
            lambda value: isinstance(value, bool) or (is_whole(value) and 0 <= value <= MAX_LIKELIEST),
            f"a number from 0 to {MAX_LIKELIEST}, true or false",
        ),
    ] = Field(False, description="the same; a number asks for that many of the likeliest tokens, too")
