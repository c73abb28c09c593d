"""The tasks of suites r1 and r2. r1: the paper's release (code of October 2025); r2: its rewrite (February 2026).

Names, counts, answer budgets (tokens), metrics and numbers of solved examples are the benchmark's (arXiv 2510.04767).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from dllm.tasks.parallelbench import puzzles, waiting_line
from dllm.tasks.parallelbench.waiting_line import MakeRecord

LEVELS = ("easy", "medium", "hard")
LIST_METRICS = {
    "shuffle": "list_shuffle_score",
    "insert_random": "list_random_insert_score",
    "remove_random": "list_random_remove_score",
    "replace_random": "list_random_replace_score",
}


@dataclass(frozen=True)
class TaskSpec:
    name: str  # as ParallelBench calls it
    metric: str  # key of METRICS
    budget: int  # tokens of an answer
    template: str  # key of templates.yaml
    make: MakeRecord | None  # makes one question; None: only a copy of the benchmark has questions
    count: int = 100  # items of it
    lengths: tuple[int, int] | None = None  # of its lists, each equally often; None: it has no lists
    shot: bool = False  # a solved example is before every question
    extra: bool = False  # not one of the 17 tasks, asked by its name

    @property
    def short(self) -> str:
        return self.name.rpartition("/")[2]


def _line(operation: str, group: str, lengths: tuple[int, int], budget: int, extra: bool) -> TaskSpec:
    make, metric = waiting_line.list_maker(operation, lengths), LIST_METRICS.get(operation, "list_match_score")
    template = f"waiting_line/{operation}"
    return TaskSpec(f"{group}/{operation}", metric, budget, template, make, lengths=lengths, shot=True, extra=extra)


def _words(name: str, level: str, count: int, metric: str, extra: bool = False) -> TaskSpec:
    template = "words_to_sentence" + ("/one" if count == 1 else "")
    return TaskSpec(name, metric, 64, template, puzzles.words_maker(level, count), extra=extra)


def _r1() -> list[TaskSpec]:
    counts = (1, 3, 4, 5, 6, 7)
    metric, group = "sentence_to_words_score", "words_to_sentence"
    return [
        *(_line(operation, "waiting_line", (3, 6), 32, False) for operation in waiting_line.OPERATIONS),
        _text("paraphrase_summarize/chatgpt-paraphrases", "paraphrase_score"),
        _text("paraphrase_summarize/samsum", "summary_score"),
        *(_words(f"{group}/{level}", level, 4, metric) for level in LEVELS),
        _latin("puzzle/latin_square_n4"),
        _sudoku("puzzle/sudoku_n4_12", 108, puzzles.sudoku_maker(4, "sudoku", "0")),
        *(_line(operation, "waiting_line_n15", (15, 15), 128, True) for operation in waiting_line.OPERATIONS),
        *(_words(f"{group}/{level}_n{n}", level, n, metric, True) for level in LEVELS for n in counts),
    ]


def _r2() -> list[TaskSpec]:
    metric, group = "sentence_to_words_grammar", "text_writing/words_to_sentence"
    return [
        *(_line(operation, "waiting_line", (3, 6), 32, False) for operation in waiting_line.OPERATIONS),
        replace(_text("text_writing/paraphrasing", "paraphrase_score"), template=PARAPHRASE),
        replace(_text("text_writing/summarization", "summary_score"), template=SUMMARY),
        *(_words(f"{group}_{level}", level, 4, metric) for level in LEVELS),
        replace(_latin("puzzles/latin_square_n4"), template="puzzle/latin_square_n4"),
        _sudoku("puzzles/sudoku_n4", 100, puzzles.sudoku_maker(8, "puzzle", "_")),
        *(_line(operation, "waiting_line_n15", (15, 15), 128, True) for operation in waiting_line.OPERATIONS),
    ]


PARAPHRASE, SUMMARY = "paraphrase_summarize/chatgpt-paraphrases", "paraphrase_summarize/samsum"


def _text(name: str, metric: str) -> TaskSpec:
    return TaskSpec(name, metric, 64, name, None)


def _latin(name: str) -> TaskSpec:
    return TaskSpec(name, "latin_square_score", 64, name, puzzles.make_latin_square, shot=True)


def _sudoku(name: str, count: int, make: MakeRecord) -> TaskSpec:
    return TaskSpec(name, "sudoku_score", 64, name.replace("puzzles/", "puzzle/"), make, count, shot=True)


SUITES: dict[str, dict[str, TaskSpec]] = {
    suite: {spec.name: spec for spec in specs} for suite, specs in (("r1", _r1()), ("r2", _r2()))
}
# What ends an answer early: the rewrite generates up to a blank line.
STOP_STRINGS: dict[str, tuple[str, ...]] = {"r1": (), "r2": ("\n\n",)}


@cache
def templates(suite: str) -> dict[str, str]:
    """Our wording for a suite, by template key."""
    texts: dict[str, dict[str, str]] = yaml.safe_load((Path(__file__).parent / "data" / "templates.yaml").read_text())
    if suite == "r1":
        return texts["r1"]
    return {key: text.rstrip("\n") for key, text in {**texts["r1"], **texts[suite]}.items()}
