"""Which rules of a language are written where they are called, and which stay calls; which contain themselves."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.trees import Language, RuleCall, Tree, inner_trees

MAX_ADDED_NODES = 20_000  # nodes that writing out calls may add


def calls_of(tree: Tree) -> tuple[Counter[str], int]:
    """The rules that a tree calls, each so often as it is written there, and the tree's nodes."""
    calls: Counter[str] = Counter()
    waiting, nodes, clock = [tree], 0, budget()
    while waiting:
        tree, nodes = waiting.pop(), nodes + 1
        if nodes % 4096 == 0:  # a tree that is in several places counts in each
            clock.nondeterministic(nodes // 16)
        waiting.extend(inner_trees(tree))
        if isinstance(tree, RuleCall):
            calls[tree.rule] += 1
    return calls, nodes


def reachable(language: Language) -> dict[str, tuple[Counter[str], int]]:
    """The rules that the start leads to, with their calls and nodes."""
    rules: dict[str, tuple[Counter[str], int]] = {}
    waiting = [language.start]
    while waiting:
        rule = waiting.pop()
        if rule not in rules:
            rules[rule] = calls_of(language.rules[rule])
            waiting.extend(rules[rule][0])
    return rules


def remaining(language: Language) -> dict[str, set[str]]:
    """The rules that stay, the start first, and which of them each calls once all others are written out. A rule that
    does not call itself is written where it is called, the cheapest first, until that would add more than 20,000 nodes.
    So what is left calls itself, but for the start, and for the one rule that a start merely frames: the depth is
    counted there whether something is around it or not."""
    rules = reachable(language)
    calls = {rule: Counter(callees) for rule, (callees, _) in rules.items()}
    nodes = {rule: size for rule, (_, size) in rules.items()}
    callers: dict[str, set[str]] = {rule: set() for rule in calls}
    for rule, callees in calls.items():
        for name in callees:
            callers[name].add(rule)

    def cost(rule: str) -> int:
        return nodes[rule] * sum(calls[caller][rule] for caller in callers[rule])

    order = {rule: number for number, rule in enumerate(calls)}
    fixed = {language.start, *_sole_circle(language.start, calls)}
    waiting = [(cost(rule), order[rule], rule) for rule in calls if rule not in fixed]
    heapq.heapify(waiting)
    budget_left = MAX_ADDED_NODES
    while waiting:
        old, _, rule = heapq.heappop(waiting)
        now = cost(rule)
        if rule in calls[rule]:
            continue
        if now > old:
            heapq.heappush(waiting, (now, order[rule], rule))
            continue
        if now > budget_left:
            break
        budget_left -= now
        _write_out(rule, calls, nodes, callers)
    return {rule: set(calls[rule]) for rule in sorted(calls, key=lambda rule: (rule != language.start, order[rule]))}


def _sole_circle(start: str, calls: Mapping[str, Counter[str]]) -> list[str]:
    """The only rule that the start calls, where that contains itself."""
    if calls[start].total() != 1:
        return []
    (rule,) = calls[start]
    circle = circles({name: set(callees) for name, callees in calls.items()})
    contains = rule in calls[rule] or list(circle.values()).count(circle[rule]) > 1
    return [rule] if contains else []


def _write_out(rule: str, calls: dict[str, Counter[str]], nodes: dict[str, int], callers: dict[str, set[str]]) -> None:
    """Replace every call of ``rule`` by its tree, in the counts."""
    inner, size = calls.pop(rule), nodes.pop(rule)
    for name in inner:
        callers[name].discard(rule)
    for caller in callers.pop(rule):
        times = calls[caller].pop(rule)
        nodes[caller] += times * size
        for name, count in inner.items():
            calls[caller][name] += times * count
            callers[name].add(caller)


def circles(calls: Mapping[str, set[str]]) -> dict[str, int]:
    """The number of the circle that each rule is in: rules of one number lead to each other (Kosaraju)."""
    back: dict[str, set[str]] = {rule: set() for rule in calls}
    for rule, callees in calls.items():
        for name in callees:
            back[name].add(rule)
    order: list[str] = []
    marks: set[str] = set()
    for root in calls:
        order += _postorder(root, calls, marks)
    marks, numbers = set(), {}
    for number, root in enumerate(reversed(order)):
        numbers.update(dict.fromkeys(_postorder(root, back, marks), number))
    return numbers


def _postorder(root: str, calls: Mapping[str, set[str]], marks: set[str]) -> list[str]:
    """The rules without ``marks`` that the root leads to, itself last, in the order in which a search leaves them."""
    out: list[str] = []
    work = [] if root in marks else [(root, iter(calls[root]))]
    marks.add(root)
    while work:
        rule, rest = work[-1]
        name = next((name for name in rest if name not in marks), None)
        if name is None:
            out.append(work.pop()[0])
        else:
            marks.add(name)
            work.append((name, iter(calls[name])))
    return out
