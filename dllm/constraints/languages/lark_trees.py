"""What Lark's loader has read, as trees: rules, templates, terminals, and what is ignored between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dllm.common.errors import Refusal, nearest, verbatim
from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.left import bad_grammar
from dllm.constraints.languages.limits import budget
from dllm.constraints.languages.regex import REFUSED_PARTS, regex_tree, shown_pattern
from dllm.constraints.languages.terminals import WORD_BEGINS, WORD_ENDS
from dllm.constraints.languages.trees import Alt, Automaton, Cat, Language, Rep, RuleCall, Tree

ENTRY = " start"  # no name of Lark's: the start rule with what may be ignored in front of it
OPERATORS: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
FLAGS = {"i": re.IGNORECASE, "s": re.DOTALL}
USES = 1000  # of templates; one that calls itself with ever longer arguments has no end

TemplateValue = tuple[str, Tree]  # what a template is given: a name for it, and its tree


class Terminals:
    """The terminals of a ``lark.load_grammar.Grammar`` as automata, each with what may be ignored after it. marks:
    marks are around them (``terminals``)."""

    def __init__(self, grammar: Any, marks: bool) -> None:
        self.marks, self.trees = marks, {name: tree for name, (tree, _) in grammar.term_defs}
        self._automata: dict[str, Tree] = {}
        self.ignored = Rep(Alt(tuple(self._alone(name, self.trees[name]) for name in grammar.ignore)))

    def tree(self, key: str, literal: Any = None) -> Tree:
        """A terminal of the grammar by its name, or by its text a ``literal`` that is in a rule."""
        if key not in self._automata:
            alone = self._alone(key, self.trees[key]) if literal is None else self._alone("", literal)
            tree = Cat((WORD_BEGINS, alone, WORD_ENDS)) if self.marks else alone
            self._automata[key] = _machine(Cat((tree, self.ignored)))
        return self._automata[key]

    def _alone(self, name: str, node: Any) -> Automaton:
        """Raises UserError for a terminal that may be empty, which Lark's parser does not take."""
        if node is None:
            raise bad_grammar(f"terminal {name} is declared without a text. Define it: {name}: ...")
        tree = _machine(_Terminal(name).tree(node))
        if tree.automaton.accepts(b""):
            label = name or shown_pattern(str(node.children[0]))
            raise bad_grammar(f"terminal {label} may be empty. Let it read at least one character.")
        return tree


def _machine(tree: Tree) -> Automaton:
    return Automaton(to_automaton(Language({"start": tree})))


class _Terminal:
    """Reads the tree of one terminal, in which Lark has replaced the names of others by their trees."""

    def __init__(self, name: str) -> None:
        self.label = f"{name}=" if name else ""
        self._read: dict[int, Tree] = {}  # Lark's trees share parts: each is read once

    def tree(self, node: Any) -> Tree:
        if id(node) not in self._read:
            self._read[id(node)] = self._pattern(node) if node.data in ("literal", "range") else _plain(self.tree, node)
        return self._read[id(node)]

    def _pattern(self, node: Any) -> Tree:
        from lark import Tree as LarkTree
        from lark.load_grammar import PrepareLiterals

        (pattern,) = PrepareLiterals().transform(LarkTree(node.data, list(node.children))).children
        where = f"{{constraint.grammar:name}}: terminal {self.label}{verbatim(shown_pattern(pattern.value))}"
        if set(pattern.flags) - set(FLAGS):
            raise Refusal(f"{where} {REFUSED_PARTS['FLAG']}")
        source = re.escape(pattern.value) if pattern.type == "str" else pattern.value
        return regex_tree(source, where, flags=sum(FLAGS[flag] for flag in pattern.flags))


class Rules:
    """Makes trees of the rules of a ``lark.load_grammar.Grammar``. Templates become a rule for each use."""

    def __init__(self, grammar: Any, marks: bool) -> None:
        self.terminals = Terminals(grammar, marks)
        self.definitions = {name: (parameters, tree) for name, parameters, tree, _ in grammar.rule_defs}
        self._waiting: list[tuple[str, str, dict[str, TemplateValue]]] = []
        self._seen: set[str] = set()

    def trees(self, start: str) -> dict[str, Tree]:
        """The trees of all rules that ``start`` leads to, and of ENTRY. Raises UserError."""
        trees: dict[str, Tree] = {ENTRY: Cat((self.terminals.ignored, self._use(start, [])[1]))}
        while self._waiting:
            use, name, arguments = self._waiting.pop()
            trees[use] = self._tree(self.definitions[name][1], arguments)
            budget().time(len(trees))
        return trees

    def _tree(self, node: Any, arguments: Mapping[str, TemplateValue]) -> Tree:
        if node.data == "value":
            return self._value(node, arguments)[1]
        return _plain(lambda inner: self._tree(inner, arguments), node)

    def _value(self, node: Any, arguments: Mapping[str, TemplateValue]) -> TemplateValue:
        (inner,) = node.children
        kind = getattr(inner, "data", None)
        if kind == "template_usage":
            name, *values = inner.children
            template = arguments[name.name][0] if name.name in arguments else name.name
            return self._use(template, [self._value(value, arguments) for value in values])
        if kind is not None:
            return str(inner), self.terminals.tree(str(inner), inner)
        if inner.is_term:
            return inner.name, self.terminals.tree(inner.name)
        return arguments[inner.name] if inner.name in arguments else self._use(inner.name, [])

    def _use(self, name: str, values: list[TemplateValue]) -> TemplateValue:
        """A call of a rule, or of a template with ``values``."""
        use = f"{name}{{{','.join(key for key, _ in values)}}}" if values else name
        if use not in self._seen:
            self._check(name, use, values)
            self._seen.add(use)
            self._waiting.append((use, name, dict(zip(self.definitions[name][0], values, strict=True))))
        return use, RuleCall(use)

    def _check(self, name: str, use: str, values: list[TemplateValue]) -> None:
        if name not in self.definitions:
            raise bad_grammar(f"the rule {name!r} is not defined.{nearest(name, self.definitions)}")
        parameters, tree = self.definitions[name]
        if tree is None:
            raise bad_grammar(f"the rule {name!r} is declared without a text. Define it: {name}: ...")
        if len(parameters) != len(values):
            raise bad_grammar(
                f"the template {name!r} takes {len(parameters)} arguments and is given "
                f"{len(values)}. Give it one for each of {', '.join(parameters)}."
            )
        if len(self._seen) > USES + len(self.definitions) or len(use) > 10_000:
            raise bad_grammar("its templates call each other without an end. Write them as rules.")


def _plain(inner: Any, node: Any) -> Tree:
    """A node that rules and terminals share; inner: reads what it holds."""
    match node.data:
        case "expansions":
            return Alt(tuple(map(inner, node.children)))
        case "expansion":
            return Cat(tuple(map(inner, node.children)))
        case "alias" | "value":
            return inner(node.children[0])  # type: ignore[no-any-return]
        case "maybe":
            return Rep(inner(node.children[0]), 0, 1)
        case "expr":
            part, operator, *numbers = node.children
            low, high = OPERATORS[str(operator)] if not numbers else (int(numbers[0]), int(numbers[-1]))
            if high is not None and not 0 <= low <= high:
                raise bad_grammar(f"~ {low}..{high} is not a range. Give the smaller number first.")
            return Rep(inner(part), low, high)
    raise bad_grammar(f"{node.data} is not known here.")
