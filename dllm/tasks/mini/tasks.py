"""All tasks of the suite: drawing items of a split, and judging answers.

``generate`` is a function of its arguments alone. The hash of an item's content decides its split, so that no name
set, puzzle or word set of the test split is ever trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from dllm.tasks.mini import lists, puzzles, records
from dllm.tasks.mini.items import Draw, Make, Sample
from dllm.tasks.mini.styles import and_list
from dllm.tasks.mini.word_lists import NOUNS, PLACES, VERBS
from dllm.tasks.parallelbench import scoring, sentences
from dllm.tasks.parallelbench.puzzles import spoken_list


def _words_to_sentence(draw: Draw) -> Sample:
    """A sentence from four words: many answers are right, and their words depend on each other."""
    subject, other = draw.rng.sample(NOUNS, 2)
    verb, place = draw.rng.choice(VERBS), draw.rng.choice(PLACES)
    words = [subject, other, verb, place]
    draw.rng.shuffle(words)
    answer = sentences.sentence_of(draw.rng, subject, verb, other, place)
    text = spoken_list(words)
    if not draw.plain:
        text = draw.rng.choice((text, text, and_list(words), draw.list_text(words)))
    return draw.sample("words_to_sentence", {"items": text}, answer, {"words": words}, " ".join(sorted(words)), 4)


TASKS: dict[str, Make] = {**lists.TASKS, **puzzles.TASKS, "words_to_sentence": _words_to_sentence, **records.TASKS}
LONG_ANSWERS = ("records", "assign")  # answers of 64 to 98 tokens where they are longest
SHORT_ANSWERS = tuple(task for task in TASKS if task not in LONG_ANSWERS)  # of at most 31 tokens from known names
# Tasks with many right answers, whose tokens depend on each other; the others have one.
FREE = ("shuffle", "insert_random", "remove_random", "replace_random", "latin_square", "words_to_sentence", "assign")
OF_NAMES = (*lists.TASKS, *records.TASKS)


def longest(task: str) -> int:
    """How many tokens an answer of known names needs at most, its end included."""
    return 128 if task in LONG_ANSWERS else 32


def draw(task: str, source: Draw, split: str = "test") -> Sample:
    """The next item of ``split`` (``train`` or ``test``)."""
    while True:
        sample = TASKS[task](source)
        if sample.split == split:
            return sample


def generate(
    task: str,
    seed: int,
    count: int,
    split: str = "test",
    sizes: tuple[int, int] | None = None,
    names: str = "known",
    wording: str = "trained",
) -> list[Sample]:
    """``count`` items of a task, the same for the same arguments; see ``Draw``."""
    source = Draw(Random(f"{task}/{seed}"), sizes, names, wording)
    return [draw(task, source, split) for _ in range(count)]


def score(sample: Sample, prediction: str) -> dict[str, float]:
    return judge(sample.task, sample.truth, prediction)


def judge(task: str, truth: Mapping[str, Any], prediction: str) -> dict[str, float]:
    """Scores of a prediction; ``score`` is 1 for any right answer, else 0."""
    match task:
        case "shuffle":
            return scoring.list_shuffle(prediction, truth["input"])
        case "insert_random":
            return scoring.list_random_insert(prediction, truth["input"], truth["word"])
        case "remove_random":
            return scoring.list_random_remove(prediction, truth["input"])
        case "replace_random":
            return scoring.list_random_replace(prediction, truth["input"], truth["word"])
        case "latin_square":
            return scoring.latin_square(prediction, truth["symbols"])
        case "sudoku":
            return scoring.sudoku(prediction, truth["solution"])
        case "words_to_sentence":
            return sentences.sentence_scores(prediction, truth["words"])
        case "records":
            return records.judge_records(prediction, truth["records"])
        case "assign":
            return records.judge_assign(prediction, truth["names"], truth["towns"])
    return scoring.list_match(prediction, truth["output"])
