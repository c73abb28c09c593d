"""What the nodes of a case say together, keyword by keyword: types, values, and bounds of each type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import isfinite
from typing import Any

from dllm.constraints.languages.schema.cases import APART, EXCLUDED, WRITTEN, Case, without
from dllm.constraints.languages.schema.document import types_of
from dllm.constraints.languages.schema.evaluated import UNEVALUATED
from dllm.constraints.languages.schema.keywords import SPEAKS, TYPES
from dllm.constraints.languages.schema.numbers import Range, as_fraction
from dllm.constraints.languages.schema.patterns import Patterns
from dllm.constraints.languages.schema.places import Node, refusal_at
from dllm.constraints.languages.schema.validity import Validity
from dllm.constraints.languages.schema.values import distinct, value_kind


@dataclass(frozen=True)
class Texts:
    """Code points, patterns and formats, each with its place."""

    low: int = 0  # the fewest code points
    high: int | None = None  # the most; None: any number
    patterns: tuple[tuple[str, str], ...] = ()  # each with its place in the schema
    formats: tuple[tuple[str, str], ...] = ()  # of formats


@dataclass(frozen=True)
class Arrays:
    """What a schema says of arrays."""

    # each node's prefixItems, and its items for all places after them
    parts: tuple[tuple[tuple[Node, ...], Node | None], ...] = ()
    low: int = 0  # the fewest items
    high: int | None = None  # the most; None: any number
    unique: str | None = None  # the place of uniqueItems

    def item(self, place: int) -> tuple[Node, ...]:
        """What holds of the item at this place."""
        nodes = (before[place] if place < len(before) else items for before, items in self.parts)
        return tuple(node for node in nodes if node is not None)

    @property
    def place_count(self) -> int:
        """How many places have items of their own."""
        return max((len(before) for before, _ in self.parts), default=0)


@dataclass(frozen=True)
class Members:
    """One node's properties, patternProperties and additionalProperties."""

    node: Node  # the schema that says it
    properties: dict[str, Node]  # schemas by the name of a member
    patterns: tuple[tuple[str, Node], ...]  # patterns of names, each with its schema
    others: Node | None  # the schema of all other members; None: any

    def of(self, name: str, patterns: Patterns) -> tuple[Node, ...]:
        """What this part says of the member with this name."""
        nodes = [self.properties[name]] if name in self.properties else []
        nodes += [node for pattern, node in self.patterns if patterns.matches(pattern, self.node.place, name)]
        return tuple(nodes or ([] if self.others is None else [self.others]))


