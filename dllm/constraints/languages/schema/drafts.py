"""Schemas of older drafts, written as Draft 2020-12: Draft 4, 6, 7 and 2019-09, by their ``$schema``; what the
metaschema refuses.

The metaschema's own way, through ``$dynamicRef`` and eight vocabularies at each schema, takes 1 ms a schema and
Python's stack; here a keyword's value is judged by the part of the metaschema that speaks of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urljoin

from dllm.common.errors import Refusal
from dllm.common.installing import not_installed
from dllm.constraints.languages.schema.places import Node, Schema, pointer_part, refusal_at

_DRAFT_URI = re.compile(r"https?://json-schema\.org/(?:draft[-/](0?[0-9]|20[0-9-]+)/)?(?:hyper-)?schema#?")
_OLD = ("4", "6", "7", "2019-09")
_IN_MAPPINGS = ("properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "items", "prefixItems")
_ALONE = ("not", "items", "additionalProperties", "additionalItems", "contains", "propertyNames", "if", "then", "else",
          "unevaluatedItems", "unevaluatedProperties")  # fmt: skip


def as_2020(schema: Schema) -> Schema:
    """A schema whose ``$schema`` names an older draft, as Draft 2020-12. Raises UserError for drafts before 4."""
    uri = None if isinstance(schema, bool) else schema.get("$schema")
    match = _DRAFT_URI.fullmatch(uri) if isinstance(uri, str) else None
    draft = match[1].lstrip("0") if match and match[1] else ""
    if draft in ("1", "2", "3"):
        raise refusal_at("#/$schema", f"Draft {draft} is not supported. Write the schema as Draft 4 or newer.")
    return _translate(schema, draft) if draft in _OLD else schema  # type: ignore[no-any-return]


def _translate(schema: Any, draft: str) -> Any:
    """One schema with all inside it. Anything else is left for the metaschema to refuse."""
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _inner(key, value, draft) for key, value in schema.items()}
    _write_names(out, draft)
    if isinstance(out.get("$ref"), str):
        out["$ref"] = _new_path(out["$ref"])
        if draft != "2019-09":  # there, and only since, what is beside $ref counts
            return {key: value for key, value in out.items() if key in ("$ref", "$schema", "definitions", "$defs")}
    _write_items(out)
    _write_dependencies(out)
    if draft == "4":
        _write_bounds(out)
    return out


def _inner(key: str, value: Any, draft: str) -> Any:
    if key in _IN_MAPPINGS and isinstance(value, Mapping):
        return {name: _translate(each, draft) for name, each in value.items()}
    if key in _IN_LISTS and isinstance(value, list):
        return [_translate(each, draft) for each in value]
    return _translate(value, draft) if key in _ALONE else value


def _write_items(schema: dict[str, Any]) -> None:
    """A list under ``items`` is prefixItems, and additionalItems what follows; beside one schema it has no effect."""
    others = schema.pop("additionalItems", None)
    if not isinstance(schema.get("items"), list):
        return
    places = schema.pop("items")
    if places:
        schema["prefixItems"] = places
    if others is not None:
        schema["items"] = others


def _write_dependencies(schema: dict[str, Any]) -> None:
    depends = schema.get("dependencies")
    if not isinstance(depends, Mapping):
        return
    del schema["dependencies"]
    for keyword, is_list in (("dependentRequired", True), ("dependentSchemas", False)):
        of_kind = {name: value for name, value in depends.items() if isinstance(value, list) == is_list}
        if of_kind:
            schema[keyword] = {**of_kind, **schema.get(keyword, {})}


def _write_names(schema: dict[str, Any], draft: str) -> None:
    """Draft 4 has ``id``, and up to Draft 7 one that begins with # is an anchor."""
    if draft == "4" and isinstance(schema.get("id"), str) and "$id" not in schema:
        schema["$id"] = schema.pop("id")
    if draft != "2019-09" and isinstance(schema.get("$id"), str) and schema["$id"].startswith("#"):
        schema["$anchor"] = schema.pop("$id")[1:]


def _write_bounds(schema: dict[str, Any]) -> None:
    """Draft 4: exclusiveMinimum says whether minimum itself is out."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)


def _new_path(ref: str) -> str:
    """A path, where the keywords on it have other names."""
    ref = re.sub(r"/items/(?=[0-9]+(/|$))", "/prefixItems/", ref)
    return re.sub(r"/additionalItems(?=/|$)", "/items", ref).replace("/dependencies/", "/dependentSchemas/")


RECURSIVE = {"$dynamicRef": "#meta"}
# Values of older drafts, which are taken where $schema names one.
_OLDER = {
    "items": " Write prefixItems, or name an older draft: without $schema it is 2020-12.",
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        " Write the bound itself, or name Draft 4: without $schema it is 2020-12.",
    ),
}
Tick = Callable[[int], None]


def check_schema(root: Node, tick: Tick) -> list[Node]:
    """Refuse what the metaschema refuses, with its place. Returns the schema and all inside, each before its own.
    tick: called with the number of schemas seen. Raises UserError."""
    waiting, nodes = [root], list[Node]()
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        tick(len(nodes))
        if isinstance(node.schema, bool):
            continue
        if not isinstance(node.schema, Mapping):
            raise _none(node.place, f"{node.schema!r:.100} is not of type 'object', 'boolean'")
        for keyword in sorted(_keywords().keys() & node.schema.keys()):
            waiting += _check(node, keyword, _keywords()[keyword])
    return nodes


def _check(node: Node, keyword: str, validator: Any) -> Iterator[Node]:
    """Judge one keyword; the schemas within its value."""
    value, place, rule = node.schema[keyword], node.at(keyword), validator.schema  # type: ignore[index]
    if "$dynamicRef" in rule:
        yield place
    elif rule.get("$ref") == "#/$defs/schemaArray":
        if not isinstance(value, list) or not value:
            raise _none(place.place, f"{value!r:.100} is not of type 'array', or empty")
        yield from (place.at(index) for index in range(len(value)))
    elif rule.get("additionalProperties") == RECURSIVE:
        if not isinstance(value, Mapping):
            raise _none(place.place, f"{value!r:.100} is not of type 'object'")
        yield from (place.at(name) for name in value)
    elif keyword not in ("dependencies", "$recursiveRef", "$recursiveAnchor"):  # of old drafts: refused where met
        error = next(validator.iter_errors(value), None)
        if error is not None:
            path = "/".join([place.place, *map(pointer_part, error.absolute_path)])
            raise _none(path, error.message.rstrip(".") if len(error.message) <= 200 else f"{error.message[:200]}...")


def _none(place: str, why: str) -> Refusal:
    hint = _OLDER.get(place.rpartition("/")[2], "")
    return refusal_at(place, f"this is no JSON schema (Draft 2020-12): {why}.{hint}")


@cache
def _keywords() -> dict[str, Any]:
    """For each keyword a validator of what the metaschema says of it."""
    try:
        import jsonschema
        from jsonschema_specifications import REGISTRY
    except ImportError:
        raise not_installed("{constraint=json_schema}", "jsonschema", "constraints") from None
    kind = jsonschema.Draft202012Validator
    parts = [
        kind.META_SCHEMA,
        *(REGISTRY[urljoin(kind.META_SCHEMA["$id"], each["$ref"])].contents for each in kind.META_SCHEMA["allOf"]),
    ]
    return {
        keyword: kind({**rule, "$defs": part.get("$defs", {})})
        for part in parts
        for keyword, rule in part["properties"].items()
        if rule is not True
    }
