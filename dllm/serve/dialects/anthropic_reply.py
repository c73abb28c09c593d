"""Anthropic's Messages: a reply as a message, whole and as its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dllm.common.json_text import loaded
from dllm.serve.dialects.reply_events import (
    CallPiece,
    CallStart,
    ChoiceEnd,
    ReplyChoice,
    ReplyEvent,
    ReplyFailure,
    ReplyStart,
    TextPiece,
    ThoughtPiece,
)
from dllm.serve.dialects.writer import Writer, event_bytes
from dllm.serve.http.api_errors import error_form

_PATH = "/v1/messages"


@dataclass
class MessagesWriter(Writer):
    """Writes a message: its blocks one after the other, each with a beginning, pieces and an end."""

    at: int = -1  # index of the block that grows
    kind: str = ""  # of that block; empty: none grows

    def pieces(self, event: ReplyEvent) -> Iterator[bytes]:
        match event:
            case ReplyStart():
                yield _event("message_start", message=self._message([], self._usage(0)))
                yield _event("ping")
            case ThoughtPiece(_, text):
                yield from self._append(thought_block(""), {"type": "thinking_delta", "thinking": text})
            case TextPiece(_, text) if text:
                yield from self._append(text_block(""), {"type": "text_delta", "text": text})
            case CallStart():
                yield from self._begin(self._call(event.at, event.name, {}))
                yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            case CallPiece():
                yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            case ChoiceEnd():
                yield from self._end()
                answer = self.answers[0]
                usage = self._usage(answer.token_count, self.cached_tokens or 0)
                yield _event("message_delta", delta=self._ending(answer), usage=usage, **self._extras(answer))
                yield _event("message_stop")
            case ReplyFailure(error):
                yield event_bytes(error_form(error, _PATH, self.ident), "error")

    def whole(self) -> dict[str, Any]:
        answer = self.answers[0]
        content = [thought_block(answer.thought)] * bool(answer.thought) + [text_block(answer.text)] * bool(answer.text)
        content += [self._call(at, call.name, loaded(call.arguments)) for at, call in enumerate(answer.calls)]
        message = self._message(content, self._usage(answer.token_count, self.cached_tokens or 0))
        return {**message, **self._ending(answer), **self._extras(answer)}

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """The message before it ends."""
        return {
            "id": f"msg_{self.ident}",
            "type": "message",
            "role": "assistant",
            "model": self.parsed.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _ending(self, answer: ReplyChoice) -> dict[str, Any]:
        """Why it ends, in Anthropic's words."""
        assert answer.end is not None
        reason = "end_turn" if answer.end.stop is None else "stop_sequence"
        if answer.calls:
            reason = "tool_use"
        elif answer.end.reason == "length":
            length = self.parsed.request.length
            is_shortened = length is not None and self.parsed.answer_room < length
            # by the model's or the server's limit
            reason = "model_context_window_exceeded" if is_shortened else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": answer.end.stop}

    def _extras(self, answer: ReplyChoice) -> dict[str, Any]:
        assert answer.end is not None
        return {**answer.end.ids, "diffusion": self.diffusion(answer)}

    def _usage(self, output_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
        """Anthropic counts cached tokens apart from the others, and reports them at the end."""
        return {
            "input_tokens": self.parsed.prompt_tokens - cached_tokens,
            "output_tokens": output_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens,
            "service_tier": "standard",
        }

    def _call(self, at: int, name: str, arguments: Any) -> dict[str, Any]:
        """The block of a call; at: which of them."""
        ident = f"toolu_{self.ident}_{at}"
        return {"type": "tool_use", "id": ident, "name": name, "input": arguments, "caller": {"type": "direct"}}

    def _append(self, block: dict[str, Any], delta: dict[str, Any]) -> Iterator[bytes]:
        if self.kind != block["type"]:
            yield from self._begin(block)
        yield self._delta(delta)

    def _begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._end()
        self.at, self.kind = self.at + 1, block["type"]
        yield _event("content_block_start", index=self.at, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self.at, delta=delta)

    def _end(self) -> Iterator[bytes]:
        """The end of the block that grows, if one does."""
        if self.kind:
            yield _event("content_block_stop", index=self.at)
        self.kind = ""


def text_block(text: str) -> dict[str, Any]:
    """A block that is text."""
    return {"type": "text", "text": text, "citations": None}


def thought_block(text: str) -> dict[str, Any]:
    """A block that is what the model thought; no one signs it."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _event(kind: str, **more: Any) -> bytes:
    return event_bytes({"type": kind, **more}, kind)
