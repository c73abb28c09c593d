"""Objects as trees: listed members in their order, then all others, and how many."""

from __future__ import annotations

from itertools import combinations

from dllm.constraints.languages.json import around
from dllm.constraints.languages.schema.facts import Objects
from dllm.constraints.languages.schema.patterns import Patterns
from dllm.constraints.languages.schema.places import Node, ValueTree, refused
from dllm.constraints.languages.schema.strings import names
from dllm.constraints.languages.schema.values import comma, enclosed, pair, quoted
from dllm.constraints.languages.trees import Alt, Cat, OneOrMore, Rep, Tree
from dllm.constraints.languages.utf8 import literal_text

# Unlisted names are parted by which patterns they match: into 2 to the power of this.
MOST_PATTERNS = 4


class ObjectTrees:
    """Writes objects. additional: without additionalProperties, any member may be added; strict: required names
    must be listed."""

    def __init__(self, value: ValueTree, patterns: Patterns, whitespace: str, additional: bool, strict: bool) -> None:
        self._value, self._patterns, self._whitespace = value, patterns, whitespace
        self._additional, self._strict = additional, strict

    def tree(self, objects: Objects) -> Tree:
        """An object with its brackets. Raises UserError where the parts cannot be joined."""
        _joinable(objects, self._patterns)
        names = self._names(objects)
        listed = [(self._member(name, objects), name in objects.required) for name in names]
        others = self._others(objects, names)
        return self._counted(objects, listed, others)

    def _names(self, objects: Objects) -> tuple[str, ...]:
        """Those under properties, then (if not strict) those that are only required."""
        for name, place in objects.required.items():
            if self._strict and name not in objects.listed:
                raise refused(
                    place,
                    f"required names {name!r}, which is not in properties. List it there. With "
                    "strict=false it takes additionalProperties, or any JSON.",
                )
        return tuple(dict.fromkeys((*objects.listed, *objects.required)))

    def _member(self, name: str, objects: Objects) -> Tree:
        return pair(quoted(name), self._value(objects.member(name, self._patterns)), self._whitespace)

    def _others(self, objects: Objects, listed: tuple[str, ...]) -> Tree | None:
        """A member with a name of its own; None without any."""
        patterns = list(dict.fromkeys(pattern for part in objects.parts for pattern, _ in part.patterns))
        if len(patterns) > MOST_PATTERNS:
            place = objects.parts[0].node.place
            more = f"{len(patterns)} patterns under patternProperties are more than {MOST_PATTERNS}"
            raise refused(place, f"{more}. Write one for several.")
        cases = []
        for count in range(len(patterns) + 1):
            for chosen in combinations(patterns, count):
                goal = _unlisted(objects, chosen, self._additional)
                if goal is None or any(node.schema is False for node in goal):
                    continue
                inside = [self._patterns.searched(pattern, "#") for pattern in chosen]
                outside = [self._patterns.searched(pattern, "#") for pattern in patterns if pattern not in chosen]
                cases.append(pair(names(inside, outside, listed), self._value(goal), self._whitespace))
        return Alt(tuple(cases)) if cases else None

    def _counted(self, objects: Objects, listed: list[tuple[Tree, bool]], others: Tree | None) -> Tree:
        needed, most = sum(required for _, required in listed), None if others is not None else len(listed)
        low, high = objects.low, objects.high
        if high is not None and high < low:
            return Alt()
        high = None if high is not None and most is not None and high >= most else high
        if high is not None and high < max(low, needed):
            return Alt()
        if not listed:
            return self._enclosed(*self._unlisted_only(objects, others, high))
        if low > max(needed, 1):
            raise refused(objects.place, f"minProperties={low} is supported up to the required members, or 1.")
        if high is None:
            return self._enclosed(*self._members(listed, others, max(low, needed)))
        if high > 1:
            raise refused(objects.place, f"maxProperties={high} is supported without properties, or up to 1.")
        single = [tree for tree, required in listed if required or not needed]
        single += [others] if others is not None and not needed else []
        return self._enclosed(Alt(tuple(single if high else ())), max(low, needed) == 0)

    def _unlisted_only(self, objects: Objects, others: Tree | None, high: int | None) -> tuple[Tree, bool]:
        if objects.low > 1:  # names may be written twice, and then count once
            raise refused(
                objects.place, f"minProperties={objects.low} is supported up to 1 where names are not listed."
            )
        if others is None or high == 0:
            return Alt(), objects.low == 0
        between = comma(Cat(), self._whitespace)
        if high is None:
            return OneOrMore((others,), between, again=True), objects.low == 0
        return Cat((others, Rep(Cat((between, others)), 0, high - 1))), objects.low == 0

    def _members(self, listed: list[tuple[Tree, bool]], others: Tree | None, low: int) -> tuple[Tree, bool]:
        """Members in order, and whether there may be none."""
        between = comma(Cat(), self._whitespace)
        first = next((place for place, (_, required) in enumerate(listed) if required), None)
        if first is None:
            parts = [tree for tree, _ in listed] + ([] if others is None else [others])
            return OneOrMore(tuple(parts), between, again=others is not None), low == 0
        before: list[Tree] = [Rep(Cat((tree, between)), 0, 1) for tree, _ in listed[:first]]
        behind: list[Tree] = [
            Cat((between, tree)) if required else Rep(Cat((between, tree)), 0, 1)
            for tree, required in listed[first + 1 :]
        ]
        more = [] if others is None else [Rep(Cat((between, others)))]
        return Cat((*before, listed[first][0], *behind, *more)), False

    def _enclosed(self, members: Tree, empty: bool) -> Tree:
        nothing = Cat((literal_text("{"), around(self._whitespace), literal_text("}"))) if empty else Alt()
        return Alt((nothing, enclosed("{", members, "}", self._whitespace)))


def _unlisted(objects: Objects, chosen: tuple[str, ...], additional: bool) -> tuple[Node, ...] | None:
    """What holds of a member whose name matches exactly the chosen patterns; None: it is not written."""
    nodes: list[Node] = []
    for part in objects.parts:
        matching = [node for pattern, node in part.patterns if pattern in chosen]
        nodes += matching or ([] if part.others is None else [part.others])
    explicit = chosen or any(part.others is not None for part in objects.parts)
    return tuple(nodes) if explicit or additional else None


def _joinable(objects: Objects, patterns: Patterns) -> None:
    """Refuse additionalProperties of one part that do not see a name of another. Raises UserError."""
    for part in objects.parts:
        if part.others is None or part.others.schema is True or part.others.schema == {}:
            continue
        for other in objects.parts:
            for name, node in other.properties.items():
                if node.schema is not False and part.of(name, patterns) == (part.others,):
                    place, _, keyword = part.others.place.rpartition("/")
                    raise refused(
                        place,
                        f"allOf, or what is joined here: {keyword} does not see the property "
                        f"{name!r} of {other.node.place}. List it under properties here too, as "
                        "true.",
                    )
