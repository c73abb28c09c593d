"""What is refused of a decision, beside what a value of one kind refuses by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dllm.errors import TooLong, UserError


class TooManyCanvases(UserError):
    """Questions that take more canvases than may be read at once. most: how many those are."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the questions take more than {most} canvases. Ask fewer, or with estimator=marginal.")


class Unanswerable(UserError):
    """A question that cannot be laid on a canvas. name: its own; sentence: why."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"question {name!r}: {sentence}")
        self.name, self.sentence = name, sentence


@contextmanager
def of_question(name: str) -> Iterator[None]:
    """What is refused is refused of this question."""
    try:
        yield
    except (TooLong, TooManyCanvases, Unanswerable):
        raise
    except UserError as error:
        raise Unanswerable(name, str(error)) from None
