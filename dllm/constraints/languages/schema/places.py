"""Schemas by their places in the document, and refusals that name these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dllm.common.errors import Refusal
from dllm.constraints.languages.trees import Tree

Schema = Mapping[str, Any] | bool


@dataclass(frozen=True)
class Node:
    """A schema and its place in the document, a JSON pointer; nodes of one place are equal."""

    place: str  # a JSON pointer
    schema: Schema = field(compare=False)  # what is there

    def at(self, *path: str | int) -> Node:
        """The schema below, by keys and indices."""
        place, schema = self.place, self.schema
        for key in path:
            place, schema = f"{place}/{pointer_part(key)}", schema[key]  # type: ignore[index]
        return Node(place, schema)

    def get(self, keyword: str, default: Any = None) -> Any:
        """The value of a keyword; ``true`` and ``false`` have none."""
        return default if isinstance(self.schema, bool) else self.schema.get(keyword, default)


ValueTree = Callable[[tuple[Node, ...]], Tree]  # of what the schemas of these nodes all allow


def pointer_part(key: str | int) -> str:
    """A key as a step of a JSON pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")


def refusal_at(place: str, sentence: str, kind: type[Refusal] = Refusal) -> Refusal:
    return kind("{constraint.schema:name} at {place:value}: {why:value}", [place, sentence])


def too_deep(place: str) -> Refusal:
    return refusal_at(place, "the schema nests too deeply. Put parts of it into $defs, and shorten chains of $ref.")
