"""A response piece by piece: the events of OpenAI's Responses, in their order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dllm.serve.answering import Answering
from dllm.serve.decoding import Completed, TextDelta
from dllm.serve.replies import Envelope, event_bytes
from dllm.serve.tool_stream import ToolDeltas
from dllm.serve.tools import ToolCall

# What the text of an output item is called in its events.
TEXT_EVENTS = {"function_call": "function_call_arguments", "message": "output_text", "reasoning": "reasoning_text"}


@dataclass
class AnsweringResponse(Answering):
    """A response on its way. While it is decoded, its output items grow: the thought, then the text, or the arguments
    of the only function that can be called. The rest is known at the end."""

    numbers: count[int] = field(default_factory=count)  # of its events
    sent: list[str] = field(default_factory=list)  # what was sent of each output item
    ended: int = 0  # output items that are whole
    thinks: bool = False  # the first of them is a thought

    def _event(self, kind: str, **more: Any) -> bytes:
        return event_bytes({"type": kind, "sequence_number": next(self.numbers), **more}, kind)

    async def events(self) -> AsyncIterator[bytes]:
        """The reply piece by piece. An error becomes an event, since the status has been sent."""
        envelope = self.envelope
        assert isinstance(envelope, ResponseEnvelope)
        begun, first = envelope.response("in_progress", []), self._first(envelope)
        try:
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            async for item in self._items():
                for event in self._told(item, envelope, first) if isinstance(item, TextDelta) else ():
                    yield event
        except Exception as error:
            told = self._failure(error)["error"]
            yield self._event("error", code=told["code"], message=told["message"], param=told["param"])
            return
        whole = envelope.completion(self.done)
        for at, item in list(enumerate(whole["output"]))[self.ended :]:
            for event in self._ended(at, item):
                yield event
        yield self._event(f"response.{whole['status']}", response=whole)

    def _told(self, item: TextDelta, envelope: ResponseEnvelope, first: dict[str, Any]) -> Iterator[bytes]:
        """The events of new text: a thought is whole when an answer begins. first: the first item after it."""
        if item.thought:
            self.thinks = True
            yield from self._grown(0, envelope.thought("in_progress", None), item.text)
            return
        for text in self._texts(item.text):
            if self.thinks and not self.ended:
                yield from self._ended(0, envelope.thought("completed", self.sent[0]))
                self.ended = 1
            yield from self._grown(int(self.thinks), first, text)

    def _first(self, envelope: ResponseEnvelope) -> dict[str, Any]:
        """The first output item after a thought, as it begins."""
        use = envelope.parsed.tools
        if use is None or use.single is None:
            return envelope.message("in_progress", None)
        return envelope.call("in_progress", ToolCall(use.single.name, ""), 0)

    def _texts(self, text: str) -> list[str]:
        """What new text of the answer adds to the first item."""
        use = self.envelope.parsed.tools
        if use is None:
            return [text]
        deltas = self.deltas.setdefault(0, ToolDeltas(use, self.envelope.ident))
        return [
            call["function"]["arguments"] if "tool_calls" in delta else delta["content"]
            for delta in deltas.fed(text) for call in delta.get("tool_calls", [{}])
        ]  # fmt: skip

    def _grown(self, at: int, begun: dict[str, Any], text: str) -> Iterator[bytes]:
        """The events of new text of an item; begun: as the item begins."""
        kind, is_call = TEXT_EVENTS[begun["type"]], begun["type"] == "function_call"
        if at == len(self.sent):
            yield self._event("response.output_item.added", output_index=at, item=begun)
            if not is_call:
                place = self._place(at, begun)
                yield self._event("response.content_part.added", **place, part=text_part("", kind))
            self.sent.append("")
        if text:
            self.sent[at] += text
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._event(f"response.{kind}.delta", **self._place(at, begun), delta=text, **more)

    def _ended(self, at: int, item: dict[str, Any]) -> Iterator[bytes]:
        """The events that are left of a whole item."""
        if item["type"] == "function_call":
            text, begun = item["arguments"], {**item, "status": "in_progress", "arguments": ""}
        else:
            text, begun = item["content"][0]["text"], {**item, "status": "in_progress", "content": []}
        yield from self._grown(at, begun, text[len(self.sent[at]) if at < len(self.sent) else 0 :])
        place = self._place(at, item)
        if item["type"] == "function_call":
            name = item["name"]
            yield self._event("response.function_call_arguments.done", **place, name=name, arguments=text)
        else:
            kind = TEXT_EVENTS[item["type"]]
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._event(f"response.{kind}.done", **place, text=text, **more)
            yield self._event("response.content_part.done", **place, part=text_part(text, kind))
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _place(self, at: int, item: dict[str, Any]) -> dict[str, Any]:
        """Where the text of an item is."""
        return {"item_id": item["id"], "output_index": at, **({} if "call_id" in item else {"content_index": 0})}


@dataclass(frozen=True)
class ResponseEnvelope(Envelope):
    """What every object of one response has in common."""

    def completion(self, choices: Sequence[Completed]) -> dict[str, Any]:
        choice = choices[0]
        status = "incomplete" if choice.ending.reason == "length" else "completed"
        used, thought = self.usage(choices), {"reasoning_tokens": choice.thought_tokens}
        usage = {
            "input_tokens": used["prompt_tokens"], "input_tokens_details": {"cached_tokens": self.cached(choices) or 0},
            "output_tokens": used["completion_tokens"], "output_tokens_details": thought,
            "total_tokens": used["total_tokens"],
        }  # fmt: skip
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        whole = self.response(status, self._output(choice, status))
        return {
            **whole,
            "incomplete_details": details,
            "usage": usage,
            **choice.ids,
            "diffusion": {**choice.cost, **self.parsed.diffusion_notes},
        }

    def _output(self, choice: Completed, status: str) -> list[dict[str, Any]]:
        text, calls = self._read(choice)
        said = [self.message(status, text)] if text or not (calls or choice.thought) else []
        thought = [self.thought("completed" if said or calls else status, choice.thought)] if choice.thought else []
        return [*thought, *said, *(self.call("completed", call, at) for at, call in enumerate(calls))]

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The object without its ending."""
        job = self.parsed.jobs[0]
        request = job.request
        return {
            "id": f"resp_{self.ident}", "object": "response", "created_at": self.created, "status": status,
            "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "model": self.model,
            "max_output_tokens": job.columns - request.answer_start, "output": output,
            "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
            "service_tier": "default", "store": False, "temperature": request.temperature, "tool_choice": "auto",
            "tools": [], "top_p": None, "truncation": "disabled", "usage": None, "user": None, **self.parsed.repeated,
        }  # fmt: skip

    def thought(self, status: str, text: str | None) -> dict[str, Any]:
        """The output item that is what the model thought. text: None: none yet."""
        content = [] if text is None else [text_part(text, "reasoning_text")]
        return {"id": f"rs_{self.ident}", "type": "reasoning", "status": status, "summary": [], "content": content}

    def message(self, status: str, text: str | None) -> dict[str, Any]:
        """The output item that is text. text: None: none yet."""
        content = [] if text is None else [text_part(text)]
        return {"id": f"msg_{self.ident}", "type": "message", "status": status, "role": "assistant", "content": content}

    def call(self, status: str, call: ToolCall, at: int) -> dict[str, Any]:
        """The output item that is a call; at: which of them."""
        idents = {"id": f"fc_{self.ident}_{at}", "call_id": f"call_{self.ident}_{at}"}
        return {**idents, "type": "function_call", "status": status, "name": call.name, "arguments": call.arguments}


def text_part(text: str, kind: str = "output_text") -> dict[str, Any]:
    """The part of an item that holds its text."""
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **more}
