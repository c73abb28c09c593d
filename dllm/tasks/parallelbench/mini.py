"""The suite ``mini``: lists, puzzles and sentences for the models that come with dllm.

``generate`` depends on its arguments alone. The hash of an item's content decides its split, so that no name set,
puzzle or word set of the test split is ever trained on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dllm.tasks.parallelbench import scoring, sentences
from dllm.tasks.parallelbench import vocabulary as words
from dllm.tasks.parallelbench.scoring import write_list
from dllm.tasks.parallelbench.sudoku import GRIDS, solutions

LENGTHS = (3, 5)
TEST_SHARE = 8  # one item in eight is held back


@dataclass(frozen=True, slots=True)
class MiniItem:
    """One item: what the user asks, one right answer, and what the scorer compares with."""

    task: str
    prompt: str
    answer: str
    truth: dict[str, Any] = field(hash=False)
    key: str  # the content that decides the split

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def score(self, prediction: str) -> dict[str, float]:
        """See ``judge``."""
        return judge(self.task, self.truth, prediction)

    @property
    def split(self) -> str:
        return "test" if zlib.crc32(self.key.encode()) % TEST_SHARE == 0 else "train"


MakeMiniItem = Callable[[Random, tuple[int, int]], MiniItem]


def _list_sample(task: str, ask: str, given: list[str], answer: list[str], word: str | None = None) -> MiniItem:
    truth: dict[str, Any] = {"input": given, "output": answer}
    if word is not None:
        truth["word"] = word
    return MiniItem(task, f"{ask}:\n{write_list(given)}", write_list(answer), truth, " ".join(sorted(given)))


def _draw(rng: Random, lengths: tuple[int, int]) -> tuple[list[str], str]:
    """Some names, and one more that is not among them."""
    *given, word = rng.sample(words.FIRST_NAMES, rng.randint(*lengths) + 1)
    return given, word


def _copy(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    given, _ = _draw(rng, lengths)
    return _list_sample("copy", "Copy the list", given, given)


def _reverse(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    given, _ = _draw(rng, lengths)
    return _list_sample("reverse", "Reverse the list", given, given[::-1])


def _sort(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    given, _ = _draw(rng, lengths)
    return _list_sample("sort", "Sort the list", given, sorted(given))


def _shuffle(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    given, _ = _draw(rng, lengths)
    answer = given
    while answer == given:
        answer = rng.sample(given, len(given))
    return _list_sample("shuffle", "Shuffle the list", given, answer)


def _insert(task: str) -> MakeMiniItem:
    def make(rng: Random, lengths: tuple[int, int]) -> MiniItem:
        given, word = _draw(rng, lengths)
        at = rng.randint(0, len(given))
        place = f"at position {at}" if task == "insert_index" else "anywhere"
        return _list_sample(task, f'Insert "{word}" {place}', given, given[:at] + [word] + given[at:], word)

    return make


def _remove(task: str) -> MakeMiniItem:
    def make(rng: Random, lengths: tuple[int, int]) -> MiniItem:
        given, _ = _draw(rng, lengths)
        at = rng.randrange(len(given))
        place = f"position {at}" if task == "remove_index" else "anyone"
        return _list_sample(task, f"Remove {place}", given, given[:at] + given[at + 1 :])

    return make


def _replace(task: str) -> MakeMiniItem:
    def make(rng: Random, lengths: tuple[int, int]) -> MiniItem:
        given, word = _draw(rng, lengths)
        at = rng.randrange(len(given))
        place = f"position {at}" if task == "replace_index" else "anyone"
        answer = given[:at] + [word] + given[at + 1 :]
        return _list_sample(task, f'Replace {place} with "{word}"', given, answer, word)

    return make


def _latin_square(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    symbols = rng.sample(words.MINI_SYMBOLS, 4)
    rows = [symbols[i:] + symbols[:i] for i in range(4)]
    rng.shuffle(rows)
    columns = list(zip(*rows, strict=True))
    rng.shuffle(columns)
    answer = "\n".join(",".join(row) for row in zip(*columns, strict=True))
    prompt = "Latin square:\n" + ",".join(symbols)
    return MiniItem("latin_square", prompt, answer, {"symbols": symbols}, "".join(sorted(symbols)))


def _sudoku(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    while True:
        grid = rng.choice(GRIDS)
        empty = set(rng.sample(range(16), 4))
        puzzle = "".join("0" if i in empty else digit for i, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1:
            break
    shown, solved = ("\n".join(cells[i : i + 4] for i in range(0, 16, 4)) for cells in (puzzle, grid))
    return MiniItem("sudoku", f"Solve the sudoku:\n{shown}", solved, {"solution": solved}, puzzle)


def _words_to_sentence(rng: Random, lengths: tuple[int, int]) -> MiniItem:
    subject, other = rng.sample(words.NOUNS, 2)
    verb, place = rng.choice(words.VERBS), rng.choice(words.PLACES)
    given = [subject, other, verb, place]
    rng.shuffle(given)
    prompt = f"Write a sentence with {', '.join(given[:3])}, and {given[3]}:"
    answer = sentences.sentence_of(rng, subject, verb, other, place)
    return MiniItem("words_to_sentence", prompt, answer, {"words": given}, " ".join(sorted(given)))


TASKS: dict[str, MakeMiniItem] = {
    "copy": _copy,
    "reverse": _reverse,
    "sort": _sort,
    "shuffle": _shuffle,
    **{task: _insert(task) for task in ("insert_index", "insert_random")},
    **{task: _remove(task) for task in ("remove_index", "remove_random")},
    **{task: _replace(task) for task in ("replace_index", "replace_random")},
    "latin_square": _latin_square,
    "sudoku": _sudoku,
    "words_to_sentence": _words_to_sentence,
}


def draw(task: str, rng: Random, split: str = "test", lengths: tuple[int, int] = LENGTHS) -> MiniItem:
    """The next item of ``split`` (``train`` or ``test``) that the generator ``rng`` yields."""
    while True:
        sample = TASKS[task](rng, lengths)
        if sample.split == split:
            return sample


def generate(
    task: str, seed: int, count: int, split: str = "test", lengths: tuple[int, int] = LENGTHS
) -> list[MiniItem]:
    """``count`` items of a task, the same for the same arguments."""
    rng = Random(f"{task}/{seed}")
    return [draw(task, rng, split, lengths) for _ in range(count)]


def judge(task: str, truth: Mapping[str, Any], prediction: str) -> dict[str, float]:
    """Scores of a prediction; ``score`` is 1 when it is a right answer, whichever of them, else 0."""
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
    return scoring.list_match(prediction, truth["output"])
