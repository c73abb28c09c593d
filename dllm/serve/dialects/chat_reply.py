"""OpenAI's chat and completions: a reply whole and as its chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from dllm.serve.dialects.reply_events import (
    CallPiece,
    CallStart,
    CanvasSnapshot,
    ChoiceEnd,
    ReplyChoice,
    ReplyEvent,
    ReplyFailure,
    ReplyStart,
    TextPiece,
    ThoughtPiece,
    TokenScore,
)
from dllm.serve.dialects.tools import ToolCall
from dllm.serve.dialects.writer import Writer, event_bytes, scored_tokens, token_text

SNAPSHOT = "diffusion.snapshot"


@dataclass
class ChatWriter(Writer):
    """Of chat. A call that is forced has no text."""

    object: str = "chat.completion"  # of the whole reply
    chunk: str = "chat.completion.chunk"  # of a piece of the stream
    prefix: str = "chatcmpl"  # of ids

    def pieces(self, event: ReplyEvent) -> Iterator[bytes]:
        match event:
            case ReplyStart():
                yield from self._begin()
            case TextPiece(choice, text) if text:
                yield self._part(choice, self._text(text))
            case ThoughtPiece(choice, text):
                yield self._part(choice, {"delta": thought_fields(text)})
            case CallStart(choice, at, name, arguments):
                call = {"index": at, **self._call(choice, at, ToolCall(name, arguments))}
                yield self._part(choice, {"delta": {"tool_calls": [call]}})
            case CallPiece(choice, at, arguments):
                piece = {"index": at, "function": {"arguments": arguments}}
                yield self._part(choice, {"delta": {"tool_calls": [piece]}})
            case CanvasSnapshot():
                yield event_bytes({**self._chunk([]), "diffusion": self._canvas(event)}, SNAPSHOT)
            case ChoiceEnd(choice):
                last = {"index": choice, **self._text(), **self._ending(self.answers[choice])}
                yield self._with_usage(self._chunk([last]))
                yield from self._end() if self.complete else ()
            case ReplyFailure(error):
                yield event_bytes(error.to_json())

    def whole(self) -> dict[str, Any]:
        choices = [
            {"index": choice, **self._content(choice, answer), **self._ending(answer)}
            for choice, answer in self.answers.items()
        ]
        return {**self._head(self.object), "choices": choices, "usage": self.usage(), **self._prompt_ids()}

    def _begin(self) -> Iterator[bytes]:
        """A chunk of each choice that names who speaks."""
        use = self.parsed.tools
        delta = {"role": "assistant", "content": None if use is not None and use.must_call else ""}
        for choice in self.answers:
            yield self._part(choice, {"delta": delta}, **self._prompt_ids())

    def _end(self) -> Iterator[bytes]:
        if self.parsed.request.include_usage:
            yield event_bytes({**self._chunk([]), "usage": self.usage()})
        yield event_bytes("[DONE]")

    def _content(self, choice: int, answer: ReplyChoice) -> dict[str, Any]:
        """What a choice says as a whole."""
        calls = [self._call(choice, at, call) for at, call in enumerate(answer.calls)]
        return {
            "message": {
                "role": "assistant",
                "content": (answer.text or None) if calls else answer.text,
                **(thought_fields(answer.thought) if answer.thought else {}),
                **({"tool_calls": calls} if calls else {}),
            }
        }

    def _text(self, text: str | None = None) -> dict[str, Any]:
        """New text of a choice; None: it has ended."""
        return {"delta": {} if text is None else {"content": text}}

    def _call(self, choice: int, at: int, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{self.ident}_{choice}_{at}", "type": "function", "function": function}

    def _part(self, choice: int, body: dict[str, Any], **beside: Any) -> bytes:
        """What a choice says next."""
        choices = {"index": choice, **body, "logprobs": None, "finish_reason": None}
        return self._with_usage({**self._chunk([choices]), **beside})

    def _with_usage(self, chunk: dict[str, Any]) -> bytes:
        """A chunk, with the usage so far if each is to tell it."""
        return event_bytes({**chunk, "usage": self._usage()} if self.parsed.request.usage_so_far else chunk)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            **self._head(self.chunk),
            "choices": choices,
            **({"usage": None} if self.parsed.request.include_usage else {}),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": f"{self.prefix}-{self.ident}", "object": kind, "created": self.created}
        return {**head, "model": self.parsed.model}

    def _prompt_ids(self) -> dict[str, list[int]]:
        """The prompt's ids where vLLM tells them: in chat beside the choices, which all have the same."""
        request, tells = self.parsed.jobs[0].request, self.parsed.request.return_token_ids
        return {"prompt_token_ids": list(request.tokens[: request.answer_start])} if tells else {}

    def usage(self) -> dict[str, Any]:
        """The prompt counts once, the answers all."""
        thought_tokens = sum(answer.end.thought_tokens for answer in self.answers.values() if answer.end is not None)
        usage: dict[str, Any] = self._usage()
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.parsed.thinking is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": thought_tokens}
        return usage

    def _usage(self) -> dict[str, int]:
        prompt, answer = self.parsed.prompt_tokens, self.token_count
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def _ending(self, answer: ReplyChoice) -> dict[str, Any]:
        """How a choice ends, with its log-probabilities."""
        end, use = answer.end, self.parsed.tools
        assert end is not None
        has_calls = use is not None and not use.is_named and answer.calls
        drawn_logprobs = (
            {"drawn_logprobs": [token.drawn_logprob for token in end.tokens]} if self.parsed.request.logprobs else {}
        )
        return {
            "logprobs": self._logprobs(end.tokens) if self.parsed.request.logprobs else None,
            "finish_reason": "tool_calls" if has_calls else end.reason,
            **self._ids(end),
            **end.replay,
            "diffusion": self.diffusion(answer, **drawn_logprobs),
        }

    def _ids(self, end: ChoiceEnd) -> dict[str, Any]:
        return {name: ids for name, ids in end.ids.items() if name == "token_ids"}

    def _logprobs(self, tokens: tuple[TokenScore, ...]) -> dict[str, Any]:
        """Of each token at its commit."""
        return {"content": scored_tokens(tokens), "refusal": None}

    def _canvas(self, shot: CanvasSnapshot) -> dict[str, Any]:
        """A choice's canvas, in a chunk without choices: OpenAI's client hands on every event whatever its name."""
        now, prompts = shot.progress, self.prompts
        ends, words = frozenset((prompts.ids.eos, *prompts.ids.stops)), prompts.words(now.tokens)
        guesses = {
            at: [prompts.words([token])[0], round(sure, 4) if sure == sure else None]
            for at, (token, sure) in now.guesses.items()
        }
        canvas = {
            "index": shot.choice,
            "turn": now.turn,
            "block": now.block,
            "final": now.final,
            "words": [None if is_masked else word for is_masked, word in zip(now.masked, words, strict=True)],
            "turns": now.turns,
            "guesses": guesses,
            "ends": [at for at, token in enumerate(now.tokens) if token in ends],
            "guessed_ends": [at for at, (token, _) in now.guesses.items() if token in ends],
        }
        if prompts.ids.mask is None:
            canvas["shown"] = {at: words[at] for at, is_masked in enumerate(now.masked) if is_masked}
        if now.mixtures:
            canvas["mixtures"] = {
                at: [prompts.words([token])[0], round(share, 4)] for at, (token, share) in now.mixtures.items()
            }
        return canvas


