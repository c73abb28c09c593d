"""How a model marks what it thinks before it answers, as far as its chat template says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThoughtMarks:
    """What is around a thought."""

    begin: str  # the text that begins it
    end: str  # the text that ends it


# Qwen3's, SDAR's, TraDo's and Nemotron's; DiffusionGemma's, whose thoughts are a channel of this name; Mistral's.
KNOWN_MARKS = (
    ThoughtMarks("<think>", "</think>"), ThoughtMarks("<|channel>thought", "<channel|>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
)  # fmt: skip


def thought_marks(template: str | None) -> ThoughtMarks | None:
    """The marks that a chat template writes or looks for. None: it knows no thoughts."""
    return next((marks for marks in KNOWN_MARKS if marks.end in (template or "")), None)
