"""Proofs that no value is valid in two cases at once. What cannot be proved counts as not so."""

from __future__ import annotations

from dataclasses import replace

from dllm.constraints.languages.limits import Budget
from dllm.constraints.languages.schema.cases import Case, Cases, Endless
from dllm.constraints.languages.schema.document import Document, Node
from dllm.constraints.languages.schema.facts import Arrays, Facts, Objects, facts
from dllm.constraints.languages.schema.keywords import TYPES
from dllm.constraints.languages.schema.patterns import Patterns
from dllm.constraints.languages.schema.strings import contents
from dllm.constraints.languages.schema.validity import Validity
from dllm.constraints.languages.schema.values import distinct

# How many schemas inside each other a proof looks into.
DEEPEST = 8


class Proofs:
    """Knows the cases of a document and their facts, by which ``void`` judges."""

    def __init__(self, document: Document, clock: Budget) -> None:
        self.patterns = Patterns()
        self.validity = Validity(document, self.patterns)
        self.cases = Cases(document, clock, self.exclude, self.restrict)
        self._facts: dict[Case, Facts] = {}
        self._clock, self._deep = clock, 0

    def facts(self, case: Case) -> Facts:
        if case not in self._facts:
            self._clock.time(len(self._facts))
            self._facts[case] = facts(case, self.validity)
        return self._facts[case]

    def restrict(self, case: Case, beside: Case) -> Case:
        """The case, with the types that it writes by itself said as ``type``."""
        found = self.facts(case + beside)
        if found.values is not None or found.written == found.types:
            return case
        place = f"{found.place}~{'-'.join(sorted(found.written))}"
        names = ["number" if kind == "fraction" else kind for kind in sorted(found.written)]
        return (*case, Node(place, {"type": list(dict.fromkeys(names))}))

    def exclude(self, one: Case, other: Case) -> bool:
        """Whether no value of the types that either writes is valid in both."""
        return self.void(tuple(dict.fromkeys(one + other)), self.facts(one).written | self.facts(other).written)

    def void(self, case: Case, types: frozenset[str] = TYPES) -> bool:
        """Whether provably no value of these types is valid in a case, whatever formats say."""
        found = self.facts(case)
        if found.values is not None:
            return not found.values
        return all(self._void_type(found, kind) for kind in types & found.types)

    def _void_type(self, found: Facts, kind: str) -> bool:
        if kind in ("integer", "fraction"):
            return not found.numbers.holds(kind)
        if kind == "string":
            said = found.texts
            if said.high is not None and said.high < said.low:
                return True
            plain = replace(said, formats=())
            return bool(said.patterns) and not len(contents(plain, (), self.patterns, strict=True).moves)
        if kind == "array":
            return self._void_array(found.arrays)
        if kind == "object":
            return self._void_object(found.objects)
        all_of_them = (None,) if kind == "null" else (True, False)
        return len(distinct((*found.excluded, *all_of_them))) == len(found.excluded)

    def _void_array(self, said: Arrays) -> bool:
        if said.high is not None and said.high < said.low:
            return True
        return any(self.void_goal(said.item(place)) for place in range(min(said.low, said.listed + 1)))

    def _void_object(self, said: Objects) -> bool:
        if said.high is not None and said.high < max(said.low, len(said.required)):
            return True
        return any(self.void_goal(said.member(name, self.patterns)) for name in said.required)

    def void_goal(self, nodes: tuple[Node, ...]) -> bool:
        """Whether provably no value is valid under all these nodes."""
        if self._deep == DEEPEST:
            return False
        self._deep += 1
        try:
            return all(self.void(case) for case in self.cases.of(nodes))
        except Endless:
            return False
        finally:
            self._deep -= 1
