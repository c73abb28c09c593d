"""What a model thinks before it answers, told apart from the answer, whole and piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dllm.models.text.chat_template import ThoughtMarks
from dllm.models.text.tokenizer import Tokenizer
from dllm.serve.dialects.stream import open_tail

PROMPT_END = 32  # tokens at the end of a prompt that tell whether a thought is open


@dataclass(frozen=True)
class Thinking:
    """How the text of an answer begins with a thought, if it does."""

    marks: ThoughtMarks  # around it
    is_open: bool  # the prompt ends inside of one; else the answer's first text must be the mark

    @staticmethod
    def behind(prompt: Sequence[int], tokenizer: Tokenizer | None) -> Thinking | None:
        """Of an answer that follows the ids of a prompt. None: the chat template has no thoughts, or ended one there,
        as Qwen's does under ``enable_thinking=False``."""
        marks = None if tokenizer is None else tokenizer.thought_marks
        if marks is None or tokenizer is None:
            return None
        tail = tokenizer.decode(prompt[-PROMPT_END:], skip_special=False).rstrip()
        return None if tail.endswith(marks.end) else Thinking(marks, tail.endswith(marks.begin))

    def tokens(self, ids: Sequence[int], text: Callable[[Sequence[int]], str]) -> int:
        """How many ids of an answer are its thought, with its marks. text: of ids."""
        whole = text(ids)
        splitter = ThoughtSplitter(self)
        splitter.feed(whole, final=True)
        if not splitter.thinks:
            return 0
        end = whole.find(self.marks.end)
        cut = len(whole) if end < 0 else end + len(self.marks.end)
        return bisect_right(range(len(ids) + 1), cut, key=lambda count: len(text(ids[:count]))) - 1


class ThoughtSplitter:
    """Splits one text into (text, whether it is thought). White space around a thought belongs to neither."""

    def __init__(self, thinking: Thinking) -> None:
        self.marks, self.thinks = thinking.marks, thinking.is_open  # thinks: there is a thought
        self.part, self.unmarked = "unknown", "thought" if thinking.is_open else "answer"  # if it begins with no mark
        self.waiting, self.bare = "", True  # text that waits; nothing of the present part has been told

    def feed(self, text: str, final: bool = False) -> list[tuple[str, bool]]:
        """What new text makes certain; final: no more comes."""
        self.waiting += text
        if self.part == "unknown":
            self._begin(final)
        pieces = self._thought(final) if self.part == "thought" else []
        if self.part == "answer":
            pieces += self._pieces(self.waiting.lstrip() if self.bare else self.waiting, False)
            self.waiting = ""
        return pieces

    def _begin(self, final: bool) -> None:
        """Find out whether the text begins with a thought, if that is known by now."""
        text = self.waiting.lstrip()
        if text.startswith(self.marks.begin):
            self.part, self.thinks, self.waiting = "thought", True, text[len(self.marks.begin) :]
        elif final or not self.marks.begin.startswith(text):  # else the mark may still come
            self.part, self.bare = self.unmarked, self.thinks

    def _thought(self, final: bool) -> list[tuple[str, bool]]:
        """What can be told of the thought; the white space at its end waits for what follows."""
        end = self.waiting.find(self.marks.end)
        sure = end if end >= 0 else len(self.waiting) if final else open_tail(self.waiting, (self.marks.end,))
        text, after = self.waiting[:sure].lstrip() if self.bare else self.waiting[:sure], self.waiting[sure:]
        pieces = self._pieces(body := text.rstrip(), True)
        self.waiting = text[len(body) :] + after
        if end >= 0:
            self.part, self.bare, self.waiting = "answer", True, after[len(self.marks.end) :]
        return pieces

    def _pieces(self, text: str, is_thought: bool) -> list[tuple[str, bool]]:
        self.bare = self.bare and not text
        return [(text, is_thought)] * bool(text)