@dataclass
class CompletionWriter(ChatWriter):
    """Of completions, which have neither roles nor calls."""

    object: str = "text_completion"  # of the whole reply
    chunk: str = "text_completion"  # of a piece of the stream
    prefix: str = "cmpl"  # of ids

    def _begin(self) -> Iterator[bytes]:
        return iter(())

    def _content(self, choice: int, answer: ReplyChoice) -> dict[str, Any]:
        return {"text": answer.text}

    def _text(self, text: str | None = None) -> dict[str, Any]:
        return {"text": text or ""}

    def _prompt_ids(self) -> dict[str, list[int]]:
        return {}

    def _ids(self, end: ChoiceEnd) -> dict[str, Any]:
        return end.ids

    def _logprobs(self, tokens: tuple[TokenScore, ...]) -> dict[str, Any]:
        likeliest = any(job.likeliest for job in self.parsed.jobs)
        top = [{token_text(other, "bytes:"): other.logprob for other in token.others} for token in tokens]
        return {
            "tokens": [token_text(token, "bytes:") for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top if likeliest else None,
            "text_offset": text_offsets([token.piece for token in tokens]),
        }


def thought_fields(text: str) -> dict[str, str]:
    """What a model thinks, as servers call it: vLLM's newer name, and its older one, which is DeepSeek's."""
    return {"reasoning": text, "reasoning_content": text}


def text_offsets(pieces: Sequence[bytes]) -> list[int]:
    """The character of the joined text in which each piece begins."""
    begins = [0, *accumulate(map(len, pieces))]
    whole = b"".join(pieces).decode()
    starts = [0, *accumulate(len(character.encode()) for character in whole)]
    return [bisect_right(starts, begin) - 1 for begin in begins[:-1]]
