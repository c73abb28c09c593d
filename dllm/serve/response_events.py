"""A response piece by piece: the events of OpenAI's Responses, in their order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dllm.serve.answering import Answering
from dllm.serve.decoding import TextDelta
from dllm.serve.replies import event_bytes
from dllm.serve.responses import ResponseEnvelope, text_part


@dataclass
class AnsweringResponse(Answering):
    """A response on its way."""

    numbers: count[int] = field(default_factory=count)  # of its events

    def _event(self, kind: str, **more: Any) -> bytes:
        return event_bytes({"type": kind, "sequence_number": next(self.numbers), **more}, kind)

    async def events(self) -> AsyncIterator[bytes]:
        """The reply piece by piece. An error becomes an event, since the status has been sent."""
        envelope = self.envelope
        assert isinstance(envelope, ResponseEnvelope)
        place = {"item_id": envelope.item_id, "output_index": 0, "content_index": 0}
        begun = envelope.response("in_progress", [])
        try:
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            added = envelope.item("in_progress", None)
            yield self._event("response.output_item.added", output_index=0, item=added)
            yield self._event("response.content_part.added", **place, part=text_part(""))
            async for item in self._items():
                if isinstance(item, TextDelta):
                    yield self._event("response.output_text.delta", **place, delta=item.text, logprobs=[])
        except Exception as error:
            told = self._failure(error)["error"]
            yield self._event("error", code=told["code"], message=told["message"], param=told["param"])
            return
        whole = envelope.completion(self.done)
        (item,), status = whole["output"], whole["status"]
        text = item["content"][0]["text"]
        yield self._event("response.output_text.done", **place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=text_part(text))
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{status}", response=whole)
