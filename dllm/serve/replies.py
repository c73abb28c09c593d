"""OpenAI's objects: completions, chunks, errors, models."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from starlette.responses import JSONResponse

from dllm.prompts import Prompts
from dllm.serve.api_errors import ApiError, error_form
from dllm.serve.decoding import CanvasSnapshot, Completed, Scored
from dllm.serve.tool_stream import call_object
from dllm.serve.tools import ToolCall
from dllm.serve.wire import ParsedRequest

RETRY_SECONDS = {429: 1, 503: 5}  # where no one knows better; a server that closes is replaced a little later


def error_reply(refused: ApiError, path: str, ident: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The reply that says so, in the form of its address, with the time to wait where trying again helps. ident: of the
    request."""
    wait = refused.retry or RETRY_SECONDS.get(refused.status)
    more = {**(headers or {}), **({"Retry-After": str(wait)} if wait else {})}
    return JSONResponse(error_form(refused, path, ident), refused.status, headers=more)


def model_data(name: str, created: int, limit: int) -> dict[str, Any]:
    """A model as OpenAI's and Anthropic's clients read it. limit: tokens of a prompt and its answer together, as vLLM
    calls them."""
    when = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "id": name, "object": "model", "created": created, "owned_by": "dllm", "max_model_len": limit,
        "type": "model", "display_name": name, "created_at": when, "lifecycle": "active", "max_input_tokens": limit,
        "max_tokens": limit,
    }  # fmt: skip


