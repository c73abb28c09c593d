"""Anthropic's Messages: a reply as a message, whole and as its events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dllm.common.json_text import loaded
from dllm.serve.answering import Answering
from dllm.serve.api_errors import error_form
from dllm.serve.decoding import Completed, TextDelta
from dllm.serve.replies import Envelope, event_bytes

_PATH = "/v1/messages"


@dataclass(frozen=True)
class MessagesEnvelope(Envelope):
    """What every object of one message has in common."""

    def completion(self, choices: Sequence[Completed]) -> dict[str, Any]:
        choice = choices[0]
        text, calls = self._read(choice)
        content = [thought_block(choice.thought)] * bool(choice.thought) + [text_block(text)] * bool(text)
        content += [{**self.call(call.name, at), "input": loaded(call.arguments)} for at, call in enumerate(calls)]
        usage = self._used(choice.written, choice)
        return {**self.begun(), "content": content, **self.ending(choice), "usage": usage, **self.told(choice)}

    def begun(self) -> dict[str, Any]:
        """The message before its content."""
        return {
            "id": f"msg_{self.ident}", "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": self._used(0),
        }  # fmt: skip

    def ending(self, choice: Completed) -> dict[str, Any]:
        """Why it ends, in Anthropic's words."""
        stop = choice.ending.stop
        reason = "end_turn" if stop is None else "stop_sequence"
        if self._read(choice)[1]:
            reason = "tool_use"
        elif choice.ending.reason == "length":
            reason = "model_context_window_exceeded" if self.parsed.repeated["shortened"] else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": stop}

    def told(self, choice: Completed) -> dict[str, Any]:
        return {**choice.ids, "diffusion": {**choice.cost, **self.parsed.diffusion_notes}}

    def _used(self, written: int, choice: Completed | None = None) -> dict[str, Any]:
        """Anthropic counts the tokens that were known apart from the others. They are told with the ``choice``."""
        known = 0 if choice is None else self.cached([choice]) or 0
        return {
            "input_tokens": self.parsed.prompt_tokens - known, "output_tokens": written,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": known, "service_tier": "standard",
        }  # fmt: skip

    def last(self, choice: Completed) -> dict[str, Any]:
        """How a stream ends."""
        return {"delta": self.ending(choice), "usage": self._used(choice.written, choice), **self.told(choice)}

    def call(self, name: str, at: int) -> dict[str, Any]:
        """The block of a call, before its arguments; at: which of them."""
        ident = f"toolu_{self.ident}_{at}"
        return {"type": "tool_use", "id": ident, "name": name, "input": {}, "caller": {"type": "direct"}}

    def chunk(self, choice: int, text: str = "", role: bool = False) -> dict[str, Any]:
        return {"content": text}

    def delta(self, choice: int, delta: dict[str, Any]) -> dict[str, Any]:
        return delta


def text_block(text: str) -> dict[str, Any]:
    """A block that is text."""
    return {"type": "text", "text": text, "citations": None}


def thought_block(text: str) -> dict[str, Any]:
    """A block that is what the model thought; no one signs it."""
    return {"type": "thinking", "thinking": text, "signature": ""}


@dataclass
class AnsweringMessages(Answering):
    """A message on its way: its blocks one after the other, each begun, grown and ended."""

    at: int = -1  # index of the block that grows
    kind: str = ""  # of that block; empty: none grows

    async def events(self) -> AsyncIterator[bytes]:
        """The reply piece by piece. An error becomes an event, since the status has been sent."""
        envelope = self.envelope
        assert isinstance(envelope, MessagesEnvelope)
        try:
            yield _event("message_start", message=envelope.begun())
            yield _event("ping")
            async for item in self._items():
                text = item.text if isinstance(item, TextDelta) else None
                thought = isinstance(item, TextDelta) and item.thought
                for delta in self._chunks(0, text, thought):
                    for event in self._grown(delta, envelope):
                        yield event
        except Exception as error:
            self._failure(error)
            assert self.failed is not None
            yield event_bytes(error_form(self.failed, _PATH, envelope.ident), "error")
            return
        for event in self._ended():
            yield event
        yield _event("message_delta", **envelope.last(self.done[0]))
        yield _event("message_stop")

    def _grown(self, delta: dict[str, Any], envelope: MessagesEnvelope) -> Iterator[bytes]:
        """The events of a delta of chat."""
        if "reasoning" in delta:
            yield from self._told(thought_block(""), {"type": "thinking_delta", "thinking": delta["reasoning"]})
        if delta.get("content"):
            yield from self._told(text_block(""), {"type": "text_delta", "text": delta["content"]})
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                yield from self._begun(envelope.call(function["name"], call["index"]))
            yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _told(self, block: dict[str, Any], delta: dict[str, Any]) -> Iterator[bytes]:
        if self.kind != block["type"]:
            yield from self._begun(block)
        yield self._delta(delta)

    def _begun(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._ended()
        self.at, self.kind = self.at + 1, block["type"]
        yield _event("content_block_start", index=self.at, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self.at, delta=delta)

    def _ended(self) -> Iterator[bytes]:
        """The end of the block that grows, if one does."""
        if self.kind:
            yield _event("content_block_stop", index=self.at)
        self.kind = ""


def _event(kind: str, **more: Any) -> bytes:
    return event_bytes({"type": kind, **more}, kind)
