"""What becomes of a reply, in order. Every form writes its stream from these events; a plain reply is their fold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dllm.serve.dialects.tools import ToolCall
from dllm.serve.engine.jobs import Progress
from dllm.serve.http.api_errors import ApiError


@dataclass(frozen=True)
class ReplyStart:
    """Its rows decode."""


@dataclass(frozen=True)
class TextPiece:
    """New final text of a choice."""

    choice: int  # its index
    text: str  # what is new
    token_count: int | None = None  # the choice's tokens up to here; None: the request does not ask


@dataclass(frozen=True)
class ThoughtPiece:
    """New final text of what the model thinks before it answers."""

    choice: int  # its index
    text: str  # what is new
    token_count: int | None = None  # as of ``TextPiece``


@dataclass(frozen=True)
class CallStart:
    """A call of a function. Only the arguments of the only function that can be called go on in ``CallPiece``."""

    choice: int  # its index
    at: int  # which of the choice's calls
    name: str  # of the function
    arguments: str  # as much of them as is final


@dataclass(frozen=True)
class CallPiece:
    """More of the last call's arguments."""

    choice: int  # its index
    at: int  # which of the choice's calls
    arguments: str  # what is new


@dataclass(frozen=True)
class CanvasSnapshot:
    """A choice's canvas after a turn."""

    choice: int  # its index
    progress: Progress  # the row after the turn


@dataclass(frozen=True)
class TokenScore:
    """A token of a reply, and how likely it was."""

    piece: bytes  # what it adds to the reply's text
    name: str  # what it is called where there is no tokenizer, and so no text
    logprob: float  # at its commit under the model alone, nats
    others: tuple[TokenScore, ...] = ()  # the tokens that were likeliest there, if they are asked for
    drawn_logprob: float | None = None  # under the distribution that it was drawn from; None: unknown


@dataclass(frozen=True)
class ChoiceEnd:
    """A finished choice."""

    choice: int  # its index
    reason: str  # ``stop`` or ``length``, in OpenAI's words
    token_count: int  # its tokens, without those of the request
    cost: dict[str, Any]  # what the reply says under ``diffusion``
    stop: str | None = None  # the stop string that ended it
    tokens: tuple[TokenScore, ...] = ()  # of the answer, if log-probabilities are asked for
    thought_tokens: int = 0  # of its tokens, those of its thought
    cached_tokens: int | None = None  # of its prompt, computed by an earlier request; None: its cache shares none
    replay: dict[str, Any] = field(default_factory=dict)  # token_ids and meta_info, if they are asked for
    ids: dict[str, list[int]] = field(default_factory=dict)  # of prompt and answer, in vLLM's words, if asked for


@dataclass(frozen=True)
class ReplyFailure:
    """The reply ends before its time."""

    error: ApiError  # as the client reads it


ReplyEvent = ReplyStart | TextPiece | ThoughtPiece | CallStart | CallPiece | CanvasSnapshot | ChoiceEnd | ReplyFailure


@dataclass
class ReplyChoice:
    """One choice of a reply, as its events so far make it up."""

    text: str = ""  # without thought and calls
    thought: str = ""  # what the model thought before
    calls: list[ToolCall] = field(default_factory=list)  # in their order
    token_count: int = 0  # its tokens so far, if each piece tells them
    end: ChoiceEnd | None = None  # None: it goes on

    def add(self, event: ReplyEvent) -> None:
        """Take an event of this choice in."""
        match event:
            case TextPiece():
                self.text, self.token_count = self.text + event.text, event.token_count or 0
            case ThoughtPiece():
                self.thought, self.token_count = self.thought + event.text, event.token_count or 0
            case CallStart():
                self.calls.append(ToolCall(event.name, event.arguments))
            case CallPiece():
                self.calls[-1] = replace(self.calls[-1], arguments=self.calls[-1].arguments + event.arguments)
            case ChoiceEnd():
                self.end, self.token_count = event, event.token_count
