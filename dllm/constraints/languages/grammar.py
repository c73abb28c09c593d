"""Grammars in Lark's syntax as trees: Lark's own loader reads, and the language is that of its Earley parser with
``dynamic_complete``, where no terminal has to take the longest match."""

from __future__ import annotations

from typing import Any

from dllm.constraints.languages.compiled import compiled
from dllm.constraints.languages.lark_trees import ENTRY, Rules
from dllm.constraints.languages.left import without_left_recursion
from dllm.constraints.languages.trees import Language, Machine
from dllm.constraints.languages.words import without_marks
from dllm.errors import UserError, first_line, nearest, not_installed

LIBRARIES = ("common", "lark", "python", "unicode")  # what Lark brings along


def grammar_language(text: str, *, start: str = "start", depth: int = 4, words: bool = False) -> Language:
    """The texts of a grammar's rule ``start``, with rules that contain themselves entered ``depth`` times.

    words: a terminal that begins with a word character does not follow directly on one that ends in such. Raises
    UserError for what Lark refuses, imports of files, what is no regular language in a terminal, and indirect left
    recursion.
    """
    try:
        from lark.exceptions import LarkError
    except ImportError:
        raise not_installed("constraint=grammar", "lark", "constraints") from None
    try:
        grammar = _loaded(text)
        _known(start, [name for name, parameters, _, _ in grammar.rule_defs if not parameters])
        rules = without_left_recursion(Rules(grammar, marked=words).trees(start))
    except (LarkError, OSError, AssertionError) as error:
        raise UserError(f"constraint.grammar: {first_line(error).rstrip(': ')}.") from None
    language = Language(rules, ENTRY, depth)
    return Language({"start": Machine(without_marks(compiled(language)))}, depth=depth) if words else language


def _loaded(text: str) -> Any:
    """The ``lark.load_grammar.Grammar`` of a text, which imports from Lark's own grammars alone: Lark would look for
    others beside the program that runs, and a text that strangers send must read no file."""
    from lark.load_grammar import GrammarBuilder

    class Closed(GrammarBuilder):  # type: ignore[misc]  # Lark is not annotated here
        def do_import(self, dotted_path: tuple[str, ...], base_path: Any, *more: Any) -> None:
            name = ".".join(dotted_path)
            if base_path is not None or name not in LIBRARIES:
                raise UserError(
                    f"constraint.grammar: %import {'.' * (base_path is not None)}{name} would read a file. Import from "
                    f"{', '.join(LIBRARIES)} only, and write the other rules out."
                )
            super().do_import(dotted_path, base_path, *more)

    builder = Closed()
    builder.load_grammar(text, "<string>")
    return builder.build()


def _known(start: str, names: list[str]) -> None:
    if start not in names:
        raise UserError(f"constraint.start={start!r} is no rule of the grammar.{nearest(start, names)}")
