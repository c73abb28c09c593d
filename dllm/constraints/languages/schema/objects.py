"""Objects as trees: listed members in their order, then all others, and how many."""

from __future__ import annotations

from itertools import combinations

from dllm.constraints.languages.json import around
from dllm.constraints.languages.schema.facts import Objects
from dllm.constraints.languages.schema.patterns import Patterns
from dllm.constraints.languages.schema.places import Node, ValueTree, refusal_at
from dllm.constraints.languages.schema.strings import names
from dllm.constraints.languages.schema.values import comma, enclose, pair, string_text
from dllm.constraints.languages.trees import Alt, Cat, OneOrMore, Rep, Tree
from dllm.constraints.languages.utf8 import literal_text

# Unlisted names are parted by which patterns they match: into 2 to the power of this.
MOST_PATTERNS = 4


class ObjectTrees:
    """Writes objects. additional: any member may be added. strict: required names must be listed."""

    def __init__(self, value: ValueTree, patterns: Patterns, whitespace: str, additional: bool, strict: bool) -> None:
        self._value, self._patterns, self._whitespace = value, patterns, whitespace
        self._additional, self._strict = additional, strict

    def tree(self, objects: Objects) -> Tree:
        """An object with its brackets. Raises UserError where the parts cannot be joined."""
        _joinable(objects, self._patterns)
        names = self._names(objects)
        members = [(self._member(name, objects), name in objects.required) for name in names]
        others = self._others(objects, names)
        return self._with_bounds(objects, members, others)

    def _names(self, objects: Objects) -> tuple[str, ...]:
        """Those under properties, then (if not strict) those that are only required."""
        for name, place in objects.required.items():
            if self._strict and name not in objects.names:
                raise refusal_at(
                    place,
                    f"required names {name!r}, which is not in properties. List it there. With "
                    "strict=false it takes additionalProperties, or any JSON.",
                )
        return tuple(dict.fromkeys((*objects.names, *objects.required)))

    def _member(self, name: str, objects: Objects) -> Tree:
        return pair(string_text(name), self._value(objects.member(name, self._patterns)), self._whitespace)

    def _others(self, objects: Objects, written_names: tuple[str, ...]) -> Tree | None:
        """A member with a name of its own; None without any."""
        patterns = list(dict.fromkeys(pattern for part in objects.parts for pattern, _ in part.patterns))
        if len(patterns) > MOST_PATTERNS:
            place = objects.parts[0].node.place
            more = f"{len(patterns)} patterns under patternProperties are more than {MOST_PATTERNS}"
            raise refusal_at(place, f"{more}. Write one for several.")
        cases = []
        for count in range(len(patterns) + 1):
            for subset in combinations(patterns, count):
                goal = _goal_of_others(objects, subset, self._additional)
                if goal is None or any(node.schema is False for node in goal):
                    continue
                inside = [self._patterns.automaton(pattern, "#") for pattern in subset]
                outside = [self._patterns.automaton(pattern, "#") for pattern in patterns if pattern not in subset]
                cases.append(pair(names(inside, outside, written_names), self._value(goal), self._whitespace))
        return Alt(tuple(cases)) if cases else None

    def _with_bounds(self, objects: Objects, members: list[tuple[Tree, bool]], others: Tree | None) -> Tree:
        needs, most = sum(is_required for _, is_required in members), None if others is not None else len(members)
        low, high = objects.low, objects.high
        if high is not None and high < low:
            return Alt()
        high = None if high is not None and most is not None and high >= most else high
        if high is not None and high < max(low, needs):
            return Alt()
        if not members:
            return self._braces(*self._unlisted_only(objects, others, high))
        if low > max(needs, 1):
            raise refusal_at(objects.place, f"minProperties={low} is supported up to the required members, or 1.")
        if high is None:
            return self._braces(*self._members(members, others, max(low, needs)))
        if high > 1:
            raise refusal_at(objects.place, f"maxProperties={high} is supported without properties, or up to 1.")
        single = [tree for tree, is_required in members if is_required or not needs]
        single += [others] if others is not None and not needs else []
        return self._braces(Alt(tuple(single if high else ())), max(low, needs) == 0)

    def _unlisted_only(self, objects: Objects, others: Tree | None, high: int | None) -> tuple[Tree, bool]:
        if objects.low > 1:  # names may be written twice, and then count once
            raise refusal_at(
                objects.place, f"minProperties={objects.low} is supported up to 1 where names are not listed."
            )
        if others is None or high == 0:
            return Alt(), objects.low == 0
        between = comma(Cat(), self._whitespace)
        if high is None:
            return OneOrMore((others,), between, again=True), objects.low == 0
        return Cat((others, Rep(Cat((between, others)), 0, high - 1))), objects.low == 0

    def _members(self, members: list[tuple[Tree, bool]], others: Tree | None, low: int) -> tuple[Tree, bool]:
        """Members in order, and whether there may be none."""
        between = comma(Cat(), self._whitespace)
        first = next((place for place, (_, is_required) in enumerate(members) if is_required), None)
        if first is None:
            parts = [tree for tree, _ in members] + ([] if others is None else [others])
            return OneOrMore(tuple(parts), between, again=others is not None), low == 0
        before: list[Tree] = [Rep(Cat((tree, between)), 0, 1) for tree, _ in members[:first]]
        behind: list[Tree] = [
            Cat((between, tree)) if is_required else Rep(Cat((between, tree)), 0, 1)
            for tree, is_required in members[first + 1 :]
        ]
        more = [] if others is None else [Rep(Cat((between, others)))]
        return Cat((*before, members[first][0], *behind, *more)), False

    def _braces(self, members: Tree, empty: bool) -> Tree:
        nothing = Cat((literal_text("{"), around(self._whitespace), literal_text("}"))) if empty else Alt()
        return Alt((nothing, enclose("{", members, "}", self._whitespace)))


def _goal_of_others(objects: Objects, subset: tuple[str, ...], additional: bool) -> tuple[Node, ...] | None:
    """What holds of a member whose name matches exactly this subset of patterns; None: it is not written."""
    nodes: list[Node] = []
    for part in objects.parts:
        matching = [node for pattern, node in part.patterns if pattern in subset]
        nodes += matching or ([] if part.others is None else [part.others])
    explicit = subset or any(part.others is not None for part in objects.parts)
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
                    raise refusal_at(
                        place,
                        f"allOf, or what is joined here: {keyword} does not see the property "
                        f"{name!r} of {other.node.place}. List it under properties here too, as "
                        "true.",
                    )
