"""Proofs that no value is valid in two cases at once. Unproved means "may overlap"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dllm.constraints.languages.limits import Budget
from dllm.constraints.languages.schema.cases import WRITTEN, Case, Cases, Endless
from dllm.constraints.languages.schema.document import Document
from dllm.constraints.languages.schema.facts import Arrays, Facts, Objects, facts
from dllm.constraints.languages.schema.keywords import TYPES
from dllm.constraints.languages.schema.patterns import Patterns
from dllm.constraints.languages.schema.places import Node
from dllm.constraints.languages.schema.strings import contents
from dllm.constraints.languages.schema.validity import Validity
from dllm.constraints.languages.schema.values import distinct, value_key

# How many schemas inside each other a proof looks into.
MAX_PROOF_DEPTH = 8


class Proofs:
    """Knows the cases of a document and their facts, by which ``void`` judges."""

    def __init__(self, document: Document, clock: Budget) -> None:
        self.patterns = Patterns()
        self.validity = Validity(document, self.patterns)
        self.cases = Cases(document, clock, self.exclude, self.restrict, self.told_apart)
        self._facts: dict[Case, Facts] = {}
        self._clock, self._deep = clock, 0

    def facts(self, case: Case) -> Facts:
        if case not in self._facts:
            self._clock.time(len(self._facts))
            self._facts[case] = facts(case, self.validity)
        return self._facts[case]

    def restrict(self, case: Case, beside: Case) -> Case:
        """The case, held to the types that it writes by itself, as the proof looks at no others."""
        facts = self.facts(case + beside)
        if facts.values is not None or facts.text_types == facts.types:
            return case
        names = sorted("number" if kind == "fraction" else kind for kind in facts.text_types)
        return (*case, Node(f"{'-'.join(names)}{WRITTEN}", {"type": names}))

    def exclude(self, case: Case, other: Case) -> bool:
        """Whether no value of the types that either writes is valid in both."""
        left, right = self.facts(case), self.facts(other)
        types = (left.text_types | right.text_types) & left.types & right.types
        return not types or self.void(tuple(dict.fromkeys(case + other)), types)

    def told_apart(self, branches: list[list[Case]]) -> bool:
        """Whether branches have no value in common, or none of one required property. Thousands of branches are read
        once each, where pairs would be millions."""
        tags = [[self._tags(case) for case in cases] for cases in branches]
        every = [set(each) for cases in tags for each in cases]
        for name in set.intersection(*every) if every else ():
            values = [frozenset().union(*(each[name] for each in cases)) for cases in tags]
            if len(frozenset().union(*values)) == sum(map(len, values)):
                return True
        return False

    def _tags(self, case: Case) -> dict[str | None, frozenset[Any]]:
        """All that the values of a case can be (at None), or their required properties (at its names)."""
        facts = self.facts(case)
        if facts.values is not None:
            return {None: frozenset(map(value_key, facts.values))}
        if facts.types != {"object"}:
            return {}
        values_of = {name: self._few(facts.objects.member(name, self.patterns)) for name in facts.objects.required}
        return {name: values for name, values in values_of.items() if values is not None}

    def _few(self, nodes: tuple[Node, ...]) -> frozenset[Any] | None:
        try:
            lists = [self.facts(case).values for case in self.cases.of(nodes)]
        except Endless:
            return None
        if any(values is None for values in lists):
            return None
        return frozenset(value_key(value) for values in lists for value in values or ())

    def void(self, case: Case, types: frozenset[str] = TYPES) -> bool:
        """Whether provably no value of these types is valid in a case, without regard to formats."""
        facts = self.facts(case)
        if facts.values is not None:
            return not facts.values
        return all(self._void_type(facts, kind) for kind in types & facts.types)

    def _void_type(self, facts: Facts, kind: str) -> bool:
        if kind in ("integer", "fraction"):
            return not facts.numbers.holds(kind)
        if kind == "string":
            texts = facts.texts
            if texts.high is not None and texts.high < texts.low:
                return True
            plain = replace(texts, formats=())
            return bool(texts.patterns) and not len(contents(plain, (), self.patterns, strict=True).moves)
        if kind == "array":
            return self._void_array(facts.arrays)
        if kind == "object":
            return self._void_object(facts.objects)
        all_of_them = (None,) if kind == "null" else (True, False)
        return len(distinct((*facts.exclusions, *all_of_them))) == len(facts.exclusions)

    def _void_array(self, arrays: Arrays) -> bool:
        if arrays.high is not None and arrays.high < arrays.low:
            return True
        return any(self.void_goal(arrays.item(place)) for place in range(min(arrays.low, arrays.place_count + 1)))

    def _void_object(self, objects: Objects) -> bool:
        if objects.high is not None and objects.high < max(objects.low, len(objects.required)):
            return True
        return any(self.void_goal(objects.member(name, self.patterns)) for name in objects.required)

    def void_goal(self, nodes: tuple[Node, ...]) -> bool:
        """Whether provably no value is valid under all these nodes."""
        if self._deep == MAX_PROOF_DEPTH:
            return False
        self._deep += 1
        try:
            return all(self.void(case) for case in self.cases.of(nodes))
        except Endless:
            return False
        finally:
            self._deep -= 1
