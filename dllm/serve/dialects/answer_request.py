"""What a request asks for, in whatever form it came. The forms read it, and ``wire`` makes jobs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dllm.common.errors import Wording
from dllm.contract.refusal import CHAT_WORDS
from dllm.serve.dialects.fields import Common, Diffusion, Effort
from dllm.serve.dialects.messages import ChatMessage
from dllm.serve.dialects.response_formats import AnswerForm
from dllm.serve.dialects.tools import Tools


@dataclass(frozen=True)
class AnswerRequest:
    """What an answer is asked for, and how."""

    # of ident, parsed request and prompts: the ``Writer`` of the reply, in the form of the request
    writer: Callable[..., Any]
    words: Wording = CHAT_WORDS  # what the request calls settings, and fields of chat
    model: str | None = None  # None: the one that is served
    messages: tuple[ChatMessage, ...] | None = None  # None: a prompt
    prompt: Any = None  # a text, token ids, or several; not judged yet; None: the canvas is all there is
    begin: str = ""  # how the answer of a conversation begins
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # for the chat template
    tools: Tools = Tools()  # that may be called
    form: AnswerForm | None = None  # None: any text
    length: int | None = None  # tokens of the answer; None: the server's, or those of the canvas
    fits: bool = False  # the length is the most that the answer may have, and less is served
    min_tokens: int = 0  # before which no end of text is taken
    ignore_eos: bool = False  # the answer has its full length
    temperature: float | None = None  # None: the server's
    top_p: float | None = None  # None: the server's share of probability
    top_k: int | None = None  # None: the server's number of tokens
    seed: int | None = None  # None: drawn
    stop: tuple[str, ...] = ()  # texts that end the answer
    n: int | None = None  # choices; None: one
    logprobs: bool = False  # return the log-probabilities of the answer's tokens
    likeliest: int = 0  # return this many of the likeliest tokens of each position
    stream: bool = False  # events as they come
    include_usage: bool = False  # the stream ends with its usage
    usage_so_far: bool = False  # each chunk of the stream tells the usage so far
    return_token_ids: bool = False  # ids beside texts
    thought_tokens: int | None = None  # after which the thought before an answer ends; -1: no limit
    effort: Effort | None = None  # the same as a share of the answer's tokens
    diffusion: Diffusion = field(default_factory=Diffusion)  # parts and options of this server
    cache_salt: str | None = None  # shares prefixes among equal ones alone
    notes: tuple[str, ...] = ()  # sentences for the reader of the reply
    unknown: tuple[str, ...] = ()  # fields that the server does not know, and passed over

    @property
    def is_chat(self) -> bool:
        """Whether the chat template is used."""
        return self.messages is not None

    def calling(self, names: Mapping[str, str], settings: Mapping[str, str] | None = None) -> AnswerRequest:
        """The same, which calls fields of chat by other names."""
        return replace(
            self, words=self.words.but({self.words.name(name): other for name, other in names.items()}, settings)
        )


def same_fields(body: Common) -> dict[str, Any]:
    """The fields of a body that an ``AnswerRequest`` has, too."""
    return {name: getattr(body, name) for name in Common.model_fields}
