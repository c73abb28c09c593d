"""Patterns as automata, never as ``re`` runs them: no pattern takes longer than its text."""

from __future__ import annotations

from dllm.common.errors import verbatim
from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.ecma.trees import search_tree
from dllm.constraints.languages.regex import shown_pattern
from dllm.constraints.languages.trees import ByteAutomaton, Language, Tree


class Patterns:
    """The automata of the patterns of one schema, each made once."""

    def __init__(self) -> None:
        self._known: dict[str, ByteAutomaton] = {}

    def automaton(self, pattern: str, place: str) -> ByteAutomaton:
        """The texts in which the pattern is found, as ECMA-262 means it with the flag u. Raises UserError."""
        if pattern not in self._known:
            where = f"{{constraint.schema:name}} at {verbatim(place)}: the pattern {verbatim(shown_pattern(pattern))}"
            self._known[pattern] = pattern_automaton(search_tree(pattern, where))
        return self._known[pattern]

    def matches(self, pattern: str, place: str, text: str) -> bool:
        """Whether the pattern is found in a text."""
        return accepts(self.automaton(pattern, place), text)


def pattern_automaton(tree: Tree) -> ByteAutomaton:
    """The automaton of a tree that calls nothing."""
    return to_automaton(Language({"start": tree}))


def accepts(automaton: ByteAutomaton, text: str) -> bool:
    """Whether a text is a word; never one with half a surrogate pair."""
    return automaton.accepts(text.encode("utf-8", "surrogatepass"))
