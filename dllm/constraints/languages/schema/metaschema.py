"""Whether a schema is one of Draft 2020-12: its metaschema, keyword by keyword.

The metaschema's own way, through ``$dynamicRef`` and eight vocabularies at each schema, takes 1 ms a schema and
Python's stack; here a keyword's value is judged by the part of the metaschema that speaks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urljoin

from dllm.constraints.languages.schema.places import Node, pointer_part, refused
from dllm.errors import UserError, not_installed

RECURSIVE = {"$dynamicRef": "#meta"}
# Values of older drafts, which are taken where $schema names one.
_OLDER = {
    "items": " Write prefixItems, or name an older draft: without $schema it is 2020-12.",
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"),
                    " Write the bound itself, or name Draft 4: without $schema it is 2020-12."),
}  # fmt: skip
Tick = Callable[[int], None]


def check_schema(root: Node, tick: Tick) -> list[Node]:
    """Refuse what the metaschema refuses, with its place. Returns the schema and all inside, each before its own.
    tick: called with the number of schemas seen. Raises UserError."""
    waiting, seen = [root], list[Node]()
    while waiting:
        node = waiting.pop()
        seen.append(node)
        tick(len(seen))
        if isinstance(node.schema, bool):
            continue
        if not isinstance(node.schema, Mapping):
            raise _none(node.place, f"{node.schema!r:.100} is not of type 'object', 'boolean'")
        for keyword in sorted(_keywords().keys() & node.schema.keys()):
            waiting += _check(node, keyword, _keywords()[keyword])
    return seen


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


def _none(place: str, why: str) -> UserError:
    return refused(place, f"this is no JSON schema (Draft 2020-12): {why}.{_OLDER.get(place.rpartition('/')[2], '')}")


@cache
def _keywords() -> dict[str, Any]:
    """For each keyword a validator of what the metaschema says of it."""
    try:
        import jsonschema
        from jsonschema_specifications import REGISTRY
    except ImportError:
        raise not_installed("constraint=json_schema", "jsonschema", "constraints") from None
    kind = jsonschema.Draft202012Validator
    parts = [kind.META_SCHEMA, *(REGISTRY[urljoin(kind.META_SCHEMA["$id"], each["$ref"])].contents
                                 for each in kind.META_SCHEMA["allOf"])]  # fmt: skip
    return {
        keyword: kind({**rule, "$defs": part.get("$defs", {})})
        for part in parts for keyword, rule in part["properties"].items() if rule is not True
    }  # fmt: skip