@dataclass(frozen=True)
class Envelope:
    """What every object of one reply has in common."""

    ident: str  # of the reply
    model: str  # the name that it was asked by
    parsed: ParsedRequest  # the request
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def completion(self, choices: Sequence[Completed]) -> dict[str, Any]:
        """The whole reply at once."""
        return {
            **self._head("chat.completion" if self.parsed.chat else "text_completion"),
            "choices": [self._choice(choice) for choice in choices], "usage": self.usage(choices), **self._prompt_ids(),
        }  # fmt: skip

    def chunk(self, choice: int, text: str = "", role: bool = False) -> dict[str, Any]:
        """New text of a choice. role: the first chunk of a chat, which names who speaks; a call has no text."""
        use = self.parsed.tools
        begun = None if use is not None and use.forced else text
        delta = {"role": "assistant", "content": begun} if role else {"content": text}
        if role:
            return {**self.delta(choice, delta), **self._prompt_ids()}
        return self.delta(choice, delta) if self.parsed.chat else self._part(choice, {"text": text})

    def _prompt_ids(self) -> dict[str, list[int]]:
        """The prompt's ids where vLLM tells them: in chat beside the choices, which all have the same."""
        request = self.parsed.jobs[0].request
        asked = self.parsed.token_ids and self.parsed.chat
        return {"prompt_token_ids": list(request.tokens[: request.answer_start])} if asked else {}

    def delta(self, choice: int, delta: dict[str, Any]) -> dict[str, Any]:
        """What a choice of a chat says next: text, or a piece of a call."""
        return self._part(choice, {"delta": delta})

    def _part(self, choice: int, body: dict[str, Any]) -> dict[str, Any]:
        return self._chunk([{"index": choice, **body, "logprobs": None, "finish_reason": None}])

    def last_chunk(self, choice: Completed) -> dict[str, Any]:
        """The end of a choice, with its log-probabilities."""
        body: dict[str, Any] = {"delta": {}} if self.parsed.chat else {"text": ""}
        return self._chunk([{"index": choice.choice, **body, **self._ending(choice)}])

    def usage_chunk(self, choices: Sequence[Completed]) -> dict[str, Any]:
        return {**self._chunk([]), "usage": self.usage(choices)}

    def snapshot(self, shot: CanvasSnapshot, prompts: Prompts, ends: Collection[int]) -> dict[str, Any]:
        """A choice's canvas, in a chunk without choices: OpenAI's client hands on every event whatever its name."""
        now = shot.progress
        words = prompts.words(now.tokens)
        guesses = {
            at: [prompts.words([token])[0], round(sure, 4) if sure == sure else None]
            for at, (token, sure) in now.guesses.items()
        }  # fmt: skip
        canvas = {
            "index": shot.choice, "turn": now.turn, "block": now.block, "final": now.final,
            "words": [None if hidden else word for hidden, word in zip(now.masked, words, strict=True)],
            "turns": now.turns, "guesses": guesses,
            "ends": [at for at, token in enumerate(now.tokens) if token in ends],
            "guessed_ends": [at for at, (token, _) in now.guesses.items() if token in ends],
        }  # fmt: skip
        if prompts.ids.mask is None:
            canvas["shown"] = {at: words[at] for at, hidden in enumerate(now.masked) if hidden}
        if now.mixtures:
            canvas["mixtures"] = {
                at: [prompts.words([token])[0], round(share, 4)] for at, (token, share) in now.mixtures.items()
            }  # fmt: skip
        return {**self._chunk([]), "diffusion": canvas}

    def usage(self, choices: Sequence[Completed]) -> dict[str, Any]:
        """The prompt counts once, the answers all."""
        written, thought = (sum(getattr(one, name) for one in choices) for name in ("written", "thought_tokens"))
        details = {"completion_tokens_details": {"reasoning_tokens": thought}}
        cached = self.cached(choices)
        known = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        return {**self.usage_of(written), **known, **(details if self.parsed.thinking is not None else {})}

    def cached(self, choices: Sequence[Completed]) -> int | None:
        """Tokens of the prompts that earlier requests had computed: of each prompt the fewest of its choices, since the
        others may know it of the first; None: nothing is shared."""
        fewest: dict[tuple[int, ...], int] = {}
        for one in choices:
            request = self.parsed.jobs[one.choice].request
            prompt = tuple(request.tokens[: request.answer_start])
            if one.cached is not None:
                fewest[prompt] = min(one.cached, fewest.get(prompt, one.cached))
        return sum(fewest.values()) if fewest else None

    def usage_of(self, written: int) -> dict[str, int]:
        """The same of that many tokens of answers."""
        asked = self.parsed.prompt_tokens
        return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.parsed.chat else "cmpl"
        return {"id": f"{prefix}-{self.ident}", "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.parsed.chat else "text_completion")
        return {**head, "choices": choices, **({"usage": None} if self.parsed.include_usage else {})}

    def _choice(self, choice: Completed) -> dict[str, Any]:
        body = {"message": self._message(choice)} if self.parsed.chat else {"text": choice.ending.text}
        return {"index": choice.choice, **body, **self._ending(choice)}

    def _message(self, choice: Completed) -> dict[str, Any]:
        text, calls = self._read(choice)
        thought = thought_fields(choice.thought) if choice.thought else {}
        if not calls:
            return {"role": "assistant", "content": text, **thought}
        ident = f"{self.ident}_{choice.choice}"
        made = [call_object(call, ident, at) for at, call in enumerate(calls)]
        return {"role": "assistant", "content": text or None, **thought, "tool_calls": made}

    def _read(self, choice: Completed) -> tuple[str, list[ToolCall]]:
        """The text of a choice, and the calls in it."""
        text, use = choice.ending.text, self.parsed.tools
        return (text, []) if use is None else use.read(text)

    def _ending(self, choice: Completed) -> dict[str, Any]:
        scored = self._logprobs(choice.scored) if self.parsed.logprobs else None
        more: dict[str, Any] = dict(self.parsed.diffusion_notes)
        if self.parsed.logprobs:
            more["drawn_logprobs"] = [one.drawn for one in choice.scored]
        reason, use = choice.ending.reason, self.parsed.tools
        if use is not None and not use.named and self._read(choice)[1]:
            reason = "tool_calls"
        ids = {name: held for name, held in choice.ids.items() if name == "token_ids" or not self.parsed.chat}
        told = {"logprobs": scored, "finish_reason": reason, **ids, **choice.replay}
        return {**told, "diffusion": {**choice.cost, **more}}

    def _top(self, scored: Sequence[Scored]) -> list[dict[str, float]] | None:
        """Of each token those that were likeliest in its place, as completions tell them; None: not asked for."""
        if not any(job.likeliest for job in self.parsed.jobs):
            return None
        return [{token_text(other, "bytes:"): other.logprob for other in one.others} for one in scored]

    def _logprobs(self, scored: Sequence[Scored]) -> dict[str, Any]:
        """Of each token at its commit."""
        if self.parsed.chat:
            content = [{"token": token_text(one), "logprob": one.logprob, "bytes": list(one.piece),
                        "top_logprobs": [likely(other) for other in one.others]} for one in scored]  # fmt: skip
            return {"content": content, "refusal": None}
        return {
            "tokens": [token_text(one, "bytes:") for one in scored], "token_logprobs": [one.logprob for one in scored],
            "top_logprobs": self._top(scored), "text_offset": text_offsets([one.piece for one in scored]),
        }  # fmt: skip


def thought_fields(text: str) -> dict[str, str]:
    """What a model thinks, as servers call it: vLLM's newer name, and its older one, which is DeepSeek's."""
    return {"reasoning": text, "reasoning_content": text}


def likely(token: Scored) -> dict[str, Any]:
    """One of the tokens that were likeliest in a place, as chat tells it."""
    return {"token": token_text(token), "logprob": token.logprob, "bytes": list(token.piece)}


def token_text(token: Scored, mark: str = "") -> str:
    """The text of a token. Of one with a part of a character as OpenAI writes it: ``mark``, and escaped bytes."""
    text = token.piece.decode(errors="backslashreplace")
    return token.name or (text if text.encode() == token.piece else mark + text)


def text_offsets(pieces: Sequence[bytes]) -> list[int]:
    """The character of the joined text in which each piece begins."""
    begins = [0, *accumulate(map(len, pieces))]
    whole = b"".join(pieces).decode()
    starts = [0, *accumulate(len(character.encode()) for character in whole)]
    return [bisect_right(starts, begin) - 1 for begin in begins[:-1]]


def event_bytes(data: Any, event: str | None = None) -> bytes:
    """A server-sent event. JSON without breaks of lines takes one line of data."""
    name = f"event: {event}\n" if event else ""
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"{name}data: {data}\n\n".encode()
