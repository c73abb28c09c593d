"""What the forms of a reply have in common: pieces of a stream from its events, and the whole from their fold."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dllm.prompts import Prompts
from dllm.serve.dialects.reply_events import ReplyChoice, ReplyEvent, ReplyFailure, ReplyStart, TokenScore
from dllm.serve.dialects.wire import ParsedRequest

PING_SECONDS = 15  # proxies close connections that are silent for 30 or 60


@dataclass
class Writer(ABC):
    """Writes one reply in one form."""

    media_type: ClassVar[str] = "text/event-stream"  # of a stream
    ping: ClassVar[float] = PING_SECONDS  # of silence after which a stream has a comment
    ident: str  # of the reply
    parsed: ParsedRequest  # the request
    prompts: Prompts  # writes tokens as words
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    answers: dict[int, ReplyChoice] = field(init=False)  # its choices so far

    def __post_init__(self) -> None:
        self.answers = {choice: ReplyChoice() for choice in range(len(self.parsed.jobs))}

    def write(self, event: ReplyEvent) -> Iterator[bytes]:
        """The pieces of a stream that tell an event, which is taken in."""
        self.take(event)
        return self.pieces(event)

    def take(self, event: ReplyEvent) -> None:
        """Take an event in."""
        if not isinstance(event, ReplyStart | ReplyFailure):
            self.answers[event.choice].add(event)

    @abstractmethod
    def pieces(self, event: ReplyEvent) -> Iterator[bytes]:
        """The pieces of a stream that tell an event."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The reply in one piece, once every choice has ended."""

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return all(answer.end is not None for answer in self.answers.values())

    @property
    def token_count(self) -> int:
        """The tokens of all answers."""
        return sum(answer.token_count for answer in self.answers.values())

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompts that earlier requests had computed: of each prompt the fewest of its choices, since the
        others may know it of the first; None: nothing is shared."""
        fewest: dict[tuple[int, ...], int] = {}
        for choice, answer in self.answers.items():
            request = self.parsed.jobs[choice].request
            prompt = tuple(request.tokens[: request.answer_start])
            if answer.end is not None and answer.end.cached_tokens is not None:
                fewest[prompt] = min(answer.end.cached_tokens, fewest.get(prompt, answer.end.cached_tokens))
        return sum(fewest.values()) if fewest else None

    def diffusion(self, answer: ReplyChoice, **more: Any) -> dict[str, Any]:
        """What the reply says under ``diffusion`` of a finished choice."""
        assert answer.end is not None
        return {**answer.end.cost, **self.parsed.diffusion_notes, **more}


def token_text(token: TokenScore, mark: str = "") -> str:
    """The text of a token. Of one with a part of a character as OpenAI writes it: ``mark``, and escaped bytes."""
    text = token.piece.decode(errors="backslashreplace")
    return token.name or (text if text.encode() == token.piece else mark + text)


def likely(token: TokenScore) -> dict[str, Any]:
    """A token and its log-probability, as chat tells them."""
    return {"token": token_text(token), "logprob": token.logprob, "bytes": list(token.piece)}


def scored_tokens(tokens: tuple[TokenScore, ...]) -> list[dict[str, Any]]:
    """The tokens of an answer with those that were likeliest in their places, as chat tells them."""
    return [{**likely(token), "top_logprobs": [likely(other) for other in token.others]} for token in tokens]


_IN_ONE_LINE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_bytes(data: Any) -> bytes:
    """JSON in one line."""
    return _IN_ONE_LINE.encode(data).encode()


def event_bytes(data: Any, event: str | None = None) -> bytes:
    """A server-sent event."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + (data.encode() if isinstance(data, str) else json_bytes(data)) + b"\n\n"
