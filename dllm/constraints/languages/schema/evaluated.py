"""``unevaluatedProperties`` and ``unevaluatedItems`` as additionalProperties and items of what is beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dllm.constraints.languages.schema.document import Document
from dllm.constraints.languages.schema.places import Node, refusal_at

# Ends the place of a node that says what an unevaluated... keyword says, in keywords that need no others beside them.
UNEVALUATED = "~unevaluated"


@dataclass(frozen=True)
class EvaluatedSet:
    """What a schema looks at in each object and list: names, patterns of names, first places; or all of them."""

    names: tuple[str, ...] = ()  # of members
    patterns: tuple[str, ...] = ()  # of names of members
    places: int = 0  # how many places of a list, from the first on
    members: bool = False  # all members
    items: bool = False  # all places of a list

    def __or__(self, other: EvaluatedSet) -> EvaluatedSet:
        names = tuple(dict.fromkeys(self.names + other.names))
        patterns = tuple(dict.fromkeys(self.patterns + other.patterns))
        places = max(self.places, other.places)
        return EvaluatedSet(names, patterns, places, self.members or other.members, self.items or other.items)


class EvaluatedSets:
    """Knows which members and items the schemas of a document evaluate, through ``$ref`` and ``allOf`` too."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._scopes: dict[str, EvaluatedSet] = {}

    def closures(self, node: Node) -> list[Node]:
        """What the unevaluated... keywords of a node say, as nodes of their own. Raises UserError."""
        nodes = []
        for keyword, say in (("unevaluatedProperties", _members), ("unevaluatedItems", _items)):
            if node.get(keyword, True) is not True:
                schema = say(self._beside(node), node.get(keyword))
                nodes += [] if schema is None else [Node(f"{node.place}/{keyword}{UNEVALUATED}", schema)]
        return nodes

    def _beside(self, node: Node) -> EvaluatedSet:
        """What the other keywords of a node evaluate."""
        assert not isinstance(node.schema, bool)
        others = {key: value for key, value in node.schema.items() if not key.startswith("unevaluated")}
        return self._scope(Node(f"{node.place}{UNEVALUATED}", others))

    def _scope(self, node: Node) -> EvaluatedSet:
        if isinstance(node.schema, bool):
            return EvaluatedSet()
        if node.place not in self._scopes:
            self._scopes[node.place] = self._find_scope(node)
        return self._scopes[node.place]

    def _find_scope(self, node: Node) -> EvaluatedSet:
        own = EvaluatedSet(
            tuple(node.get("properties", ())),
            tuple(node.get("patternProperties", ())),
            len(node.get("prefixItems", ())),
            members=any(node.get(key) is not None for key in ("additionalProperties", "unevaluatedProperties")),
            items=any(node.get(key) is not None for key in ("items", "unevaluatedItems")),
        )
        always = [node.at("allOf", index) for index in range(len(node.get("allOf", ())))]
        if node.get("$ref") is not None:
            always.append(self._document.target(node))
        for inner in always:
            own |= self._scope(inner)
        if any(self._scope(inner) != EvaluatedSet() for inner in _sometimes(node)):
            place = node.place.removesuffix(UNEVALUATED)
            raise refusal_at(
                place,
                "unevaluatedProperties and unevaluatedItems are not supported beside properties or "
                "items in anyOf, oneOf, dependentSchemas or if. Write each case out with "
                "additionalProperties.",
            )
        return own


def _sometimes(node: Node) -> list[Node]:
    """The schemas that hold for some values only, so that what they evaluate depends on the value."""
    cases = [node.at(key, index) for key in ("anyOf", "oneOf") for index in range(len(node.get(key, ())))]
    cases += [node.at("dependentSchemas", name) for name in node.get("dependentSchemas", ())]
    return [*cases, node.at("if")] if node.get("if") is not None else cases


def _members(beside: EvaluatedSet, schema: Any) -> dict[str, Any] | None:
    if beside.members:
        return None
    properties, patterns = (dict.fromkeys(names, True) for names in (beside.names, beside.patterns))
    return {"properties": properties, "patternProperties": patterns, "additionalProperties": schema}


def _items(beside: EvaluatedSet, schema: Any) -> dict[str, Any] | None:
    return None if beside.items else {"prefixItems": [True] * beside.places, "items": schema}
