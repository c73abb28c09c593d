"""Random schemas of tools, with what moves badly: names that are keywords, drafts, ids, definitions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

NAMES = ("default", "const", "enum", "examples", "$ref", "$defs", "type", "properties", "a~b", "c/d", "ä")
DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFTS = ("https://json-schema.org/draft/2020-12/schema", DRAFT7, "http://json-schema.org/draft-04/schema#", None)


class ToolSchemas:
    """A random schema of a tool, in one draft, whose definitions its properties refer to."""

    def __init__(self, seed: int, names: Sequence[str] = NAMES, depth: int = 2) -> None:
        """depth: objects in each other below the arguments."""
        self.draw, self.names, self.depth = random.Random(seed), names, depth
        self.draft = self.draw.choice(DRAFTS)
        self.home = self.draw.choice(("$defs", "definitions"))

    def schema(self) -> dict[str, Any]:
        inside = self.object(self.depth)
        root: dict[str, Any] = {} if self.draft is None else {"$schema": self.draft}
        if self.draw.random() < 0.2:
            root["$id" if self.draft != DRAFTS[2] else "id"] = "https://example.org/tool"
        root[self.home] = {"Unit": {"enum": ["mile", 2]}, "c/d": {"type": "boolean"}, "Whole": inside}
        shape = self.draw.randrange(5)
        if shape == 0:
            return {**root, "$ref": f"#/{self.home}/Whole"}
        if shape == 1:
            return {**root, "allOf": [{"$ref": f"#/{self.home}/Whole"}]}
        if shape == 2:
            return {**root, "oneOf": [self.object(max(self.depth - 1, 0)), {"type": "null"}]}
        return {**root, **self.object(self.depth), "type": self.draw.choice(("object", ["object", "null"]))}

    def object(self, depth: int) -> dict[str, Any]:
        names = self.draw.sample(self.names, self.draw.randint(1, 3))
        found = {
            "type": "object",
            "properties": {name: self.value(depth) for name in names},
            "additionalProperties": False,
            "required": names[: self.draw.randint(1, 3)],
        }
        if self.draw.random() < 0.3:
            key = "dependencies" if self.draft in DRAFTS[1:3] else "dependentRequired"
            found[key] = {names[-1]: [names[0]]}
        return found

    def value(self, depth: int) -> Any:
        kind = self.draw.randrange(8 if depth else 5)
        if kind == 0:
            return {"$ref": f"#/{self.home}/Unit"}
        if kind == 1:
            return {"$ref": f"#/{self.home}/c~1d"}
        if kind == 2:
            return {"enum": [1, "x", {"$ref": "#/nowhere"}], "default": {"$ref": "#/nowhere"}}
        if kind == 3:
            return {
                "type": "integer",
                "minimum": 0,
                **({"maximum": 9, "exclusiveMaximum": True} if self.draft == DRAFTS[2] else {"exclusiveMaximum": 9}),
            }
        if kind == 4:
            key = "items" if self.draft in DRAFTS[1:3] else "prefixItems"
            return {"type": "array", key: [{"enum": [1]}, {"type": "boolean"}], "minItems": 2, "maxItems": 2}
        return self.object(depth - 1)
