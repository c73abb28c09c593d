"""Ollama's interface: a reply in one object, or in lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, ClassVar

from dllm.common.json_text import loaded
from dllm.serve.dialects.reply_events import ChoiceEnd, ReplyChoice, ReplyEvent, ReplyFailure, TextPiece, ThoughtPiece
from dllm.serve.dialects.writer import Writer, json_bytes, scored_tokens
from dllm.serve.http.api_errors import error_form

_PATH = "/api/"


def stamp() -> str:
    """Now, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def loaded_reply(name: str, is_chat: bool, leaves: bool) -> dict[str, Any]:
    """The reply to a request without a prompt: the model is there. leaves: it asks the model to leave."""
    answer: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    return {"model": name, "created_at": stamp(), **answer, "done": True, "done_reason": "unload" if leaves else "load"}


@dataclass
class OllamaWriter(Writer):
    """Writes a line for each piece of text, one for all calls, and the last one. A text that fills a gap comes whole,
    since what follows the gap is cut off at its end."""

    media_type: ClassVar[str] = "application/x-ndjson"
    ping: ClassVar[float] = inf  # a comment is no JSON
    name: str = ""  # of the model, as the request calls it
    generates: bool = False  # for /api/generate
    plain: bool = False  # no chat template is used
    suffix: str = ""  # what follows a gap

    def pieces(self, event: ReplyEvent) -> Iterator[bytes]:
        match event:
            case TextPiece(_, text) if text and not self.suffix:
                yield _line(self._part(text))
            case ThoughtPiece(_, text):
                yield _line(self._part("", text))
            case ChoiceEnd():
                answer = self.answers[0]
                if answer.calls:
                    yield _line(self._part("", calls=self._calls(answer)))
                yield _line({**self._part(self._text(answer) if self.suffix else ""), **self._ending(answer)})
            case ReplyFailure(error):
                yield _line(error_form(error, _PATH, self.ident))

    def whole(self) -> dict[str, Any]:
        answer = self.answers[0]
        return {**self._part(self._text(answer), answer.thought, self._calls(answer)), **self._ending(answer)}

    def _text(self, answer: ReplyChoice) -> str:
        return answer.text.removesuffix(self.suffix)

    def _calls(self, answer: ReplyChoice) -> list[dict[str, Any]]:
        return [
            {"function": {"index": at, "name": call.name, "arguments": loaded(call.arguments)}}
            for at, call in enumerate(answer.calls)
        ]

    def _part(self, text: str, thought: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Text on its way."""
        more = {"thinking": thought} if thought else {}
        head = {"model": self.name, "created_at": stamp()}
        if self.generates:
            return {**head, "response": text, **more, "done": False}
        tool_calls = {"tool_calls": calls} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **more, **tool_calls}, "done": False}

    def _ending(self, answer: ReplyChoice) -> dict[str, Any]:
        """How it ends, and what it took. The prompt is computed with the answer, so that its time is the answer's."""
        end, parsed = answer.end, self.parsed
        assert end is not None
        seconds, waiting_seconds = end.cost["seconds"], end.cost["waited"] or 0.0
        fields = {
            "done": True,
            "done_reason": end.reason,
            "total_duration": _nanoseconds(seconds),
            "load_duration": 0,
            "prompt_eval_count": parsed.prompt_tokens,
            "prompt_eval_duration": 0,
            "eval_count": end.token_count,
            "eval_duration": _nanoseconds(seconds - waiting_seconds),
            "diffusion": self.diffusion(answer),
            **end.ids,
        }
        if self.generates and not self.plain:
            fields["context"] = []
        return {**fields, "logprobs": scored_tokens(end.tokens)} if parsed.request.logprobs else fields


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(data: dict[str, Any]) -> bytes:
    return json_bytes(data) + b"\n"
