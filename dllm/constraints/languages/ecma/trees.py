"""Patterns of ECMA-262 as trees of the texts in which they are found."""

from __future__ import annotations

from dllm.constraints.languages.automaton_of import compiled
from dllm.constraints.languages.ecma.boundaries import ASSERTION_MARKS, where_they_hold
from dllm.constraints.languages.ecma.nodes import Assertion, Either, Pattern, Repeat, Sequence, Signs
from dllm.constraints.languages.ecma.parser import Parser
from dllm.constraints.languages.trees import Alt, Automaton, Bytes, Cat, Language, Rep, Tree
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, characters
from dllm.errors import UserError

_ANYTHING = Rep(characters(ALL_CHARACTERS))


def searched_tree(pattern: str, where: str) -> Tree:
    """The texts in which a pattern is found. where: names it in refusals. Raises UserError."""
    try:
        found = Parser(pattern, where).read()
        cases = [_framed(case) for case in (found.cases if isinstance(found, Either) else (found,))]
        if any(inner is None for inner in cases):
            marked = Cat((_ANYTHING, _tree(found), _ANYTHING))
            return Automaton(where_they_hold(compiled(Language({"start": marked}))))
        return Alt(tuple(tree for tree in cases if tree is not None))
    except RecursionError:
        raise UserError(f"{where} is nested too deeply. Write it with fewer groups in each other.") from None


def _framed(case: Pattern) -> Tree | None:
    """A case with any text at its ends, unless ``^`` and ``$`` keep it out; None: assertions are elsewhere too."""
    parts = list(case.parts if isinstance(case, Sequence) else (case,))
    begins = ends = False
    while parts and parts[0] == Assertion("^"):
        parts, begins = parts[1:], True
    while parts and parts[-1] == Assertion("$"):
        parts, ends = parts[:-1], True
    if any(map(_asserts, parts)):
        return None
    return Cat((Cat() if begins else _ANYTHING, *map(_tree, parts), Cat() if ends else _ANYTHING))


def _asserts(pattern: Pattern) -> bool:
    match pattern:
        case Assertion():
            return True
        case Sequence(parts) | Either(parts):
            return any(map(_asserts, parts))
        case Repeat(part):
            return _asserts(part)
    return False


def _tree(pattern: Pattern) -> Tree:
    """The texts that are matched, with a mark for each assertion."""
    match pattern:
        case Signs(ranges):
            return characters(ranges)
        case Sequence(parts):
            return Cat(tuple(map(_tree, parts)))
        case Either(cases):
            return Alt(tuple(map(_tree, cases)))
        case Repeat(part, low, high):
            return Rep(_tree(part), low, high)
        case Assertion(sign):
            return Bytes(((ASSERTION_MARKS[sign], ASSERTION_MARKS[sign]),))
