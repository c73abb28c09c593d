"""Rules that begin with themselves: by their own name it becomes repetition, by way of others it is refused."""

from __future__ import annotations

from collections.abc import Mapping

from dllm.common.errors import Refusal, verbatim
from dllm.constraints.languages.rules import circles
from dllm.constraints.languages.trees import Alt, Automaton, Cat, Rep, RuleCall, Tree


def without_left_recursion(rules: Mapping[str, Tree]) -> dict[str, Tree]:
    """The same language with no rule that begins with itself. Raises UserError for indirect left recursion."""
    left = LeftRecursion(rules)
    trees = {rule: left.repetition(rule) if rule in left.firsts(tree) else tree for rule, tree in rules.items()}
    left = LeftRecursion(trees)
    firsts = {rule: left.firsts(tree) for rule, tree in trees.items()}
    circle = circles(firsts)
    sizes = list(circle.values())
    for rule, firsts_of_rule in firsts.items():
        if rule in firsts_of_rule or sizes.count(circle[rule]) > 1:
            raise _indirect(rule)
    return trees


def bad_grammar(why: str) -> Refusal:
    """The refusal of a grammar, for a reason in which texts of it may stand."""
    return Refusal(f"{{constraint.grammar:name}}: {verbatim(why)}")


def _indirect(rule: str) -> Refusal:
    return bad_grammar(
        f"the rule {rule!r} begins with itself by way of others (left recursion). Begin it with something that reads "
        "text, or use repetition: x*."
    )


class LeftRecursion:
    """What trees may begin with."""

    def __init__(self, rules: Mapping[str, Tree]) -> None:
        self.rules = rules
        self._empty: set[str] = set()
        before = -1
        while before < len(self._empty):
            before = len(self._empty)
            self._empty |= {rule for rule, tree in rules.items() if self.empty(tree)}

    def empty(self, tree: Tree) -> bool:
        """Whether the empty text is a word."""
        match tree:
            case Cat(parts):
                return all(map(self.empty, parts))
            case Alt(cases):
                return any(map(self.empty, cases))
            case Rep(part, low):
                return low == 0 or self.empty(part)
            case RuleCall(rule):
                return rule in self._empty
            case Automaton(automaton):
                return automaton.accepts(b"")
        return False

    def firsts(self, tree: Tree) -> set[str]:
        """The rules that may be called before anything is read."""
        match tree:
            case Cat(parts):
                rules: set[str] = set()
                for part in parts:
                    rules |= self.firsts(part)
                    if not self.empty(part):
                        break
                return rules
            case Alt(cases):
                return set().union(*map(self.firsts, cases))
            case Rep(part):
                return self.firsts(part)
            case RuleCall(rule):
                return {rule}
        return set()

    def repetition(self, rule: str) -> Tree:
        """The rule as what it begins with otherwise, then any number of what follows on itself."""
        behind, others = self._split(self.rules[rule], rule)
        return Cat((others, Rep(behind)))

    def _split(self, tree: Tree, rule: str) -> tuple[Tree, Tree]:
        """What follows where the tree begins with ``rule``, and the words that begin otherwise."""
        if rule not in self.firsts(tree):
            return Alt(), tree
        match tree:
            case Alt(cases):
                pairs = [self._split(case, rule) for case in cases]
                return Alt(tuple(behind for behind, _ in pairs)), Alt(tuple(others for _, others in pairs))
            case Cat((first, *rest)):
                return self._split_two(first, Cat(tuple(rest)), rule)
            case Rep(part, low, high):
                low = 0 if self.empty(part) else low  # of a part that may be empty only those that are not count
                more = Rep(part, max(0, low - 1), None if high is None else high - 1)
                once = Cat((self._non_empty(part, rule), more))
                return self._split(Alt((once, Cat())) if low == 0 else once, rule)
        return Cat(), Alt()

    def _split_two(self, first: Tree, rest: Tree, rule: str) -> tuple[Tree, Tree]:
        behind, others = self._split(first, rule)
        behind = Cat((behind, rest))
        if not (self.empty(others) and rule in self.firsts(rest)):
            return behind, Cat((others, rest))
        later, else_ = self._split(rest, rule)
        return Alt((behind, later)), Alt((Cat((self._non_empty(others, rule), rest)), else_))

    def _non_empty(self, tree: Tree, rule: str) -> Tree:
        """The words of the tree but the empty one. Raises UserError where another rule holds that."""
        if not self.empty(tree):
            return tree
        match tree:
            case Alt(cases):
                return Alt(tuple(self._non_empty(case, rule) for case in cases))
            case Cat((first, *rest)):
                behind = Cat(tuple(rest))
                return Alt((Cat((self._non_empty(first, rule), behind)), self._non_empty(behind, rule)))
            case Rep(part, _, high):
                more = Rep(part, 0, None if high is None else high - 1)
                return Cat((self._non_empty(part, rule), more)) if high != 0 else Alt()
            case RuleCall():
                raise _indirect(rule)
        return Alt()
