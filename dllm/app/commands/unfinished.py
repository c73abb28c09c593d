"""What a decode that is stopped has so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from dllm.common.terminal import say
from dllm.contract import Turn

OPEN = "\N{HORIZONTAL ELLIPSIS}"  # stands for positions that are still open


class Unfinished:
    """An observer that keeps the last turn. text: of ids."""

    def __init__(self, text: Callable[[Sequence[int]], str]) -> None:
        self.text = text
        self.last: Turn | None = None

    def __call__(self, turn: Turn) -> None:
        self.last = turn

    def texts(self) -> Iterator[str]:
        """The answers of rows under way, as far as they are decided."""
        if self.last is None:
            return
        canvas, first = self.last.candidates, self.last.step.owner.first.tolist()
        for row, at in enumerate(first):
            if row not in self.last.finished:
                begin, end = int(canvas.start[at]), int(canvas.end[at])
                yield self._text(canvas.tokens[at, begin:end].tolist(), canvas.masked[at, begin:end].tolist())

    def say(self, most: int) -> None:
        """Print them, if any position is decided and there are not too many."""
        texts = list(self.texts())
        if 0 < len(texts) <= most and any(text.strip(OPEN) for text in texts):
            for text in texts:
                say(text)

    def _text(self, tokens: Sequence[int], masked: Sequence[bool]) -> str:
        runs = groupby(zip(tokens, masked, strict=True), key=lambda one: one[1])
        return "".join(OPEN if is_open else self.text([token for token, _ in run]) for is_open, run in runs)
