"""Schemas of older drafts, written as Draft 2020-12: Draft 4, 6, 7 and 2019-09, by their ``$schema``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dllm.constraints.languages.schema.places import Schema, refused

_NAMED = re.compile(r"https?://json-schema\.org/(?:draft[-/](0?[0-9]|20[0-9-]+)/)?(?:hyper-)?schema#?")
_OLD = ("4", "6", "7", "2019-09")
_IN_MAPPINGS = ("properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "items", "prefixItems")
_ALONE = ("not", "items", "additionalProperties", "additionalItems", "contains", "propertyNames", "if", "then", "else",
          "unevaluatedItems", "unevaluatedProperties")  # fmt: skip


def as_2020(schema: Schema) -> Schema:
    """A schema whose ``$schema`` names an older draft, in the keywords of Draft 2020-12; any other as it is. Raises
    UserError for drafts before 4."""
    named = None if isinstance(schema, bool) else schema.get("$schema")
    found = _NAMED.fullmatch(named) if isinstance(named, str) else None
    draft = found[1].lstrip("0") if found and found[1] else ""
    if draft in ("1", "2", "3"):
        raise refused("#/$schema", f"Draft {draft} is not supported. Write the schema as Draft 4 or newer.")
    return _translated(schema, draft) if draft in _OLD else schema  # type: ignore[no-any-return]


def _translated(schema: Any, draft: str) -> Any:
    """One schema with all inside it. What is none is left for the metaschema to refuse."""
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _inner(key, value, draft) for key, value in schema.items()}
    _write_names(found, draft)
    if isinstance(found.get("$ref"), str):
        found["$ref"] = _moved(found["$ref"])
        if draft != "2019-09":  # there, and only since, what is beside $ref counts
            return {key: value for key, value in found.items() if key in ("$ref", "$schema", "definitions", "$defs")}
    _write_items(found)
    _write_dependencies(found)
    if draft == "4":
        _write_bounds(found)
    return found


def _inner(key: str, value: Any, draft: str) -> Any:
    if key in _IN_MAPPINGS and isinstance(value, Mapping):
        return {name: _translated(each, draft) for name, each in value.items()}
    if key in _IN_LISTS and isinstance(value, list):
        return [_translated(each, draft) for each in value]
    return _translated(value, draft) if key in _ALONE else value


def _write_items(found: dict[str, Any]) -> None:
    """A list under ``items`` is prefixItems, and additionalItems what follows; beside one schema it says nothing."""
    others = found.pop("additionalItems", None)
    if not isinstance(found.get("items"), list):
        return
    places = found.pop("items")
    if places:
        found["prefixItems"] = places
    if others is not None:
        found["items"] = others


def _write_dependencies(found: dict[str, Any]) -> None:
    depends = found.get("dependencies")
    if not isinstance(depends, Mapping):
        return
    del found["dependencies"]
    for keyword, listed in (("dependentRequired", True), ("dependentSchemas", False)):
        of_kind = {name: value for name, value in depends.items() if isinstance(value, list) == listed}
        if of_kind:
            found[keyword] = {**of_kind, **found.get(keyword, {})}


def _write_names(found: dict[str, Any], draft: str) -> None:
    """Draft 4 has ``id``, and up to Draft 7 one that begins with # is an anchor."""
    if draft == "4" and isinstance(found.get("id"), str) and "$id" not in found:
        found["$id"] = found.pop("id")
    if draft != "2019-09" and isinstance(found.get("$id"), str) and found["$id"].startswith("#"):
        found["$anchor"] = found.pop("$id")[1:]


def _write_bounds(found: dict[str, Any]) -> None:
    """Draft 4: exclusiveMinimum says whether minimum itself is out."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and bound in found:
            found[exclusive] = found.pop(bound)


def _moved(ref: str) -> str:
    """A path, where the keywords on it have other names."""
    ref = re.sub(r"/items/(?=[0-9]+(/|$))", "/prefixItems/", ref)
    return re.sub(r"/additionalItems(?=/|$)", "/items", ref).replace("/dependencies/", "/dependentSchemas/")
