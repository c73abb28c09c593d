"""Grammars in Lark's syntax as trees: Lark's own loader reads, and the language is that of its Earley parser with
``dynamic_complete``, where no terminal has to take the longest match."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dllm.common.errors import Refusal, first_line, nearest
from dllm.common.installing import not_installed
from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.lark_trees import ENTRY, Rules
from dllm.constraints.languages.left import bad_grammar, without_left_recursion
from dllm.constraints.languages.terminals import without_marks
from dllm.constraints.languages.trees import Automaton, Language

LARK_GRAMMARS = ("common", "lark", "python", "unicode")  # what Lark brings along
MOST_PARTS = 20_000  # of all terminals; Lark takes a second for as many


def grammar_language(text: str, *, start: str, depth: int, words: bool) -> Language:
    """The texts of a grammar, by the options of ``Grammar``. Raises UserError for what Lark refuses, imports of files,
    what is not a regular language in a terminal, and indirect left recursion."""
    try:
        from lark.exceptions import LarkError
        from lark.load_grammar import GrammarBuilder
    except ImportError:
        raise not_installed("{constraint=grammar}", "lark", "constraints") from None
    try:
        grammar = _load(text, GrammarBuilder)
        names = [name for name, parameters, _, _ in grammar.rule_defs if not parameters]
        if start not in names:
            raise Refusal(f"{{constraint.start:quoted}} is not a rule of the grammar.{nearest(start, names)}", [start])
        rules = without_left_recursion(Rules(grammar, marks=words).trees(start))
    except (LarkError, OSError, AssertionError) as error:
        raise bad_grammar(f"{first_line(error).rstrip(': ')}.") from None
    language = Language(rules, ENTRY, depth)
    return Language({"start": Automaton(without_marks(to_automaton(language)))}, depth=depth) if words else language


def _load(text: str, base: Any) -> Any:
    """The ``lark.load_grammar.Grammar`` of a text, which imports from Lark's own grammars alone: Lark would look for
    others beside the program that runs, and a text that strangers send must read no file."""
    from lark.load_grammar import _parse_grammar

    class ClosedBuilder(base):  # type: ignore[misc]  # Lark's ``GrammarBuilder``, which is not annotated
        def do_import(self, dotted_path: tuple[str, ...], base_path: Any, *more: Any) -> None:
            name = ".".join(dotted_path)
            if base_path is not None or name not in LARK_GRAMMARS:
                raise bad_grammar(
                    f"%import {'.' * (base_path is not None)}{name} would read a file. "
                    f"Import from {', '.join(LARK_GRAMMARS)} only, and write the other rules out."
                )
            super().do_import(dotted_path, base_path, *more)

    _check_terminals(_parse_grammar(text, "<string>"))
    builder = ClosedBuilder()
    builder.load_grammar(text, "<string>")
    return builder.build()


def _check_terminals(tree: Any) -> None:
    """Refuse terminals that name each other in circles, or grow too large where their names are written out: Lark's
    loader walks them so, without a limit, and 20 that double each other take it a minute."""
    from lark.grammar import Terminal

    own, references = Counter[str](), dict[str, list[str]]()
    for definition in tree.find_data("term"):
        name = str(definition.children[0])
        own[name] += sum(1 for _ in definition.iter_subtrees())
        references.setdefault(name, []).extend(
            node.name for node in definition.scan_values(lambda value: isinstance(value, Terminal))
        )
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 0  # as long as it is under way
            sizes[name] = own[name] + sum(size(other) for other in references[name] if other in references)
        if not sizes[name]:
            raise bad_grammar(f"Recursion in terminal {name!r} (recursion is only allowed in rules, not terminals).")
        return sizes[name]

    if (parts := sum(map(size, references))) > MOST_PARTS:
        raise bad_grammar(
            f"its terminals have {parts:.3g} parts with the terminals in them written "
            f"out, more than {MOST_PARTS}. Make rules of those that repeat."
        )
