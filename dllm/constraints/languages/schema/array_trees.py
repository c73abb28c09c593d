"""Lists as trees: places with items of their own, all others, how many, and no two equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.counting import counted_kinds
from dllm.constraints.languages.json import around, behind
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.rules import calls_of
from dllm.constraints.languages.schema.facts import Arrays
from dllm.constraints.languages.schema.places import Node, ValueTree, refusal_at
from dllm.constraints.languages.schema.strings import MARK, counts
from dllm.constraints.languages.schema.values import comma, distinct, enclose, value_key
from dllm.constraints.languages.trees import (
    Alt,
    Automaton,
    Bytes,
    Cat,
    Counted,
    Language,
    OneOrMore,
    Rep,
    Rounds,
    RuleCall,
    Tree,
)
from dllm.constraints.languages.utf8 import literal_text

# The values of a goal, each with its texts, where all are listed; None: there are others.
Few = tuple[tuple[Any, Tree], ...]
Finite = Callable[[tuple[Node, ...]], Few | None]
# Each value of a list without repetitions doubles its states.
MOST_UNIQUE = 10


def arrays(facts: Arrays, value: ValueTree, finite: Finite, whitespace: str) -> Tree:
    """A list with its brackets. Raises UserError where uniqueItems cannot be kept."""
    _joinable(facts)
    places = [value(facts.item(place)) for place in range(_place_count(facts))]
    rest = value(facts.item(facts.place_count)) if len(places) == facts.place_count else Alt()
    if facts.unique is None or (facts.high is not None and facts.high < 2):
        return sequence(places, rest, facts.low, facts.high, whitespace)
    return _unique(facts, finite, whitespace)


def _joinable(facts: Arrays) -> None:
    """Refuse items of one part that do not see a place of another. Raises UserError."""
    for before, items in facts.parts:
        if items is not None and items.schema is not True and items.schema != {} and len(before) < facts.place_count:
            keyword = items.place.rpartition("/")[2]
            raise refusal_at(
                items.place,
                f"allOf, or what is joined here: {keyword} does not see place {len(before)}, "
                "which prefixItems lists elsewhere. Give both the same places.",
            )


def _place_count(facts: Arrays) -> int:
    return facts.place_count if facts.high is None else min(facts.place_count, facts.high)


def sequence(places: list[Tree], rest: Tree, low: int, high: int | None, whitespace: str) -> Tree:
    """``low`` to ``high`` items: these places, the last perhaps missing, and any number of ``rest``."""
    if high is not None and high < low:
        return Alt()
    tree = _counter_list(rest, low, high, whitespace) if counts(high) and not places else None
    if tree is not None:
        return tree
    budget().nondeterministic(max(low, high or 0))
    items = _items_by_place(places, rest, low, high, whitespace) if places else _alike(rest, low, high, whitespace)
    empty = Cat((literal_text("["), around(whitespace), literal_text("]"))) if low == 0 else Alt()
    return Alt((empty, enclose("[", items, "]", whitespace) if high is None or high > 0 else Alt()))


def _counter_list(item: Tree, low: int, high: int, whitespace: str) -> Tree | None:
    """A list whose commas a counter counts; None where an item calls rules, or counts itself."""
    language, space = Language({"start": item}), around(whitespace)
    if calls_of(item)[0] or counted_kinds(language):
        return None
    comma_and_mark = Cat((literal_text(","), Bytes(((MARK, MARK),)), behind(whitespace)))
    items = Cat((item, space, Rep(Cat((comma_and_mark, item, space)))))
    automaton = to_automaton(Language({"start": Cat((space, Rep(items, 0, 1) if low == 0 else items))}))
    if not len(automaton.moves) or (automaton.moves[automaton.accepting, ord("]")] >= 0).any():
        return None
    has_mark = automaton.moves[:, MARK] >= 0
    behind_mark = np.append(np.where(has_mark, automaton.moves[:, MARK], np.arange(len(has_mark))), -1)
    moves = behind_mark[automaton.moves].astype(np.int32)
    moves[:, MARK] = -1
    begins = np.append(has_mark, False)[automaton.moves]
    return Counted(ord("["), Rounds(moves, begins, automaton.accepting), max(low - 1, 0), high - 1, ord("]"))


def _items_by_place(places: list[Tree], rest: Tree, low: int, high: int | None, whitespace: str) -> Tree:
    """One item or more, from the last place to the first."""
    count = len(places)
    tail: Tree = Rep(comma(rest, whitespace), max(low - count, 0), None if high is None else high - count)
    for place in range(count - 1, 0, -1):
        tail = Cat((comma(places[place], whitespace), tail))
        tail = tail if place < low else Rep(tail, 0, 1)
    return Cat((places[0], tail))


def _alike(item: Tree, low: int, high: int | None, whitespace: str) -> Tree:
    """One item or more; written once where their number is free, as lists in lists would double at each depth."""
    between = comma(Cat(), whitespace)
    if high is not None:
        return Cat((item, Rep(Cat((between, item)), max(low - 1, 0), max(high - 1, 0))))
    several = OneOrMore((item,), between, again=True)
    return Cat((Rep(Cat((item, between)), low - 1, low - 1), several)) if low > 1 else several


def _unique(facts: Arrays, finite: Finite, whitespace: str) -> Tree:
    """No value twice: a rule for each set of values that already are there; its size is the next item's place."""
    choices = [finite(facts.item(place)) for place in range(_place_count(facts))]
    if facts.high is None or facts.high > facts.place_count:
        choices.append(finite(facts.item(facts.place_count)))
    values = distinct(value for few in choices for value, _ in few or ())
    if any(few is None for few in choices) or len(values) > MOST_UNIQUE:
        few = f"the keyword 'uniqueItems' is supported where items are at most {MOST_UNIQUE} values, by enum or const."
        raise refusal_at(facts.unique or "#", f"{few} Leave it out, or list them.")
    bits = {value_key(value): 1 << index for index, value in enumerate(values)}
    rules: dict[str, Tree] = {}
    waiting = [0]
    while waiting:
        subset = waiting.pop()
        place = subset.bit_count()
        cases: list[Tree] = [Cat((around(whitespace), literal_text("]")))] if place >= facts.low else []
        next_values = (
            () if facts.high is not None and place >= facts.high else choices[min(place, len(choices) - 1)] or ()
        )
        for value, text in next_values:
            after = subset | bits[value_key(value)]
            if after == subset:
                continue
            cases.append(Cat((comma(text, whitespace) if place else text, RuleCall(str(after)))))
            waiting += [] if str(after) in rules else [after]
        rules[str(subset)] = Alt(tuple(cases))
    start = Cat((literal_text("["), around(whitespace), RuleCall("0")))
    return Automaton(to_automaton(Language({**rules, "start": start})))
