"""The bodies of ``/api/chat`` and ``/api/generate``: Ollama's interface, every field with its kind and default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dllm.common.coerce import is_text
from dllm.serve.dialects.fields import (
    DIFFUSION,
    MAX_LIKELIEST,
    SALT,
    Salt,
    Seed,
    Stops,
    Temperature,
    TopK,
    TopP,
    WholeDiffusion,
)
from dllm.serve.dialects.messages import few_entries
from dllm.serve.dialects.other_fields import is_one_of, others_of
from dllm.serve.dialects.tools import CallableTools
from dllm.serve.http.typed import AnyText, BodyObject, must, wrong


class OllamaOptions(BodyObject):
    """How an answer is decoded."""

    others = others_of("options")
    num_predict: int | None = Field(
        None, description="the answer's longest length in tokens; -1, -2: what the model leaves"
    )
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    seed: Seed = None
    stop: Stops = Field([], description="texts; the answer ends before the first")
    diffusion: WholeDiffusion | None = Field(None, description=DIFFUSION)


class OllamaFunction(BodyObject):
    """The function of a call that an assistant made."""

    others = others_of("ollama_function")
    name: str = Field(description="of the function")
    arguments: dict[str, Any] = Field({}, description="what it was called with")


class OllamaCall(BodyObject):
    """A call that an assistant made."""

    others = others_of("ollama_call")
    function: OllamaFunction = Field(description="name and arguments")
    id: str | None = Field(None, description="by which its result may name it")


class OllamaMessage(BodyObject):
    """One message of a conversation."""

    others = others_of("ollama_message")
    role: Literal["system", "user", "assistant", "tool"] = Field(description="who speaks")
    content: str = Field("", description="the text")
    thinking: str | None = Field(None, description="what the assistant thought")
    tool_calls: list[OllamaCall] = Field([], description="calls that the assistant made")
    tool_name: str | None = Field(None, description="of a result: the function that gave it")
    name: str | None = Field(None, description="the same, the older name")
    tool_call_id: str | None = Field(None, description="of a result: the id of its call, where it has one")

    @model_validator(mode="after")
    def _by_role(self) -> OllamaMessage:
        for name in ("thinking", "tool_calls"):
            if self.role != "assistant" and getattr(self, name):
                raise wrong("goes with role assistant. Drop it.", name)
        return self


class OllamaBody(BodyObject):
    """What chat and generate have in common."""

    others = others_of("ollama")
    model: AnyText | None = Field(None, description="one of the served names, with :latest or without")
    stream: bool = Field(True, description="the reply comes line by line; left out, it does")
    format: Annotated[
        Any, must(lambda value: value in ("", "json") or isinstance(value, Mapping), '"json" or a JSON schema')
    ] = Field("", description="json, or a JSON schema: what the answer must be")
    options: OllamaOptions = Field(default_factory=OllamaOptions, description="how the answer is decoded")
    think: Annotated[
        bool | str | None,
        must(
            lambda value: is_one_of(value, (True, False, "low", "medium", "high")), "true, false, low, medium or high"
        ),
    ] = Field(None, description="whether, and how long, the model thinks before it answers")
    logprobs: Any = Field(None, description="return log-probabilities of the answer's tokens")
    top_logprobs: int = Field(0, ge=0, le=MAX_LIKELIEST, description="likeliest tokens told of each position")
    diffusion: WholeDiffusion | None = Field(None, description=DIFFUSION)
    return_token_ids: bool = Field(False, description="as in chat")
    cache_salt: Salt | None = Field(None, description=SALT)
    keep_alive: Any = Field(None, description="without effect: the model stays")


class OllamaChatBody(OllamaBody, CallableTools):
    """A conversation to be answered, in the form of Ollama's."""

    messages: Annotated[list[OllamaMessage], BeforeValidator(few_entries)] = Field(
        [], description="what is to be answered; none: the model is there"
    )


class OllamaGenerateBody(OllamaBody):
    """A prompt to be answered, continued or filled in, in the form of Ollama's."""

    prompt: str = Field("", description="what is to be answered; none: the model is there")
    suffix: str = Field("", description="what follows the answer, which then fills the gap; no chat template is used")
    system: str = Field("", description="a message of the system before the prompt")
    raw: bool = Field(False, description="the prompt is continued, without a chat template")

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("raw") is True and is_text(value.get("system")) and value["system"]:
            raise wrong("goes into a chat template, and raw=true uses none. Drop one.", "system")
        return value
