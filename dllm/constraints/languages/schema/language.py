"""JSON Schema as a language: goals (schemas that hold together) to rules."""

from __future__ import annotations

from typing import Any

from dllm.constraints.languages.json import JSON_NUMBER as ANY_NUMBER
from dllm.constraints.languages.json import any_value, around
from dllm.constraints.languages.limits import Budget, budget
from dllm.constraints.languages.products import difference
from dllm.constraints.languages.schema.array_trees import Few, arrays
from dllm.constraints.languages.schema.document import Document
from dllm.constraints.languages.schema.facts import Facts
from dllm.constraints.languages.schema.keywords import NUMBER_KINDS
from dllm.constraints.languages.schema.numbers import Range, numbers
from dllm.constraints.languages.schema.objects import ObjectTrees
from dllm.constraints.languages.schema.patterns import accepts, pattern_automaton
from dllm.constraints.languages.schema.places import Node, Schema, refusal_at, too_deep
from dllm.constraints.languages.schema.proofs import Proofs
from dllm.constraints.languages.schema.strings import contents, strings
from dllm.constraints.languages.schema.values import constant, value_kind
from dllm.constraints.languages.trees import Alt, Automaton, Cat, Language, RuleCall, Tree

ANY = "any value"


def schema_language(
    schema: Schema, *, depth: int = 4, whitespace: str = "any", additional: bool = False, strict: bool = True
) -> Language:
    """Texts that validate under a JSON Schema (Draft 2020-12): members in the order of ``properties``. Options are
    those of ``JsonSchema``. Raises UserError, which names the place, for what cannot be kept."""
    try:
        clock, space = budget(), around(whitespace)
        document = Document(schema, strict, clock)
        goals = Goals(document, clock, whitespace, additional)
        start = Cat((space, goals.value((document.root,)), space))
    except RecursionError:
        raise too_deep("#") from None
    return Language({**goals.rules, "start": start}, depth=depth)


class Goals:
    """A goal is a tuple of nodes; the same goal again is a call of the same rule. prefix: of the rules' names."""

    def __init__(self, document: Document, clock: Budget, whitespace: str, additional: bool, prefix: str = "") -> None:
        self._document, self._whitespace, self._prefix = document, whitespace, prefix
        self._proofs = Proofs(document, clock)
        patterns = self._patterns = self._proofs.patterns
        self._objects = ObjectTrees(self.value, patterns, whitespace, additional, document.strict)
        self.rules: dict[str, Tree] = {ANY: any_value(whitespace, ANY)}
        self._open: set[tuple[str, ...]] = set()
        self._trees: dict[tuple[str, ...], Tree] = {}

    def value(self, nodes: tuple[Node, ...]) -> Tree:
        """The texts of a goal; a goal that is met again, also inside itself, is a rule. Raises UserError."""
        nodes = tuple(dict.fromkeys(map(self._proofs.cases.follow_refs, nodes)))
        key = tuple(node.place for node in nodes)
        rule = self._prefix + " and ".join(key)
        if key in self._open:
            self.rules.setdefault(rule, Alt())
            return RuleCall(rule)
        if key in self._trees:
            self.rules[rule] = self._trees[key]
            return RuleCall(rule)
        self._open.add(key)
        tree = Alt(tuple(self._case(self._proofs.facts(case)) for case in self._proofs.cases.of(nodes)))
        self._open.remove(key)
        self._trees[key] = tree
        if rule not in self.rules:
            return tree
        self.rules[rule] = tree
        return RuleCall(rule)

    def _case(self, facts: Facts) -> Tree:
        if facts.free:
            return RuleCall(ANY)
        if facts.values is not None:
            return Alt(tuple(text for _, text in self._value_texts(facts)))
        kinds = facts.text_types & NUMBER_KINDS
        cases = [self._numbers(facts, kinds)] if kinds else []
        for kind in sorted(facts.text_types - NUMBER_KINDS):
            cases.append(self._type_tree(facts, kind))
        return Alt(tuple(cases))

    def _type_tree(self, facts: Facts, kind: str) -> Tree:
        if kind in ("array", "object") and any(value_kind(value) == kind for value in facts.exclusions):
            raise refusal_at(
                facts.place,
                f"the keyword 'not' is not supported over values of type {kind}. Say what is allowed instead.",
            )
        if kind == "array":
            return arrays(facts.arrays, self.value, self._few, self._whitespace)
        if kind == "object":
            return self._objects.tree(facts.objects)
        if kind == "string":
            texts = [value for value in facts.exclusions if isinstance(value, str)]
            return strings(facts.texts, texts, self._patterns, self._document.strict)
        return Alt(tuple(text for _, text in self._words(facts, kind)))

    def _words(self, facts: Facts, kind: str) -> Few:
        """null, true and false, but those excluded."""
        words = (None,) if kind == "null" else (True, False)
        out = [value for value in facts.exclusions if value_kind(value) == kind]
        return tuple((word, constant(word, self._whitespace)) for word in words if word not in out)

    def _numbers(self, facts: Facts, kinds: frozenset[str]) -> Tree:
        out = [value for value in facts.exclusions if value_kind(value) in kinds]
        if facts.numbers == Range() and kinds == NUMBER_KINDS and not out:
            return ANY_NUMBER
        tree = numbers(facts.numbers, kinds)
        if not out:
            return tree
        without = Alt(tuple(constant(value, "none") for value in out))
        return Automaton(difference(pattern_automaton(tree), pattern_automaton(without)))

    def _value_texts(self, facts: Facts) -> Few:
        """The values of an enumeration that keep the formats beside it."""
        fraction = facts.types >= NUMBER_KINDS
        formats = facts.texts.formats and contents(facts.texts, (), self._patterns, self._document.strict)
        return tuple(
            (value, constant(value, self._whitespace, fraction))
            for value in facts.values or ()
            if value_kind(value) in facts.text_types
            and (not (formats and isinstance(value, str)) or accepts(formats, value))
        )

    def _few(self, nodes: tuple[Node, ...]) -> Few | None:
        """The values of a goal with their texts, where all are listed."""
        few: list[tuple[Any, Tree]] = []
        for case in self._proofs.cases.of(nodes):
            facts = self._proofs.facts(case)
            if facts.values is not None:
                few += self._value_texts(facts)
            elif facts.text_types <= {"null", "boolean"}:
                few += [pair for kind in sorted(facts.text_types) for pair in self._words(facts, kind)]
            else:
                return None
        return tuple(few)
