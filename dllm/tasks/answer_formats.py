"""What a well-formed answer of a task looks like, right or wrong, as a constraint; and whether a text is one.

A shape says what a client would write down before asking: how long a list is and which words it may hold, which members
a record has. It does not say which answer is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.automata import automaton_of
from dllm.constraints.kinds import Constraint, JsonSchema, Regex

AUTOMATON_CACHE = 1500  # of shapes, more than the suite mini has; one takes 7 ms and some 40 kB
LIBRARIES = {"json_schema": "jsonschema", "grammar": "lark"}  # of the extra dllm[constraints]
MAX_DISTINCT = 6  # things that a shape tells apart: their orders take 718 states, those of eight 3,486
LONGER = {"insert_index": 1, "insert_random": 1, "remove_index": -1, "remove_random": -1}  # by how many words

Truth = Mapping[str, Any]


def shape_of(task: str, truth: Truth) -> Constraint | None:
    """The shape of an item's answers. None: for this task nothing is said."""
    makes: dict[str, Callable[[Truth], Constraint]] = {
        "latin_square": latin_square_shape,
        "sudoku": sudoku_shape,
        "records": records_shape,
        "assign": assign_shape,
    }
    if task in makes:
        return makes[task](truth)
    return list_shape(truth, LONGER.get(task, 0)) if "input" in truth else None


def list_shape(truth: Truth, more: int) -> Constraint:
    """A JSON list of the words that the task names, that many ``more`` than it gives; while they are few, each once."""
    words = sorted({*truth["input"], *([truth["word"]] if "word" in truth else [])})
    once = {"uniqueItems": True} if len(words) <= MAX_DISTINCT else {}
    return exactly(len(truth["input"]) + more, {"enum": words}, **once)


def exactly(count: int, entry: Mapping[str, Any], **more: Any) -> Constraint:
    """A JSON list of ``count`` entries under one schema."""
    return JsonSchema({"type": "array", "items": entry, "minItems": count, "maxItems": count, **more})


def latin_square_shape(truth: Truth) -> Constraint:
    """As many rows as there are symbols, each of as many, and while they are few of all of them."""
    symbols: Sequence[str] = [re.escape(symbol) for symbol in truth["symbols"]]
    symbol, more = f"(?:{'|'.join(symbols)})", len(symbols) - 1
    if len(symbols) <= MAX_DISTINCT:
        row = f"(?:{'|'.join(map(','.join, permutations(symbols)))})"
    else:
        row = f"{symbol}(?:,{symbol}){{{more}}}"
    return Regex(f"{row}(?:\n{row}){{{more}}}")


def sudoku_shape(truth: Truth) -> Constraint:
    """Digits where the solution has digits."""
    digits = "".join(sorted({sign for sign in truth["solution"] if sign.isdigit()}))
    return Regex(re.sub(r"\d", f"[{digits}]", truth["solution"]))


def records_shape(truth: Truth) -> Constraint:
    """As many records as are given, of the kinds that these have."""
    kinds = {
        name: {"type": "integer" if isinstance(value, int) else "string"} for name, value in truth["records"][0].items()
    }
    entry = {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}
    return exactly(len(truth["records"]), entry)


def assign_shape(truth: Truth) -> Constraint:
    """A name and a town for each that is given."""
    properties = {"name": {"enum": truth["names"]}, "town": {"enum": truth["towns"]}}
    entry = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return exactly(len(truth["names"]), entry)


def lacking_library(constraint: Constraint) -> str | None:
    """The library that compiling a constraint needs, where it is not installed."""
    library = LIBRARIES.get(constraint.kind)
    return None if library is None or find_spec(library) is not None else library


def is_word(constraint: Constraint, text: str) -> bool:
    """Whether a text is what a constraint asks for. Raises UserError for one that cannot be compiled."""
    (moves, accepting), state = _moves(constraint), 0
    for byte in text.encode(errors="replace"):
        state = int(moves[state, byte])
        if state < 0:
            return False
    return bool(accepting[state])


@lru_cache(AUTOMATON_CACHE)
def _moves(constraint: Constraint) -> tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]:
    """Where each byte leads from each state [S, 256] (-1: nowhere), and which states end a word [S]."""
    automaton = automaton_of(constraint)
    small = len(automaton.moves) < 2**15
    return automaton.moves.astype(np.int16) if small else automaton.moves, automaton.accepting
