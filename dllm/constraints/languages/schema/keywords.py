"""The keywords of JSON Schema, Draft 2020-12: kept, passed over, refused; and the type that each speaks of."""

from __future__ import annotations

# A number is an ``integer`` (1 and 1.0) or a ``fraction``, so that complements of types are types.
NUMBER_KINDS = frozenset({"integer", "fraction"})
TYPES = frozenset({"null", "boolean", "string", "array", "object"}) | NUMBER_KINDS

SPEAKS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), NUMBER_KINDS),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), frozenset({"string"})),
    **dict.fromkeys(
        ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"), frozenset({"array"})),
    **dict.fromkeys(
        ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
         "dependentRequired", "dependentSchemas", "unevaluatedProperties"), frozenset({"object"})),
}  # fmt: skip
KEPT_KEYWORDS = frozenset(SPEAKS) | {"type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref"}
ANCHORS = frozenset({"$anchor", "$dynamicAnchor"})  # names of a schema for $ref; they differ for $dynamicRef alone
PASSED_OVER = ANCHORS | frozenset({
    "$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema",
})  # fmt: skip

_CASES = "Write its cases out with anyOf."
_ITEMS = "Describe the places with prefixItems and items."
_PATH = "Use $ref with a path from the root, such as '#/$defs/name', or with the name of an $anchor."
REFUSED_KEYWORDS: dict[str, str] = {
    "if": _CASES,
    "then": _CASES,
    "else": _CASES,
    "dependencies": "Write dependentRequired or dependentSchemas, or name an older draft by $schema.",
    "propertyNames": "Use patternProperties with additionalProperties: false.",
    "contains": _ITEMS,
    "minContains": _ITEMS,
    "maxContains": _ITEMS,
    "additionalItems": "Write items beside prefixItems, or name an older draft by $schema.",
    "$dynamicRef": _PATH,
    "$recursiveRef": _PATH,
    "$recursiveAnchor": _PATH,
    "$id": "Inside a schema it would move the root of $ref. Leave it out.",
    "nullable": "Write type: [..., 'null'].",
    "discriminator": "It says nothing without oneOf beside it. Leave it out.",
}
KNOWN_KEYWORDS = KEPT_KEYWORDS | PASSED_OVER | frozenset(REFUSED_KEYWORDS)
