"""The text of an answer while it is decoded: what can be sent, since nothing that follows will change it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dllm.contract.canvas import Request
from dllm.record.collector import first_stop, within
from dllm.record.results import Result

PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for bytes that are not a whole character yet


@dataclass(frozen=True)
class Ending:
    """How an answer ends."""

    text: str  # what a plain reply holds
    tokens: list[int]  # those before the end of text or the stop string, as ids
    reason: str  # ``stop`` or ``length``, in OpenAI's words
    stop: str | None = None  # the stop string that ended it


@dataclass
class AnswerText:
    """Follows one answer from turn to turn. What ``follow`` and ``finish`` return makes up the reply's text."""

    text: Callable[[Sequence[int]], str]  # of token ids
    ends: Collection[int]  # ids that end an answer
    stop: tuple[str, ...] = ()  # strings that end it
    # token ids before an infilling, which belong to its text; None: a plain answer, which ends at its first end of text
    head: Sequence[int] | None = None
    least: int = 0  # tokens of the answer in whose text no stop string may begin
    sent_text: str = ""  # of the pieces so far
    has_marks: bool = False  # ``text`` writes more than results do: the marks around a thought

    @staticmethod
    def of(
        request: Request,
        text: Callable[[Sequence[int]], str],
        ends: Collection[int],
        stop: tuple[str, ...],
        least: int = 0,
        has_marks: bool = False,
    ) -> AnswerText:
        """The text of a request's answer. An infilling has no stop strings: its text is given in part."""
        stop = stop if request.infill_prefix is None else ()
        return AnswerText(text, frozenset(ends), stop, request.infill_prefix, least, has_marks=has_marks)

    def follow(self, tokens: Sequence[int], final: int) -> tuple[str, Ending | None]:
        """What is new, and the answer's end if a stop string has been found. tokens: the answer; its first ``final``
        never change again."""
        text_tokens, has_ended = self._text_tokens(tokens[:final])
        text = self.text([*(self.head or ()), *text_tokens])
        safe = text if has_ended else text.rstrip(PARTIAL_CHARACTER)
        cut, final_length = self._cut(safe, text_tokens), len(safe) if has_ended else open_tail(safe, self.stop)
        # A longer stop string that began before ``cut`` may still come: it would cut earlier.
        if cut is not None and cut <= final_length:
            tokens = within(text_tokens, cut, self.text)
            return self._new(safe[:cut]), Ending(safe[:cut], tokens, "stop", self._stop_at(safe, cut))
        return self._new(safe[:final_length]), None

    def finish(self, result: Result) -> tuple[str, Ending]:
        """The rest, and the answer's end."""
        tokens = list(result.tokens)
        text = self.text(tokens) if self.has_marks else result.text
        cut, stop = self._cut(text, tokens), None
        if cut is not None:
            text, tokens, stop = text[:cut], within(tokens, cut, self.text), self._stop_at(text, cut)
        # A constrained text ends where its language does, be it on the last of the masks.
        cut_off = cut is None and result.stop_reason == "length" and result.constraint is None
        reason = "length" if cut_off else "stop"
        return self._new(text), Ending(text, tokens, reason, stop)

    def ending_so_far(self, tokens: Sequence[int], final: int) -> Ending:
        """What has been returned of an answer whose first ``final`` tokens never change again, as if it ended there."""
        text_tokens, head = self._text_tokens(tokens[:final])[0], self.head or ()
        sent_tokens = within(text_tokens, len(self.sent_text), lambda tokens: self.text([*head, *tokens]))
        return Ending(self.sent_text, sent_tokens, "length")

    def _cut(self, text: str, tokens: Sequence[int]) -> int | None:
        """Where the first stop string begins that counts; None: none. tokens: of the text."""
        begin = len(self.text(tokens[: self.least])) if self.stop and self.least else 0
        cut = first_stop(text[begin:], self.stop)
        return None if cut is None else begin + cut

    def _stop_at(self, text: str, at: int) -> str:
        """The stop string that begins there; of several the one that was sent first."""
        return next(string for string in self.stop if text.startswith(string, at))

    def _text_tokens(self, tokens: Sequence[int]) -> tuple[list[int], bool]:
        """The tokens that have text, and whether the answer ends after them."""
        if self.head is not None:
            return [token for token in tokens if token not in self.ends], False
        end = next((at for at, token in enumerate(tokens) if token in self.ends), None)
        return list(tokens[:end]), end is not None

    def _new(self, text: str) -> str:
        """What ``text`` adds to what was sent. A prefix that is final never becomes shorter or another one."""
        assert text.startswith(self.sent_text), "the final text of an answer has changed"
        new, self.sent_text = text[len(self.sent_text) :], text
        return new


def open_tail(text: str, stop: Sequence[str]) -> int:
    """Where the longest tail begins that may still become a stop string; the text's length if none can."""
    longest = max(map(len, stop), default=0)
    starts = range(max(0, len(text) - longest + 1), len(text))
    return next((at for at in starts if any(string.startswith(text[at:]) for string in stop)), len(text))
