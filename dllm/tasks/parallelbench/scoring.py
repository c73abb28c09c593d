"""ParallelBench's scorers: scores of 0 or 1 for a prediction, lenient and strict.

The lenient reading forgives missing brackets and quotes, the strict one wants exact ``["A", "B"]`` syntax. Names follow
the published metrics. Case matters everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


def write_list(items: Sequence[str]) -> str:
    """A list in the benchmark's syntax: ``["A", "B"]``."""
    return '["' + '", "'.join(items) + '"]'


def _inside_brackets(text: str) -> str:
    """The text between the last ``[`` and the next ``]``; without one of them, all text on that side."""
    return text.rpartition("[")[2].partition("]")[0]


def read_lenient(text: str) -> list[str]:
    """Items of the last list in the text, with any quoting."""
    return [piece.strip(' "') for piece in _inside_brackets(text).split(",") if piece.strip()]


def read_strict(text: str) -> list[str] | None:
    """Items of the last list in the text, or None unless it is written exactly ``["A", "B"]``."""
    if "[" not in text or "]" not in text.rpartition("[")[2]:
        return None
    items = _inside_brackets(text).split(", ")
    are_quoted = all(item.startswith('"') and item.endswith('"') and '"' not in item[1:-1] for item in items)
    return [item[1:-1] for item in items] if are_quoted else None


def _both(prediction: str, accept: Callable[[list[str]], bool]) -> dict[str, float]:
    strict = read_strict(prediction)
    return {
        "score": float(accept(read_lenient(prediction))),
        "score_strict": float(strict is not None and accept(strict)),
    }


def list_match(prediction: str, truth: Sequence[str]) -> dict[str, float]:
    """The items equal the truth, in order (copy, reverse, sort and the *_index tasks)."""
    return _both(prediction, lambda items: items == list(truth))


def list_shuffle(prediction: str, source: Sequence[str]) -> dict[str, float]:
    """A permutation of the ``source`` list other than the list itself."""
    return _both(prediction, lambda items: Counter(items) == Counter(source) and items != list(source))


def list_random_insert(prediction: str, source: Sequence[str], word: str) -> dict[str, float]:
    """The ``source`` list with the word put in anywhere."""

    def accept(items: list[str]) -> bool:
        if word not in items:
            return False
        at = items.index(word)
        return items[:at] + items[at + 1 :] == list(source)

    return _both(prediction, accept)


def list_random_remove(prediction: str, source: Sequence[str]) -> dict[str, float]:
    """The ``source`` list without exactly one of its names."""

    def accept(items: list[str]) -> bool:
        missing = set(source) - set(items)
        if len(items) != len(source) - 1 or len(missing) != 1:
            return False
        at = list(source).index(missing.pop())
        return items == [*source[:at], *source[at + 1 :]]

    return _both(prediction, accept)


def list_random_replace(prediction: str, source: Sequence[str], word: str) -> dict[str, float]:
    """The ``source`` list with the word in place of one name."""

    def accept(items: list[str]) -> bool:
        if len(items) != len(source) or word not in items:
            return False
        answer = list(source)
        answer[items.index(word)] = word
        return items == answer

    return _both(prediction, accept)


def latin_square(prediction: str, symbols: Sequence[str]) -> dict[str, float]:
    """The first n lines that hold exactly the n symbols form a Latin square. There is no strict reading."""
    alphabet, size = set(symbols), len(set(symbols))
    rows = [[cell.strip() for cell in line.split(",")] for line in prediction.split("\n")]
    rows = [row for row in rows if set(row) == alphabet][:size]
    columns = zip(*rows, strict=False)  # a row may repeat a symbol and be longer; the reference allows it
    score = float(len(rows) == size and all(set(column) == alphabet for column in columns))
    return {"score": score, "score_strict": score}


def sudoku(prediction: str, solution: str) -> dict[str, float]:
    """The lines with exactly four digits, among other signs, are the solution's; strict: bare lines."""
    truth = [_digits(line) for line in solution.strip().split("\n")]
    lenient = [row for line in prediction.split("\n") if len(row := _digits(line)) == 4]
    bare = [line.strip() for line in prediction.split("\n") if line.strip()]
    strict = all(len(line) == 4 and line.isdecimal() for line in bare) and [_digits(line) for line in bare] == truth
    return {"score": float(lenient == truth), "score_strict": float(strict)}


def _digits(line: str) -> list[int]:
    return [int(character) for character in line if character.isdecimal()]


def inclusion(prediction: str, words: Sequence[str]) -> float:
    """1 if every word occurs in the text, else 0. Grammar is judged elsewhere."""
    return float(all(word in prediction for word in words))
