"""Ollama's interface: a reply in one object, or in lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from dllm.common.json_text import loaded
from dllm.serve.answering import Answering
from dllm.serve.api_errors import error_form
from dllm.serve.decoding import Completed, TextDelta
from dllm.serve.ollama_request import NothingAsked
from dllm.serve.replies import Envelope, likely, token_text

_PATH = "/api/"
_NEVER = 10**6  # seconds between two comments, which are not JSON


def stamp() -> str:
    """Now, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def loaded_reply(asked: NothingAsked) -> dict[str, Any]:
    """The reply to a request without a prompt: the model is there."""
    said: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if asked.is_chat else {"response": ""}
    reason = "unload" if asked.leaves else "load"
    return {"model": asked.name, "created_at": stamp(), **said, "done": True, "done_reason": reason}


@dataclass(frozen=True)
class OllamaEnvelope(Envelope):
    """What every object of one reply has in common."""

    def completion(self, choices: Sequence[Completed]) -> dict[str, Any]:
        choice = choices[0]
        text, calls = self._read(choice)
        text = text.removesuffix(self.parsed.repeated["suffix"])
        made = [self.call(call.name, call.arguments, at) for at, call in enumerate(calls)]
        return self.line(text, choice.thought, made) | self.ending(choice)

    def line(self, text: str, thought: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Text on its way."""
        more = {"thinking": thought} if thought else {}
        head = {"model": self.model, "created_at": stamp()}
        if self.parsed.repeated["generate"]:
            return {**head, "response": text, **more, "done": False}
        called = {"tool_calls": list(calls)} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **more, **called}, "done": False}

    def call(self, name: str, arguments: str, at: int) -> dict[str, Any]:
        """A call; at: which of them."""
        return {"function": {"index": at, "name": name, "arguments": loaded(arguments)}}

    def ending(self, choice: Completed) -> dict[str, Any]:
        """How it ends, and what it took. The prompt is computed with the answer, so that its time is the answer's."""
        seconds, waited = choice.cost["seconds"], choice.cost["waited"] or 0.0
        parsed = self.parsed
        found = {
            "done": True, "done_reason": choice.ending.reason, "total_duration": _nanoseconds(seconds),
            "load_duration": 0, "prompt_eval_count": parsed.prompt_tokens, "prompt_eval_duration": 0,
            "eval_count": choice.written, "eval_duration": _nanoseconds(seconds - waited),
            "diffusion": {**choice.cost, **parsed.diffusion_notes},
        }  # fmt: skip
        found |= choice.ids
        if parsed.repeated["generate"] and not parsed.repeated["raw"]:
            found["context"] = []
        if parsed.logprobs:
            found["logprobs"] = [
                {"token": token_text(one), "logprob": one.logprob, "bytes": list(one.piece),
                 "top_logprobs": [likely(other) for other in one.others]} for one in choice.scored
            ]  # fmt: skip
        return found

    def chunk(self, choice: int, text: str = "", role: bool = False) -> dict[str, Any]:
        return {"content": text}

    def delta(self, choice: int, delta: dict[str, Any]) -> dict[str, Any]:
        return delta


@dataclass
class AnsweringOllama(Answering):
    """A reply on its way: a line for each piece of text, one for all calls, and the last one."""

    media_type: ClassVar[str] = "application/x-ndjson"
    ping: ClassVar[int] = _NEVER

    async def events(self) -> AsyncIterator[bytes]:
        """The reply line by line. An error becomes a line, since the status has been sent."""
        envelope = self.envelope
        assert isinstance(envelope, OllamaEnvelope)
        whole = bool(envelope.parsed.repeated["suffix"])  # it is cut off at the end
        try:
            async for item in self._items():
                if isinstance(item, TextDelta) and not whole:
                    for delta in self._chunks(0, item.text, item.thought):
                        thought, text = delta.get("reasoning", ""), delta.get("content") or ""
                        if thought or text:
                            yield _line(envelope.line(text, thought))
                elif isinstance(item, Completed):
                    for delta in self._chunks(0, None):
                        if delta.get("content"):
                            yield _line(envelope.line(delta["content"]))
        except Exception as error:
            self._failure(error)
            assert self.failed is not None
            yield _line(error_form(self.failed, _PATH, envelope.ident))
            return
        last = envelope.completion(self.done)
        calls = last.get("message", {}).get("tool_calls", ())
        if calls:
            yield _line(envelope.line("", calls=calls))
        said = envelope.line(last["response"] if whole else "")
        yield _line({**last, **{name: said[name] for name in ("message", "response") if name in said}})


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
