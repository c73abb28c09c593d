"""Replay recorded facts of constrained decoding: ``python tests/constraints.py FILE...``.

A file holds lists of cases by part: ``sets`` (what a canvas allows), ``languages`` (texts, and whether they belong),
``refusals`` (words of the sentence), ... Each part has a function here that says what is wrong with a case. The exit
code is 1, and stderr says why, where a case is not equal, and also where a part or a field is unknown here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))  # what the tests share

import numpy as np
from constraints_decodes import best_filling_of, decoded, same

from dllm.parts import (
    MASK,
    Choice,
    Constraint,
    Grammar,
    Json,
    JsonSchema,
    Regex,
    RowSets,
    TokenLanguage,
    UserError,
    Vocabulary,
    automaton_of,
    token_automaton,
)

Case = Mapping[str, Any]
KINDS = {kind.kind: kind for kind in (Choice, Regex, Json, JsonSchema, Grammar)}
TOLD = ("method", "source", "notes")


def constraint_of(language: Case) -> Constraint:
    """The constraint that a case records, with the defaults of what it leaves out."""
    return KINDS[language["kind"]](**{key: value for key, value in language.items() if key != "kind"})


@cache
def automaton(language: str) -> Any:
    """The automaton over bytes of a recorded language, as JSON."""
    return automaton_of(constraint_of(json.loads(language)))


def language_of(case: Case) -> TokenLanguage:
    """The token language of a case, over its own vocabulary."""
    texts = tuple(None if text is None else text.encode("latin-1") for text in case["tokens"])
    tokens = token_automaton(automaton(json.dumps(case["language"])), Vocabulary(texts))
    return TokenLanguage(tokens, case["ends"])


def row_of(case: Case) -> RowSets:
    """The canvas of a case."""
    return RowSets(language_of(case), case["canvas"], case["gaps"], case.get("begun", "").encode("latin-1"))


def masks(row: RowSets) -> list[int]:
    return np.flatnonzero(row.cells == MASK).tolist()


def fillings(case: Case, row: RowSets) -> int:
    """How many fillings a row has, counted by the state that they lead to."""
    language, counts = row.language, Counter({row.language.start(row.prefix): 1})
    for at, cell in enumerate(row.cells.tolist()):
        ids = range(len(case["tokens"])) if cell == MASK else [cell]
        onward: Counter[Any] = Counter()
        for states, count in counts.items():
            for number in ids:
                onward[language.after(states, language.symbol(number), row.kinds[at])] += count
        counts = onward
    return sum(count for states, count in counts.items() if (states.members & language.transitions.ending).any())


def allowed(case: Case, row: RowSets) -> dict[str, list[int]]:
    rows = zip(masks(row), row.allowed(masks(row)), strict=True)
    return {str(at): np.flatnonzero(each.bits[row.language.classes]).tolist() for at, each in rows}


def compatible(row: RowSets, positions: Sequence[int], ids: Sequence[int]) -> bool:
    row = row.copy()
    row.write(positions, ids)
    return row.feasible()


def together(case: Case, row: RowSets) -> list[Case]:
    asked = case["together"]
    return [{**ask, "feasible": compatible(row, ask["positions"], ask["ids"])} for ask in asked]


def fewest(case: Case, row: RowSets) -> int | None:
    """The least number of masks that write text, and no end, in any filling."""
    language, costs = row.language, {row.language.start(row.prefix): 0}
    for at, cell in enumerate(row.cells.tolist()):
        onward: dict[Any, int] = {}
        for states, cost in costs.items():
            for number in range(len(case["tokens"])) if cell == MASK else [cell]:
                after = language.after(states, language.symbol(number), row.kinds[at])
                written = cost + (cell == MASK and number not in language.ends)
                onward[after] = min(written, onward.get(after, written))
        costs = onward
    ending = language.transitions.ending
    return min((cost for states, cost in costs.items() if (states.members & ending).any()), default=None)


def best(case: Case, row: RowSets) -> list[int] | None:
    found = best_filling_of(row, masks(row), case["logp"])
    return None if found is None else list(found.ids)


def best_logp(case: Case, row: RowSets) -> float | None:
    """To the three digits of the sums recorded."""
    found = best_filling_of(row, masks(row), case["logp"])
    return None if found is None else round(found.score, 3)


SETS: dict[str, Callable[[Case, RowSets], Any]] = {
    "feasible": lambda case, row: row.feasible(),
    "fillings": fillings,
    "allowed": allowed,
    "together": together,
    "fewest": fewest,
    "best": best,
    "best_logp": best_logp,
}
ROW = {"language", "tokens", "ends", "mask", "gaps", "canvas", "begun"}


def replay_sets(case: Case) -> str | None:
    """What is wrong with a case of ``sets``. None: all is equal."""
    if fields := case.keys() - {*SETS, *ROW, "logp"}:
        return f"{', '.join(sorted(fields))} cannot be compared here"
    if (kind := case["language"]["kind"]) not in KINDS:
        return f"language={kind} is unknown here"
    try:
        row = row_of(case)
    except UserError as error:
        return f"it is refused: {error}"
    differ = [name for name, of in SETS.items() if name in case and of(case, row) != case[name]]
    return f"{', '.join(differ)} differ" if differ else None


DECODE = {*ROW, "logits", "block_length", "confidence", "rule"}


def replay_decodes(case: Case) -> str | None:
    """What is wrong with a case of ``decodes``. None: all is equal."""
    if fields := case.keys() - {*DECODE, "turns", "final", "text"}:
        return f"{', '.join(sorted(fields))} cannot be compared here"
    found = decoded(case, row_of(case))
    differ = [name for name in ("turns", "final", "text") if name not in case or not same(found[name], case[name])]
    return f"{', '.join(differ)} differ" if differ else None


def replay_languages(case: Case) -> str | None:
    """What is wrong with a case of ``languages``: texts, and whether they belong."""
    if fields := case.keys() - {"language", "texts"}:
        return f"{', '.join(sorted(fields))} cannot be compared here"
    accepts = automaton(json.dumps(case["language"])).accepts
    differ = [repr(text) for text, belongs in case["texts"].items() if accepts(text.encode("utf-8")) != belongs]
    return f"{', '.join(differ)} differ" if differ else None


def replay_refusals(case: Case) -> str | None:
    """What is wrong with a case of ``refusals``: a language, and words of the sentence that refuses it."""
    if fields := case.keys() - {"language", "says"}:
        return f"{', '.join(sorted(fields))} cannot be compared here"
    try:
        automaton(json.dumps(case["language"]))
    except UserError as error:
        missing = [word for word in case["says"] if word not in str(error)]
        return f"{', '.join(missing)} not in: {error}" if missing else None
    return "it is not refused"


PARTS: dict[str, Callable[[Case], str | None]] = {
    "sets": replay_sets,
    "decodes": replay_decodes,
    "languages": replay_languages,
    "refusals": replay_refusals,
}


def replay(data: Case) -> dict[str, list[str | None]]:
    """What is wrong with every case, by part: None where all is equal."""
    parts = [name for name in data if name not in TOLD]
    outcome = {
        name: [PARTS[name](case) if name in PARTS else "this part is unknown here" for case in data[name]]
        for name in parts
    }
    return {name: found or ["it has no cases"] for name, found in outcome.items()} or {"nothing": ["it has no parts"]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    faults: list[str] = []
    for file in parser.parse_args(arguments).files:
        for part, outcome in replay(json.loads(file.read_text(encoding="utf-8"))).items():
            print(f"{part}: {outcome.count(None)} of {len(outcome)} cases equal")
            for fault in dict.fromkeys(found for found in outcome if found):
                numbers = [str(at) for at, other in enumerate(outcome) if other == fault]
                where = ", ".join(numbers) if len(numbers) < len(outcome) else "everywhere"
                faults.append(f"  {file.name}, {part} {where}: {fault}")
    if faults:
        print("Not equal, or not to be replayed:", *faults, sep="\n", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
