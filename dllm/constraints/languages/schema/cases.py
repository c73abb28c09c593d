"""A schema as cases: what ``$ref``, ``allOf``, ``anyOf``, ``oneOf``, ``not`` and ``dependent...`` combine, apart.

A case is a tuple of nodes that hold together; only their other keywords count. A value is valid if it is valid
in one of the cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from dllm.common.errors import Refusal
from dllm.constraints.languages.limits import Budget
from dllm.constraints.languages.schema.document import Document
from dllm.constraints.languages.schema.evaluated import EvaluatedSets
from dllm.constraints.languages.schema.keywords import PASSED_OVER
from dllm.constraints.languages.schema.places import Node, pointer_part, refusal_at

Case = tuple[Node, ...]
# The cases of one value; each becomes a piece of its automaton.
MAX_CASES = 5_000
# Ends the place of a node whose ``not`` is no more than types and enumerations; no JSON pointer has such an end.
EXCLUDED = "~excluded"
# The keywords that cases are made of.
APART = (
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
)
# Ends the place of a node whose ``type`` says which types are written, not which are valid.
WRITTEN = "~written"


class Endless(Refusal):
    """A schema that begins with itself; a proof that meets one while expanding it fails."""


class Cases:
    """The cases of each node of a document. exclude, restrict, told_apart: what oneOf asks (``Proofs``)."""

    def __init__(
        self,
        document: Document,
        clock: Budget,
        exclude: Callable[[Case, Case], bool],
        restrict: Callable[[Case, Case], Case],
        told_apart: Callable[[list[list[Case]]], bool],
    ) -> None:
        self.document, self.clock = document, clock
        self._exclude, self._restrict, self._told_apart = exclude, restrict, told_apart
        self._sets = EvaluatedSets(document)
        self._cases: dict[str, list[Case]] = {}
        self._path: list[str] = []

    def of(self, nodes: Iterable[Node]) -> list[Case]:
        """The cases in which all nodes hold. Raises UserError."""
        cases: list[Case] = [()]
        for node in nodes:
            cases = self._join(node, cases, self._expansion(node))
        return cases

    def _join(self, node: Node, left: list[Case], right: list[Case]) -> list[Case]:
        if len(left) * len(right) > MAX_CASES:
            raise refusal_at(
                node.place,
                f"anyOf, oneOf and dependentRequired make more than {MAX_CASES} cases together. "
                "Nest them, or write fewer.",
            )
        self.clock.time(len(left) * len(right))
        return [tuple(dict.fromkeys(a + b)) for a in left for b in right]

    def _expansion(self, node: Node) -> list[Case]:
        if node.schema is True:
            return [()]
        if node.schema is False:
            return []
        if node.place in self._path:
            raise refusal_at(
                node.place, "the schema begins with itself by way of $ref. Put an object or a list between.", Endless
            )
        if node.place not in self._cases:
            self._path.append(node.place)
            try:
                self._cases[node.place] = self._expand(node)
            finally:
                self._path.pop()
        return self._cases[node.place]

    def _expand(self, node: Node) -> list[Case]:
        self.document.check_keywords(node)
        cases: list[Case] = [(node,)]
        if node.get("$ref") is not None:
            cases = self._join(node, cases, self._expansion(self.document.target(node)))
        for index in range(len(node.get("allOf", ()))):
            cases = self._join(node, cases, self._expansion(node.at("allOf", index)))
        for more in (self._any_of(node), self._one_of(node), self._not(node), *self._dependents(node)):
            cases = self._join(node, cases, more)
        return self._join(node, cases, [tuple(self._sets.closures(node))])

    def _any_of(self, node: Node) -> list[Case]:
        if node.get("anyOf") is None:
            return [()]
        branches = (node.at("anyOf", index) for index in range(len(node.get("anyOf"))))
        return list(dict.fromkeys(case for branch in branches for case in self._expansion(branch)))

    def _one_of(self, node: Node) -> list[Case]:
        """The union, where every two cases provably exclude each other beside the node's other keywords."""
        if node.get("oneOf") is None:
            return [()]
        branches = [self._expansion(node.at("oneOf", index)) for index in range(len(node.get("oneOf")))]
        beside = (without(node, "oneOf"),)
        restrictions = [[self._restrict(case, beside) for case in cases] for cases in branches]
        are_apart = self._told_apart([[case + beside for case in cases] for cases in branches])
        for (i, left), (j, right) in () if are_apart else combinations(enumerate(restrictions), 2):
            self.clock.time(i)
            if not all(self._exclude(a + beside, b + beside) for a in left for b in right):
                raise refusal_at(
                    node.place,
                    f"oneOf: cases {i} and {j} may share a value. Use anyOf, or give both a "
                    "required property whose values exclude each other.",
                )
        return [case for cases in (restrictions if len(branches) > 1 else branches) for case in cases]

    def _not(self, node: Node) -> list[Case]:
        """``not`` over type, enum and const is left to the facts of a case; over these in anyOf it is one for each."""
        if node.get("not") is None:
            return [()]
        inner = self.follow_refs(node.at("not"))
        if inner.schema is False:
            return [()]
        keywords = set() if isinstance(inner.schema, bool) else set(inner.schema) - PASSED_OVER
        if keywords == {"not"}:
            return self._expansion(inner.at("not"))
        if keywords == {"anyOf"}:
            return self.of(
                Node(f"{inner.place}/anyOf/{index}~not", {"not": branch})
                for index, branch in enumerate(inner.get("anyOf"))
            )
        if keywords and keywords <= {"type", "enum", "const"}:
            return [(Node(inner.place + EXCLUDED, {"not": inner.schema}),)]
        raise refusal_at(
            node.place, "the keyword 'not' is not supported but over type, enum and const. Say what is allowed instead."
        )

    def follow_refs(self, node: Node) -> Node:
        """The first schema that is more than a ``$ref``."""
        places = {node.place}
        while not isinstance(node.schema, bool) and set(node.schema) - PASSED_OVER == {"$ref"}:
            node = self.document.target(node)
            if node.place in places:
                raise refusal_at(node.place, "the schema begins with itself by way of $ref.", Endless)
            places.add(node.place)
        return node

    def _dependents(self, node: Node) -> Iterator[list[Case]]:
        """Two cases for each name: it is absent, or there with what depends on it."""
        for name, names in node.get("dependentRequired", {}).items():
            if names:
                inner = node.at("dependentRequired", name)
                yield self._dependent(node, name, [(Node(f"{inner.place}~needed", {"required": names}),)])
        for name in node.get("dependentSchemas", ()):
            yield self._dependent(node, name, self._expansion(node.at("dependentSchemas", name)))

    def _dependent(self, node: Node, name: str, then: list[Case]) -> list[Case]:
        """The member is absent, or there and one of the cases holds."""
        place = f"{node.place}/{pointer_part(name)}"
        absent = Node(f"{place}~absent", {"properties": {name: False}})
        present = [(Node(f"{place}~present", {"required": [name]}), *case) for case in then]
        return present if name in node.get("required", ()) else [(absent,), *present]


def without(node: Node, *keywords: str) -> Node:
    """The node but for these keywords, and but for ``not`` where that makes cases too."""
    left_out = {*keywords} if node.place.endswith(EXCLUDED) else {*keywords, "not"}
    entries = {key: value for key, value in node.schema.items() if key not in left_out}  # type: ignore[union-attr]
    return Node(f"{node.place}~without-{'-'.join(keywords)}", entries)
