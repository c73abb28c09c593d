"""OpenAI's Responses: a response whole, and as its events in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dllm.serve.dialects.reply_events import (
    CallPiece,
    CallStart,
    ChoiceEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyStart,
    TextPiece,
    ThoughtPiece,
)
from dllm.serve.dialects.writer import Writer, event_bytes

# What the text of an output item is called in its events.
TEXT_EVENTS = {"function_call": "function_call_arguments", "message": "output_text", "reasoning": "reasoning_text"}


@dataclass
class ResponseWriter(Writer):
    """Writes a response: its output items one after the other, each with a beginning, pieces and an end."""

    request_fields: Mapping[str, Any] = field(default_factory=dict)  # that the response repeats
    numbers: count[int] = field(default_factory=count)  # of its events
    output: list[dict[str, Any]] = field(default_factory=list)  # its items as they began
    text: str = ""  # of the last one, which grows

    def pieces(self, event: ReplyEvent) -> Iterator[bytes]:
        match event:
            case ReplyStart():
                response = self._response("in_progress", [])
                yield self._event("response.created", response=response)
                yield self._event("response.in_progress", response=response)
            case ThoughtPiece(_, text):
                yield from self._append(self._thought("in_progress"), text)
            case TextPiece(_, text) if text:
                yield from self._append(self._message("in_progress"), text)
            case CallStart():
                yield from self._append(self._call("in_progress", event.at, event.name), event.arguments)
            case CallPiece():
                yield from self._append(self.output[-1], event.arguments)
            case ChoiceEnd():
                if not self.output:
                    yield from self._append(self._message("in_progress"), "")
                whole = self.whole()
                yield from self._end(whole["status"])
                yield self._event(f"response.{whole['status']}", response=whole)
            case ReplyFailure(error):
                yield self._event("error", code=error.code, message=error.message, param=error.param)

    def whole(self) -> dict[str, Any]:
        answer, prompt_tokens = self.answers[0], self.parsed.prompt_tokens
        assert answer.end is not None
        status = "incomplete" if answer.end.reason == "length" else "completed"
        items = [self._thought("completed", answer.thought)] * bool(answer.thought)
        items += [self._message("completed", answer.text)] * bool(answer.text or not (items or answer.calls))
        items += [self._call("completed", at, call.name, call.arguments) for at, call in enumerate(answer.calls)]
        if "arguments" not in items[-1]:
            items[-1]["status"] = status
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens or 0},
            "output_tokens": answer.token_count,
            "output_tokens_details": {"reasoning_tokens": answer.end.thought_tokens},
            "total_tokens": prompt_tokens + answer.token_count,
        }
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ending = {"incomplete_details": details, "usage": usage, **answer.end.ids, "diffusion": self.diffusion(answer)}
        return {**self._response(status, items), **ending}

    def _event(self, kind: str, **more: Any) -> bytes:
        return event_bytes({"type": kind, "sequence_number": next(self.numbers), **more}, kind)

    def _append(self, item: dict[str, Any], text: str) -> Iterator[bytes]:
        """The events of new text of an item, which begins with the first of them. item: without text."""
        if not self.output or self.output[-1]["id"] != item["id"]:
            yield from self._end("completed")
            self.output.append(item)
            self.text = ""
            yield self._event("response.output_item.added", output_index=len(self.output) - 1, item=item)
            if "arguments" not in item:
                part = text_part("", TEXT_EVENTS[item["type"]])
                yield self._event("response.content_part.added", **self._place(), part=part)
        kind = TEXT_EVENTS[item["type"]]
        if text:
            self.text += text
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._event(f"response.{kind}.delta", **self._place(), delta=text, **more)

    def _end(self, status: str) -> Iterator[bytes]:
        """The events that end the item that grows, if one does. status: of a text."""
        if not self.output:
            return
        open_item, kind = self.output[-1], TEXT_EVENTS[self.output[-1]["type"]]
        if "arguments" in open_item:
            item = {**open_item, "status": "completed", "arguments": self.text}
            yield self._event(f"response.{kind}.done", **self._place(), name=open_item["name"], arguments=self.text)
        else:
            item = {**open_item, "status": status, "content": [text_part(self.text, kind)]}
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._event(f"response.{kind}.done", **self._place(), text=self.text, **more)
            yield self._event("response.content_part.done", **self._place(), part=text_part(self.text, kind))
        yield self._event("response.output_item.done", output_index=len(self.output) - 1, item=item)

    def _place(self) -> dict[str, Any]:
        """Where the text of the item that grows is."""
        item = self.output[-1]
        where = {"item_id": item["id"], "output_index": len(self.output) - 1}
        return where if "arguments" in item else {**where, "content_index": 0}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The object without its ending."""
        request = self.parsed.jobs[0].request
        return {
            "id": f"resp_{self.ident}", "object": "response", "created_at": self.created, "status": status,
            "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "model": self.parsed.model, "max_output_tokens": self.parsed.answer_room, "output": output,
            "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
            "service_tier": "default", "store": False, "temperature": request.temperature, "tool_choice": "auto",
            "tools": [], "top_p": None, "truncation": "disabled", "usage": None, "user": None, **self.request_fields,
        }  # fmt: skip

    def _thought(self, status: str, text: str | None = None) -> dict[str, Any]:
        """The output item that is what the model thought. text: None: none yet."""
        content = [] if text is None else [text_part(text, "reasoning_text")]
        return {"id": f"rs_{self.ident}", "type": "reasoning", "status": status, "summary": [], "content": content}

    def _message(self, status: str, text: str | None = None) -> dict[str, Any]:
        """The output item that is text. text: None: none yet."""
        content = [] if text is None else [text_part(text)]
        return {"id": f"msg_{self.ident}", "type": "message", "status": status, "role": "assistant", "content": content}

    def _call(self, status: str, at: int, name: str, arguments: str = "") -> dict[str, Any]:
        """The output item that is a call; at: which of them."""
        idents = {"id": f"fc_{self.ident}_{at}", "call_id": f"call_{self.ident}_{at}"}
        return {**idents, "type": "function_call", "status": status, "name": name, "arguments": arguments}


def text_part(text: str, kind: str = "output_text") -> dict[str, Any]:
    """The part of an item that holds its text."""
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **more}
