"""Grammars in Lark's syntax as trees: Lark's own loader reads, and the language is that of its Earley parser with
``dynamic_complete``, where no terminal has to take the longest match."""

from __future__ import annotations

from dllm.constraints.languages.compiled import compiled
from dllm.constraints.languages.lark_trees import ENTRY, Rules
from dllm.constraints.languages.left import without_left_recursion
from dllm.constraints.languages.trees import Automaton, Language
from dllm.constraints.languages.words import without_marks
from dllm.errors import UserError, first_line, nearest, not_installed


def grammar_language(text: str, *, start: str = "start", depth: int = 4, words: bool = False) -> Language:
    """The texts of a grammar's rule ``start``, with rules that contain themselves entered ``depth`` times.

    words: a terminal that begins with a word character does not follow directly on one that ends in such. Raises
    UserError for what Lark refuses, what is no regular language in a terminal, and indirect left recursion.
    """
    try:
        from lark.exceptions import LarkError
        from lark.load_grammar import load_grammar
    except ImportError:
        raise not_installed("constraint=grammar", "lark", "constraints") from None
    try:
        grammar = load_grammar(text, "<string>", [], False)[0]
        _known(start, [name for name, parameters, _, _ in grammar.rule_defs if not parameters])
        rules = without_left_recursion(Rules(grammar, marked=words).trees(start))
    except (LarkError, OSError, AssertionError) as error:
        raise UserError(f"constraint.grammar: {first_line(error).rstrip(': ')}.") from None
    language = Language(rules, ENTRY, depth)
    return Language({"start": Automaton(without_marks(compiled(language)))}, depth=depth) if words else language


def _known(start: str, names: list[str]) -> None:
    if start not in names:
        raise UserError(f"constraint.start={start!r} is no rule of the grammar.{nearest(start, names)}")
