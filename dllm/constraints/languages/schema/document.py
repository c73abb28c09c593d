"""The schema as a document: is it one, what is at a place, where a ``$ref`` points, which keywords are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from dllm.common.errors import nearest
from dllm.constraints.languages.limits import Budget
from dllm.constraints.languages.schema.drafts import as_2020, check_schema
from dllm.constraints.languages.schema.keywords import (
    ANCHORS,
    KNOWN_KEYWORDS,
    NUMBER_KINDS,
    PASSED_OVER,
    REFUSED_KEYWORDS,
    SPEAKS,
    TYPES,
)
from dllm.constraints.languages.schema.places import Node, Schema, refusal_at


class Document:
    """A schema that has passed the metaschema. strict: unknown keywords and formats are refused, not passed over."""

    def __init__(self, schema: Schema, strict: bool, clock: Budget) -> None:
        self.root, self.strict, self._clock = Node("#", as_2020(schema)), strict, clock
        self._nodes: dict[str, Node] = {}
        self._anchors = _anchors(check_schema(self.root, clock.time))

    def target(self, node: Node) -> Node:
        """What the ``$ref`` of a node points to. Raises UserError."""
        ref = node.get("$ref")
        document = self.root.get("$id")
        path = ref.removeprefix(document.rstrip("#")) if isinstance(document, str) and document else ref
        place = unquote(path) or "#"
        if place != "#" and not place.startswith("#/"):
            place = self._anchor_place(node, ref, place)
        if place not in self._nodes:
            self._nodes[place] = self._walk(place, node, ref)
        return self._nodes[place]

    def _anchor_place(self, node: Node, ref: str, fragment: str) -> str:
        """The place that a name stands for. Raises UserError."""
        name = fragment.removeprefix("#")
        if name == fragment:
            raise refusal_at(
                node.place,
                f"$ref {ref!r} leads outside. Copy what it means to '#/$defs/name', and point "
                f"there by the path.{self._nearest_definition(name)}",
            )
        if name not in self._anchors:
            hint = nearest(name, list(self._anchors)) or self._nearest_definition(name)
            raise refusal_at(node.place, f"$ref {ref!r} leads to a name that no $anchor gives.{hint}")
        return self._anchors[name]

    def _nearest_definition(self, name: str) -> str:
        return nearest(f"#/$defs/{name}", [f"#/$defs/{key}" for key in self.root.get("$defs") or ()])

    def _walk(self, place: str, origin: Node, ref: str) -> Node:
        schema: Any = self.root.schema
        for step in place.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, Mapping) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                hint = self._nearest_definition(place.rpartition("/")[2])
                raise refusal_at(origin.place, f"$ref {ref!r} points to nothing.{hint}")
            if isinstance(schema, Mapping) and isinstance(schema.get("$id"), str):
                raise refusal_at(origin.place, f"$ref {ref!r} leads to an $id of its own. {REFUSED_KEYWORDS['$id']}")
        node = Node(place, schema)
        if not isinstance(schema, Mapping | bool):
            raise refusal_at(origin.place, f"$ref {ref!r} points to no schema.")
        if not place.startswith(("#/$defs/", "#/definitions/")):  # elsewhere the metaschema may not have looked
            check_schema(node, self._clock.time)
        return node

    def check_keywords(self, node: Node) -> None:
        """Refuse keywords that are not kept, and those for other types than their schema's. Raises UserError."""
        if isinstance(node.schema, bool):
            return
        types = types_of(node)
        for keyword in node.schema:
            self._check_keyword(node, keyword)
            scope = SPEAKS.get(keyword)
            if self.strict and types is not None and scope is not None and not scope & types:
                kind = "number" if scope == NUMBER_KINDS else min(scope)
                raise refusal_at(
                    node.place,
                    f"the keyword {keyword!r} says nothing of type {node.get('type')!r}, only of "
                    f"{kind}. Leave it out, or change type.",
                )

    def _check_keyword(self, node: Node, keyword: str) -> None:
        if _says_nothing(node, keyword):
            return
        if keyword in REFUSED_KEYWORDS:
            raise refusal_at(node.place, f"the keyword {keyword!r} is not supported. {REFUSED_KEYWORDS[keyword]}")
        if self.strict and keyword not in KNOWN_KEYWORDS:
            raise refusal_at(
                node.place,
                f"the keyword {keyword!r} is unknown.{nearest(keyword, sorted(KNOWN_KEYWORDS))} "
                "With strict=false such keywords are passed over.",
            )


def _anchors(schemas: Iterable[Node]) -> dict[str, str]:
    """The places of a document's anchors, by their names. schemas: each before those inside it. Raises UserError."""
    places, elsewhere = dict[str, str](), ""
    for node in schemas:
        if elsewhere and node.place.startswith(elsewhere):
            continue
        elsewhere = "" if node.place == "#" or node.get("$id") is None else f"{node.place}/"  # a document of its own
        for name in {node.get(keyword) for keyword in ANCHORS} - {None} if not elsewhere else ():
            if name in places:
                raise refusal_at(node.place, f"the anchor {name!r} is also that of {places[name]}. Rename one.")
            places[name] = node.place
    return places


def _says_nothing(node: Node, keyword: str) -> bool:
    """Whether a keyword that is refused elsewhere changes nothing here."""
    needs = {
        "discriminator": {"oneOf"},
        "if": {"then", "else"},
        "then": {"if"},
        "else": {"if"},
        "minContains": {"contains"},
        "maxContains": {"contains"},
    }
    if keyword == "$id":
        return node.place == "#"
    if keyword == "discriminator":
        return "oneOf" in node.schema  # type: ignore[operator]
    if keyword in needs:
        return not any(other in node.schema for other in needs[keyword])  # type: ignore[operator]
    return keyword in PASSED_OVER


def types_of(node: Node) -> frozenset[str] | None:
    """The types that ``type`` names; None: there is no such keyword."""
    names = node.get("type")
    if names is None:
        return None
    types = frozenset([names] if isinstance(names, str) else names)
    return (types | NUMBER_KINDS if "number" in types else types) & TYPES
