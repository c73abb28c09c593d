"""Lists as trees: places with items of their own, all others, how many, and no two equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dllm.constraints.languages.compiled import compiled
from dllm.constraints.languages.json import around
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.schema.document import Node, refused
from dllm.constraints.languages.schema.facts import Arrays
from dllm.constraints.languages.schema.values import comma, distinct, enclosed, key_of
from dllm.constraints.languages.trees import Alt, Call, Cat, Language, Machine, Rep, Tree
from dllm.constraints.languages.utf8 import literal

Value = Callable[[tuple[Node, ...]], Tree]
# The values of a goal, each with its texts, where all are listed; None: there are others.
Few = tuple[tuple[Any, Tree], ...]
Finite = Callable[[tuple[Node, ...]], Few | None]
# Each value of a list without repetitions doubles its states.
MOST_UNIQUE = 10


def arrays(said: Arrays, value: Value, finite: Finite, whitespace: str) -> Tree:
    """A list with its brackets. Raises UserError where uniqueItems cannot be kept."""
    places = [value(said.item(place)) for place in range(_shown(said))]
    rest = value(said.item(said.listed)) if len(places) == said.listed else Alt()
    if said.unique is None or (said.high is not None and said.high < 2):
        return sequence(places, rest, said.low, said.high, whitespace)
    return _unique(said, finite, whitespace)


def _shown(said: Arrays) -> int:
    return said.listed if said.high is None else min(said.listed, said.high)


def sequence(places: list[Tree], rest: Tree, low: int, high: int | None, whitespace: str) -> Tree:
    """``low`` to ``high`` items: these places, of which the last may be missing, and any number of ``rest``."""
    budget().nondeterministic(max(low, high or 0))
    count = len(places)
    if high is not None and high < low:
        return Alt()
    most = None if high is None else max(high - count, 0)
    more = comma(rest, whitespace)
    tail: Tree = Rep(more, max(low - count, 0), most)
    for place in range(count - 1, -1, -1):
        if place == 0:
            break
        tail = Cat((comma(places[place], whitespace), tail))
        tail = tail if place < low else Rep(tail, 0, 1)
    if count:
        filled = Cat((places[0], tail))
    else:
        filled = Cat((rest, Rep(more, max(low - 1, 0), None if high is None else max(high - 1, 0))))
    empty = enclosed("[", Cat(), "]", whitespace) if low == 0 else Alt()
    return Alt((empty, enclosed("[", filled, "]", whitespace) if high is None or high > 0 else Alt()))


def _unique(said: Arrays, finite: Finite, whitespace: str) -> Tree:
    """No value twice: a rule for each set of values that already stand there; its size is the next item's place."""
    choices = [finite(said.item(place)) for place in range(_shown(said))]
    if said.high is None or said.high > said.listed:
        choices.append(finite(said.item(said.listed)))
    known = distinct(value for few in choices for value, _ in few or ())
    if any(few is None for few in choices) or len(known) > MOST_UNIQUE:
        few = f"the keyword 'uniqueItems' is supported where items are at most {MOST_UNIQUE} values, by enum or const."
        raise refused(said.unique or "#", f"{few} Leave it out, or list them.")
    bits = {key_of(value): 1 << index for index, value in enumerate(known)}
    rules: dict[str, Tree] = {}
    waiting = [0]
    while waiting:
        used = waiting.pop()
        place = used.bit_count()
        cases: list[Tree] = [Cat((around(whitespace), literal("]")))] if place >= said.low else []
        left = () if said.high is not None and place >= said.high else choices[min(place, len(choices) - 1)] or ()
        for value, text in left:
            after = used | bits[key_of(value)]
            if after == used:
                continue
            cases.append(Cat((comma(text, whitespace) if place else text, Call(str(after)))))
            waiting += [] if str(after) in rules else [after]
        rules[str(used)] = Alt(tuple(cases))
    start = Cat((literal("["), around(whitespace), Call("0")))
    return Machine(compiled(Language({**rules, "start": start})))
