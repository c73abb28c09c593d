"""Whether a value of an enumeration validates: jsonschema's answer, with patterns by automata and
multiples by decimal digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from dllm.common.errors import UserError, first_line
from dllm.constraints.languages.schema.document import Document
from dllm.constraints.languages.schema.keywords import NUMBER_KINDS
from dllm.constraints.languages.schema.numbers import as_fraction
from dllm.constraints.languages.schema.patterns import Patterns
from dllm.constraints.languages.schema.places import Node, refusal_at, too_deep
from dllm.constraints.languages.schema.values import value_kind


class Validity:
    """The judge of the values that are in a schema. Formats are not asserted, and nothing is ever fetched."""

    def __init__(self, document: Document, patterns: Patterns) -> None:
        import jsonschema
        import referencing

        self._error, self._patterns = jsonschema.ValidationError, patterns
        own = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional,
            "unevaluatedProperties": self._refuse_unevaluated,
            "multipleOf": self._multiple,
        }
        kind: Any = jsonschema.validators.extend(jsonschema.Draft202012Validator, own)
        self._validator = kind(document.root.schema, registry=referencing.Registry())

    def holds(self, value: Any, node: Node) -> bool:
        """Whether a value validates under the schema of a node. Raises UserError."""
        try:
            return bool(self._validator.evolve(schema=node.schema).is_valid(value))
        except RecursionError:
            raise too_deep(node.place) from None
        except UserError:
            raise
        except Exception as error:  # a $ref that leads outside: referencing has a class for each way
            raise refusal_at(node.place, f"its values cannot be checked: {first_line(error)}.") from None

    def _matches(self, pattern: str, text: str) -> bool:
        return self._patterns.matches(pattern, "an enumeration", text)

    def _pattern(self, validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, str) and not self._matches(pattern, value):
            yield self._error("pattern")

    def _multiple(self, validator: Any, step: float, value: Any, schema: Any) -> Iterator[Any]:
        if value_kind(value) in NUMBER_KINDS and (
            not isfinite(value) or (as_fraction(value) / as_fraction(step)).denominator > 1
        ):
            yield self._error("multipleOf")

    def _pattern_properties(self, validator: Any, patterns: Any, value: Any, schema: Any) -> Iterator[Any]:
        for name, inner in value.items() if isinstance(value, Mapping) else ():
            for pattern, node in patterns.items():
                if self._matches(pattern, name):
                    yield from validator.descend(inner, node)

    def _additional(self, validator: Any, others: Any, value: Any, schema: Any) -> Iterator[Any]:
        for name, inner in value.items() if isinstance(value, Mapping) else ():
            patterns = schema.get("patternProperties", ())
            if name not in schema.get("properties", ()) and not any(self._matches(each, name) for each in patterns):
                yield from validator.descend(inner, others)

    def _refuse_unevaluated(self, validator: Any, others: Any, value: Any, schema: Any) -> Iterator[Any]:
        raise refusal_at("an enumeration", "the keyword 'unevaluatedProperties' is not supported.")
        yield