@dataclass(frozen=True)
class Objects:
    """What a schema says of objects."""

    parts: tuple[Members, ...] = ()  # what each node says of members
    required: dict[str, str] = field(default_factory=dict)  # names, each with its place; the number of members
    low: int = 0  # the fewest members
    high: int | None = None  # the most; None: any number
    place: str = "#"  # in the schema, for errors

    @property
    def names(self) -> tuple[str, ...]:
        """The names under properties, in their order."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.properties))

    def member(self, name: str, patterns: Patterns) -> tuple[Node, ...]:
        """What holds of the member with this name."""
        return tuple(node for part in self.parts for node in part.of(name, patterns))


@dataclass(frozen=True)
class Facts:
    """What a schema says, by type."""

    place: str  # in the schema, for errors
    types: frozenset[str]  # that are valid
    text_types: frozenset[str]  # those of them that texts are written of
    # of enumerations, filtered by all that is beside them but formats; None: none
    values: tuple[Any, ...] | None
    exclusions: tuple[Any, ...]  # values of ``not``
    numbers: Range  # what it says of numbers
    texts: Texts  # what it says of strings
    arrays: Arrays  # what it says of arrays
    objects: Objects  # what it says of objects
    free: bool  # any JSON fits


def facts(case: Case, validity: Validity) -> Facts:
    """Raises UserError where a bound cannot be kept."""
    types, exclusions = _types(case), _exclusions(case)
    values = _values(case, validity)
    kinds = None if values is None else frozenset(value_kind(value) for value in values)
    text_types = _text_types(case, types) if kinds is None else kinds & _restrict_types(case, kinds)
    return Facts(
        place=next((node.place for node in case if "~" not in node.place), "#"),
        types=types,
        text_types=text_types,
        values=values,
        exclusions=exclusions,
        numbers=_numbers(case),
        texts=_texts(case),
        arrays=_arrays(case),
        objects=_objects(case),
        free=values is None and not exclusions and types == TYPES and not _scope(case),
    )


def _without(case: Case) -> Iterable[Node]:
    return (node.at("not") for node in case if node.place.endswith(EXCLUDED))


def _types(case: Case) -> frozenset[str]:
    types = [own for node in case if (own := types_of(node)) is not None and not node.place.endswith(WRITTEN)]
    for node in _without(case):
        if node.get("enum") is None and "const" not in node.schema:  # type: ignore[operator]
            types.append(TYPES - (types_of(node) or TYPES))
    return reduce(frozenset.__and__, types, TYPES)


def _exclusions(case: Case) -> tuple[Any, ...]:
    pairs = [(node, value) for node in _without(case) for value in _enumeration(node)]
    return distinct(value for node, value in pairs if value_kind(value) in (types_of(node) or TYPES))


def _enumeration(node: Node) -> list[Any]:
    """The values of enum and const, which must all hold."""
    consts = [node.get("const")] if "const" in node.schema else []  # type: ignore[operator]
    if node.get("enum") is None:
        return consts
    if consts:
        return [value for value in node.get("enum") if len(distinct([value, *consts])) == 1]
    return list(node.get("enum"))


def _values(case: Case, validity: Validity) -> tuple[Any, ...] | None:
    """Those of the first enumeration that are valid under each node by itself: what it combines is in the case."""
    listing = [node for node in case if "enum" in node.schema or "const" in node.schema]  # type: ignore[operator]
    if not listing:
        return None
    values = distinct(_enumeration(listing[0]))
    nodes = [without(node, *APART) for node in case if not node.place.endswith(WRITTEN)]
    return tuple(value for value in values if all(validity.holds(value, node) for node in nodes))


def _scope(case: Case) -> frozenset[str]:
    kinds = (SPEAKS.get(keyword, frozenset()) for node in case for keyword in node.schema)  # type: ignore[union-attr]
    return frozenset().union(*kinds)


def _text_types(case: Case, types: frozenset[str]) -> frozenset[str]:
    """Without ``type``, the one type that the other keywords speak of, else all."""
    scope = _scope(case)
    has_type = any(node.get("type") is not None and not node.place.endswith(WRITTEN) for node in case)
    if has_type or len(scope - {"fraction"}) != 1:
        scope = types
    return _restrict_types(case, types & scope)


def _restrict_types(case: Case, types: frozenset[str]) -> frozenset[str]:
    """Those that texts are written of."""
    kinds = [types_of(node) or types for node in case if node.place.endswith(WRITTEN)]
    return reduce(frozenset.__and__, kinds, types)


def _whole(node: Node, keyword: str) -> int:
    value = node.get(keyword)
    if isinstance(value, bool) or value != value or abs(value) >= 10**300 or value != int(value):
        raise refusal_at(
            node.place, f"{keyword}={value!r} is not a whole number of at most 300 digits. Only these are supported."
        )
    return int(value)


def _exact(node: Node, keyword: str) -> Fraction:
    value = node.get(keyword)
    if not isfinite(value) or abs(value) >= 10**300 or 10**300 % as_fraction(value).denominator:
        rule = "is not a number of at most 300 digits on each side of its point. Only these are supported."
        raise refusal_at(node.place, f"{keyword}={value!r} {rule}")
    return as_fraction(value)


def _bounds(case: Case, least: str, most: str) -> tuple[int, int | None]:
    lows = [_whole(node, least) for node in case if node.get(least) is not None]
    highs = [_whole(node, most) for node in case if node.get(most) is not None]
    return max(lows, default=0), min(highs, default=None)


def _numbers(case: Case) -> Range:
    numbers = Range()
    for node in case:
        for keyword, strict in (("minimum", False), ("exclusiveMinimum", True)):
            if node.get(keyword) is not None:
                numbers = numbers.above(_exact(node, keyword), strict)
        for keyword, strict in (("maximum", False), ("exclusiveMaximum", True)):
            if node.get(keyword) is not None:
                numbers = numbers.below(_exact(node, keyword), strict)
        if node.get("multipleOf") is not None:
            numbers = numbers.among(_exact(node, "multipleOf"))
    return numbers


def _texts(case: Case) -> Texts:
    patterns = [(node.place, node.get("pattern")) for node in case if node.get("pattern") is not None]
    formats = [(node.place, node.get("format")) for node in case if node.get("format") is not None]
    return Texts(*_bounds(case, "minLength", "maxLength"), tuple(patterns), tuple(formats))


def _arrays(case: Case) -> Arrays:
    parts = [
        (
            tuple(node.at("prefixItems", place) for place in range(len(node.get("prefixItems", ())))),
            _others(node, "items"),
        )
        for node in case
    ]
    unique = next((node.place for node in case if node.get("uniqueItems")), None)
    return Arrays(tuple(part for part in parts if part != ((), None)), *_bounds(case, "minItems", "maxItems"), unique)


def _objects(case: Case) -> Objects:
    required = {name: node.place for node in case for name in node.get("required", ())}
    place = next((node.place for node in case if "minProperties" in node.schema or "maxProperties" in node.schema), "#")  # type: ignore[operator]
    parts = tuple(part for node in case if (part := _members(node)) is not None)
    return Objects(parts, required, *_bounds(case, "minProperties", "maxProperties"), place)


def _members(node: Node) -> Members | None:
    properties = {name: node.at("properties", name) for name in node.get("properties", {})}
    patterns = tuple((pattern, node.at("patternProperties", pattern)) for pattern in node.get("patternProperties", {}))
    others = _others(node, "additionalProperties")
    return Members(node, properties, patterns, others) if properties or patterns or others is not None else None


def _others(node: Node, keyword: str) -> Node | None:
    """The schema of all other members or items, at the place where the document has it."""
    if node.get(keyword) is None:
        return None
    if node.place.endswith(UNEVALUATED):
        return Node(node.place.removesuffix(UNEVALUATED), node.get(keyword))
    return node.at(keyword)
