"""Calls of functions: of one function its arguments, of several an object with name and arguments.

Each function's parameters are a document of their own, with their own draft, ``$id`` and ``#``, and become rules of
their own, so that they mean beside others what they mean alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dllm.common.errors import Refusal
from dllm.constraints.languages.json import around
from dllm.constraints.languages.limits import Budget, budget
from dllm.constraints.languages.schema.document import Document, types_of
from dllm.constraints.languages.schema.language import Goals
from dllm.constraints.languages.schema.places import Node, too_deep
from dllm.constraints.languages.schema.values import comma, enclose, member, pair, string_text
from dllm.constraints.languages.trees import Alt, Automaton, Bytes, Cat, Language, OneOrMore, Rep, RuleCall, Tree

OBJECT = Node("#~object", {"type": "object"})  # holds beside the parameters: arguments are an object


def call_language(
    functions: Sequence[Mapping[str, Any]], *, depth: int = 4, whitespace: str = "any", additional: bool = False
) -> Language:
    """Texts of a call of one of ``functions``, by the options of ``FunctionCall``. Raises UserError, which names the
    function, for parameters that cannot be kept or that no object fulfils."""
    clock, rules, calls = budget(), dict[str, Tree](), list[Tree]()
    for at, function in enumerate(functions):
        try:
            arguments = _arguments(function, f"{at} ", clock, whitespace, additional, rules)
        except Refusal as error:  # names the function's parameters
            about = f"constraint.functions[{at}].parameters"
            raise (error.about(about) if error.at == "constraint.schema" else error) from None
        name = member("name", string_text(function["name"]), whitespace)
        rest = comma(pair(string_text("arguments"), arguments, whitespace), whitespace)
        calls.append(arguments if len(functions) == 1 else enclose("{", Cat((name, rest)), "}", whitespace))
    space = around(whitespace)
    return Language({**rules, "start": Cat((space, Alt(tuple(calls)), space))}, depth=depth)


def _arguments(
    function: Mapping[str, Any], prefix: str, clock: Budget, whitespace: str, additional: bool, rules: dict[str, Tree]
) -> Tree:
    """The objects that a function's parameters allow; what they call is added to ``rules``. Raises UserError."""
    schema, strict = function["parameters"], function["strict"]
    try:
        document = Document(schema, strict, clock)
        goals = Goals(document, clock, whitespace, additional, prefix)
        beside = () if types_of(document.root) == frozenset({"object"}) else (OBJECT,)
        tree = goals.value((document.root, *beside))
    except RecursionError:
        raise too_deep("#") from None
    rules |= goals.rules
    if not has_word(tree, goals.rules):
        raise Refusal("{constraint.schema:name} allows no object, and arguments are one. Change or drop a keyword.")
    return tree


def has_word(tree: Tree, rules: Mapping[str, Tree]) -> bool:
    """Whether any text belongs to a tree, however deep its rules call each other."""
    names = set[str]()
    while True:
        more = {name for name, rule in rules.items() if name not in names and _has_word(rule, names)}
        if not more:
            return _has_word(tree, names)
        names |= more


def _has_word(tree: Tree, names: set[str]) -> bool:
    """The same where the rules ``names`` have words."""
    match tree:
        case Bytes(ranges):
            return bool(ranges)
        case Cat(parts):
            return all(_has_word(part, names) for part in parts)
        case Alt(cases):
            return any(_has_word(case, names) for case in cases)
        case Rep(part, low):
            return low == 0 or _has_word(part, names)
        case OneOrMore(parts):
            return any(_has_word(part, names) for part in parts)
        case RuleCall(rule):
            return rule in names
        case Automaton(automaton):
            return len(automaton.moves) > 0
    return True  # a counted repetition, which is written of parts with words
