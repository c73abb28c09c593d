"""The bodies of ``/api/chat`` and ``/api/generate``: Ollama's interface, every field with its kind and default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dllm.common.coerce import is_text
from dllm.serve.dialect import refuse_snapshots
from dllm.serve.fields import MAX_LIKELIEST, SALT, Diffusion, Salt
from dllm.serve.messages import ONLY_TEXT, few_entries
from dllm.serve.neutral import NEUTRAL, is_one_of, not_served
from dllm.serve.typed import AnyText, BodyObject, must, wrong

# Values that Ollama's clients send for what it does itself unless told otherwise; they ask for nothing.
USUAL: dict[str, tuple[Any, ...]] = {"repeat_penalty": (1.1,), "typical_p": (0.7,)}
NEUTRAL_OPTIONS = (
    "repeat_penalty", "presence_penalty", "frequency_penalty", "min_p", "typical_p", "tfs_z", "mirostat",
)  # fmt: skip
_EMPTY = {
    "images": ONLY_TEXT, "template": "the chat template is the checkpoint's; raw=true uses none. Drop it",
    "context": "nothing is stored. Send the messages before to /api/chat",
}  # fmt: skip


class OllamaOptions(BodyObject):
    """How an answer is decoded."""

    num_predict: Any = Field(None, description="the answer's longest length in tokens; -1, -2: what the model leaves")
    temperature: Any = Field(None, description="0: the argmax; left out: the server's")
    top_p: Any = Field(None, description="the least mass of likeliest tokens that is drawn from")
    top_k: Any = Field(None, description="how many of the likeliest tokens are drawn from")
    seed: Any = Field(None, description="left out: drawn where it matters")
    stop: Any = Field(None, description="texts; the answer ends before the first")
    diffusion: Any = Field(None, description="what servers of autoregressive models lack")
    num_ctx: Any = Field(None, description="without effect: the model's limit holds")
    num_keep: Any = Field(None, description="without effect")
    num_batch: Any = Field(None, description="without effect")
    num_gpu: Any = Field(None, description="without effect")
    main_gpu: Any = Field(None, description="without effect")
    num_thread: Any = Field(None, description="without effect")
    numa: Any = Field(None, description="without effect")
    low_vram: Any = Field(None, description="without effect")
    use_mmap: Any = Field(None, description="without effect")
    use_mlock: Any = Field(None, description="without effect")
    vocab_only: Any = Field(None, description="without effect")
    f16_kv: Any = Field(None, description="without effect")
    logits_all: Any = Field(None, description="without effect")
    embedding_only: Any = Field(None, description="without effect")
    penalize_newline: Any = Field(None, description="without effect")
    repeat_last_n: Any = Field(None, description="without effect")
    mirostat_tau: Any = Field(None, description="without effect")
    mirostat_eta: Any = Field(None, description="without effect")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without what asks for nothing."""
        for name in NEUTRAL_OPTIONS:
            entry = value.get(name)
            asks = entry is not None and not is_one_of(entry, USUAL.get(name, ()))
            if asks and (rule := not_served(name, entry, True)) is not None:
                raise wrong(rule, name, entry)
        return {name: entry for name, entry in value.items() if name not in NEUTRAL_OPTIONS}


def _without_empty(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields without those that hold nothing. Raises PydanticCustomError for such that hold something."""
    for name, why in _EMPTY.items():
        if value.get(name) is not None and not is_one_of(value[name], NEUTRAL[name]):
            raise wrong(f"is not served: {why}.", name)
    return {name: entry for name, entry in value.items() if name not in _EMPTY}


class OllamaFunction(BodyObject):
    """The function of a call that an assistant made."""

    name: str = Field(description="of the function")
    arguments: dict[str, Any] = Field({}, description="what it was called with")
    description: Any = Field(None, description="without effect")
    index: Any = Field(None, description="without effect")


class OllamaCall(BodyObject):
    """A call that an assistant made."""

    function: OllamaFunction = Field(description="name and arguments")
    id: str | None = Field(None, description="by which its result may name it")
    type: Any = Field(None, description="without effect")


class OllamaMessage(BodyObject):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"] = Field(description="who speaks")
    content: str = Field("", description="what is said")
    thinking: str | None = Field(None, description="what the assistant thought")
    tool_calls: list[OllamaCall] = Field([], description="calls that the assistant made")
    tool_name: str | None = Field(None, description="of a result: the function that gave it")
    name: str | None = Field(None, description="the same, the older name")
    tool_call_id: str | None = Field(None, description="of a result: the id of its call, where it has one")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        return _without_empty(value)


class OllamaBody(BodyObject):
    """What chat and generate have in common."""

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
    logprobs: Any = Field(None, description="log-probabilities of the answer's tokens are told")
    top_logprobs: int = Field(0, ge=0, le=MAX_LIKELIEST, description="likeliest tokens told of each position")
    diffusion: Diffusion | None = Field(None, description="what servers of autoregressive models lack")
    return_token_ids: bool = Field(False, description="as in chat")
    cache_salt: Salt | None = Field(None, description=SALT)
    keep_alive: Any = Field(None, description="without effect: the model stays")
    truncate: Any = Field(None, description="without effect: a prompt is never cut")
    shift: Any = Field(None, description="without effect: a prompt is never cut")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        refuse_snapshots(value)
        return _without_empty(value)


class OllamaChatBody(OllamaBody):
    """A conversation to be answered, in the form of Ollama's."""

    messages: Annotated[list[OllamaMessage], BeforeValidator(few_entries)] = Field(
        [], description="what is to be answered; none: the model is there"
    )
    tools: Any = Field(None, description="functions that the answer may call, as chat has them")
    tool_choice: Any = Field(None, description="as in chat")


class OllamaGenerateBody(OllamaBody):
    """A prompt to be answered, continued or filled in, in the form of Ollama's."""

    prompt: str = Field("", description="what is to be answered; none: the model is there")
    suffix: str = Field("", description="what follows the answer, which then fills the gap; no chat template is used")
    system: str = Field("", description="a message of the system before the prompt")
    raw: bool = Field(False, description="the prompt is continued, without a chat template")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("raw") is True and is_text(value.get("system")) and value["system"]:
            raise wrong("goes into a chat template, and raw=true uses none. Drop one.", "system")
        return super().given(value)
