"""Random schemas with every keyword that is kept."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["a", "b", "kind", "é", 'q"', "n\n"]
PATTERNS = ["^a+$", "[0-9]{2}", "b|^c", "^[^x]*$", "é$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]
SCALARS: list[Any] = [None, True, False, 0, 1, 1.0, -3, 2.5, "a", "aa", "é", "", "x\ny"]
VALUES: list[Any] = [*SCALARS, [], [1, "a"], {"a": 1}, {"b": {}}]


class Schemas:
    """Draws schemas; what clashes with itself is for the compiler to refuse."""

    def __init__(self, seed: int) -> None:
        self.random, self.rare = random.Random(seed), random.Random(-1 - seed)

    def root(self) -> Any:
        """A schema, one time in three with definitions that may contain themselves."""
        if self.random.random() < 0.67:
            return self.draw(3, [])
        refs = ["#", "#/$defs/x", "#/$defs/y/items"]
        definitions = {"x": self.draw(2, refs), "y": {"type": "array", "items": self.draw(1, refs)}}
        body = self.draw(3, refs)
        return {**body, "$defs": definitions} if isinstance(body, dict) else {"$defs": definitions, "$ref": refs[1]}

    def draw(self, deep: int, refs: list[str]) -> Any:
        roll = self.random.random()
        if roll < 0.04:
            return self.random.choice([True, False, {}])
        if refs and roll < 0.2:
            return {"$ref": self.random.choice(refs)}
        if deep and roll < 0.5:
            return self.combined(deep - 1, refs)
        kinds = ["scalar", "number", "string", "listed"] + ["array", "object", "object"] * bool(deep)
        found: dict[str, Any] = getattr(self, self.random.choice(kinds))(deep - 1, refs)
        if self.random.random() < 0.15:
            found.pop("type", None)
        if self.random.random() < 0.1:
            found["not"] = self.refusing()
        return found

    def refusing(self) -> Any:
        plain: list[Any] = [
            {"const": self.random.choice(VALUES)},
            {"enum": self.random.sample(VALUES, 3)},
            {"type": self.random.choice(["integer", "string", "null"])},
        ]
        return self.random.choice([*plain, {"anyOf": self.random.sample(plain, 2)}])

    def combined(self, deep: int, refs: list[str]) -> Any:
        keyword = self.random.choice(["anyOf", "anyOf", "oneOf", "oneOf", "allOf", "tagged"])
        if keyword == "tagged":
            return {"oneOf": [self.tagged(tag, deep, refs) for tag in self.random.sample(["u", "v", 1, 2], 2)]}
        found: dict[str, Any] = {keyword: [self.draw(deep, refs) for _ in range(self.random.randint(1, 3))]}
        beside = self.draw(deep, []) if self.random.random() < 0.3 else {}
        if keyword == "allOf" and self.rare.random() < 0.3:
            found[self.rare.choice(["unevaluatedProperties", "unevaluatedItems"])] = self.plain()
        return {**beside, **found} if isinstance(beside, dict) else found

    def plain(self) -> Any:
        return self.rare.choice([False, {"type": "integer"}, {"enum": [1, "a", None]}])

    def tagged(self, tag: Any, deep: int, refs: list[str]) -> Any:
        found = self.object(deep, refs)
        found["properties"]["kind"] = {"const": tag}
        found["required"] = ["kind"]
        return found

    def scalar(self, deep: int, refs: list[str]) -> Any:
        kinds = ["null", "boolean", "integer", "number", "string"]
        return {"type": self.random.choice([self.random.choice(kinds), self.random.sample(kinds, 2)])}

    def number(self, deep: int, refs: list[str]) -> Any:
        found: dict[str, Any] = {"type": self.random.choice(["integer", "number"])}
        low = self.random.randint(-120, 120)
        if self.random.random() < 0.7:
            found[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.7:
            found[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.choice([0, 1, 2, 9, 250])
        if self.random.random() < 0.25:
            found["multipleOf"] = self.random.choice([1, 2, 3, 7, 10.0])
        return found

    def string(self, deep: int, refs: list[str]) -> Any:
        found: dict[str, Any] = {"type": "string"}
        if self.random.random() < 0.4:
            found["minLength"] = self.random.randint(0, 3)
        if self.random.random() < 0.4:
            found["maxLength"] = self.random.randint(1, 5)
        if self.random.random() < 0.4:
            found["pattern"] = self.random.choice(PATTERNS)
        if self.random.random() < 0.15:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        return found

    def listed(self, deep: int, refs: list[str]) -> Any:
        found: dict[str, Any] = {"enum": self.random.sample(VALUES, self.random.randint(1, 6))}
        found = found if self.random.random() < 0.7 else {"const": self.random.choice(VALUES)}
        beside = self.random.choice(["scalar", "number", "string", "none"])
        return found if beside == "none" else {**getattr(self, beside)(deep, refs), **found}

    def array(self, deep: int, refs: list[str]) -> Any:
        found: dict[str, Any] = {"type": "array"}
        if self.random.random() < 0.7:
            found["items"] = self.draw(deep, refs)
        if self.random.random() < 0.4:
            found["prefixItems"] = [self.draw(deep, refs) for _ in range(self.random.randint(1, 3))]
        if self.random.random() < 0.4:
            found["minItems"] = self.random.randint(0, 3)
        if self.random.random() < 0.4:
            found["maxItems"] = self.random.randint(0, 4)
        if self.random.random() < 0.15:
            found |= {"items": {"enum": self.random.sample(VALUES, 3)}, "uniqueItems": True}
        if self.rare.random() < 0.1:
            found["unevaluatedItems"] = self.plain()
        return found

    def object(self, deep: int, refs: list[str]) -> Any:
        chosen = self.random.sample(NAMES, self.random.randint(0, 4))
        found: dict[str, Any] = {"type": "object", "properties": {name: self.draw(deep, refs) for name in chosen}}
        if chosen and self.random.random() < 0.6:
            found["required"] = self.random.sample(chosen, self.random.randint(0, len(chosen)))
        if self.random.random() < 0.4:
            found["additionalProperties"] = self.draw(deep, refs) if self.random.random() < 0.6 else False
        if self.random.random() < 0.15:
            found["patternProperties"] = {self.random.choice(PATTERNS): self.draw(deep, refs)}
        if self.random.random() < 0.15:
            found[self.random.choice(["minProperties", "maxProperties"])] = self.random.randint(0, 3)
        if len(chosen) > 1 and self.random.random() < 0.2:
            found["dependentRequired"] = {chosen[0]: chosen[1:]}
        if chosen and self.rare.random() < 0.1:
            found["dependentSchemas"] = {chosen[0]: {"properties": {chosen[-1]: self.plain()}}}
        if self.rare.random() < 0.1:
            found["unevaluatedProperties"] = self.plain()
        return found
