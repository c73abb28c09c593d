"""Why a schema allows nothing: its place, and the keywords that exclude each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.schema.cases import Case
from dllm.constraints.languages.schema.document import Document
from dllm.constraints.languages.schema.facts import Facts, Texts
from dllm.constraints.languages.schema.keywords import NUMBER_KINDS, PASSED_OVER
from dllm.constraints.languages.schema.places import Node, Schema, refused
from dllm.constraints.languages.schema.proofs import Proofs
from dllm.constraints.languages.schema.strings import contents
from dllm.errors import UserError

_NUMBERS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_STRINGS = ("minLength", "maxLength", "pattern", "format")
_LEVELS = 32  # schemas inside each other that are looked into


def why_empty(schema: Schema, strict: bool, beside: tuple[Node, ...] = ()) -> UserError | None:
    """The refusal of a schema that allows nothing ``beside`` others; None: no two keywords are to blame."""
    try:
        document = Document(schema, strict, budget())
        proofs = Proofs(document, budget())
        return next(EmptyReasons(proofs, strict).of((document.root, *beside)), None)
    except RecursionError:
        return None


class EmptyReasons:
    """Looks for what leaves no value, from a schema to those inside it."""

    def __init__(self, proofs: Proofs, strict: bool) -> None:
        self._proofs, self._strict = proofs, strict
        self._open: list[tuple[Node, ...]] = []

    def of(self, nodes: tuple[Node, ...]) -> Iterator[UserError]:
        """Why no value is valid under all these nodes."""
        if nodes in self._open or len(self._open) == _LEVELS:
            yield refused(nodes[0].place, "it must hold itself without an end. Leave it out of required.")
            return
        self._open.append(nodes)
        for case in self._proofs.cases.of(nodes):
            yield from self._case(case, self._proofs.facts(case))
        self._open.pop()

    def _case(self, case: Case, found: Facts) -> Iterator[UserError]:
        if found.values is not None:
            yield from self._values(case, found)
        elif not found.types:
            yield _clash(case, ("type", "not"), "leave no type")
        elif found.written & NUMBER_KINDS and not any(map(found.numbers.holds, found.written & NUMBER_KINDS)):
            yield _clash(case, _NUMBERS, "leave no number")
        if found.values is None:
            for kind, look in (("string", self._string), ("array", self._array), ("object", self._object)):
                yield from look(case, found) if kind in found.written else ()

    def _values(self, case: Case, found: Facts) -> Iterator[UserError]:
        """Each value of the enumeration breaks another keyword."""
        if found.values:
            return
        own = next(node for node in case if "enum" in node.schema or "const" in node.schema)  # type: ignore[operator]
        listing = "const" if own.get("enum") is None else "enum"
        values = [own.get("const")] if listing == "const" else own.get("enum")
        for node in case:
            for keyword in node.schema if isinstance(node.schema, dict) else ():
                alone = Node(f"{node.place}~{keyword}", {keyword: node.get(keyword)})
                if keyword in PASSED_OVER or (node, keyword) == (own, listing):
                    continue
                if not any(self._proofs.validity.holds(value, alone) for value in values):
                    yield _said([(own, listing), (node, keyword)], "leave no value")
        yield _said([(own, listing)], "has no value that its other keywords allow")

    def _string(self, case: Case, found: Facts) -> Iterator[UserError]:
        said = found.texts
        if said.high is not None and said.high < said.low:
            yield _clash(case, ("minLength", "maxLength"), "leave no string")
        elif (said.patterns or said.formats) and not self._written(said):
            for keyword, fewer in (("pattern", replace(said, patterns=())), ("format", replace(said, formats=()))):
                if self._written(fewer):
                    yield _clash(case, (keyword, *(name for name in _STRINGS if name != keyword)), "leave no string")
            yield _clash(case, _STRINGS, "leave no string")

    def _written(self, said: Texts) -> bool:
        return len(contents(said, (), self._proofs.patterns, self._strict).moves) > 0

    def _array(self, case: Case, found: Facts) -> Iterator[UserError]:
        said = found.arrays
        if said.high is not None and said.high < said.low:
            yield _clash(case, ("minItems", "maxItems"), "leave no list")
        if said.unique is not None and said.low > 1:
            yield _clash(case, ("minItems", "uniqueItems", "items"), "leave no list")
        for place in range(min(said.low, said.listed + 1)):
            if said.item(place):
                yield from self.of(said.item(place))
            if self._proofs.void_goal(said.item(place)):
                yield _clash(case, ("minItems", "items", "prefixItems"), "leave no list")

    def _object(self, case: Case, found: Facts) -> Iterator[UserError]:
        said = found.objects
        if said.high is not None and said.high < said.low:
            yield _clash(case, ("minProperties", "maxProperties"), "leave no object")
        if said.high is not None and said.high < len(said.required):
            yield _clash(case, ("required", "maxProperties"), "leave no object")
        for name in said.required:
            inner = said.member(name, self._proofs.patterns)
            yield from self.of(inner) if inner else ()
            if self._proofs.void_goal(inner):
                yield _clash(case, ("required", "properties", "additionalProperties", "patternProperties"),
                             f"leave no object with {name!r}")  # fmt: skip
        if said.low > len(said.required):
            yield _clash(case, ("minProperties", "properties", "additionalProperties"), "leave no object")


def _clash(case: Iterable[Node], keywords: tuple[str, ...], leaves: str) -> UserError:
    """These keywords of a case, each as often as the case has it."""
    return _said([(node, key) for node in case for key in keywords if node.get(key) is not None], leaves)


def _said(found: list[tuple[Node, str]], leaves: str) -> UserError:
    """Keywords, with the places of those that are elsewhere than the first."""
    if not found:
        return refused("#", f"its keywords {leaves}. Drop one.")
    home = _place(found[0][0])
    told = [_value(node, key) + ("" if _place(node) == home else f" at {_place(node)}") for node, key in found]
    listed = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]
    return refused(home, f"{listed} {leaves}. Change or drop one.")


def _value(node: Node, key: str) -> str:
    value: Any = node.get(key)
    return f"{key}={value!r:.60}" if not isinstance(value, dict) else key


def _place(node: Node) -> str:
    return node.place.partition("~")[0] if "~" in node.place.replace("~0", "").replace("~1", "") else node.place
