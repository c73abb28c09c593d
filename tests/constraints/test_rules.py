"""Rules that are written where they are called add as many nodes as their trees really have."""

from __future__ import annotations

import pytest

from dllm.constraints.languages.rules import MAX_ADDED_NODES, remaining
from dllm.constraints.languages.trees import Bytes, Cat, Language, RuleCall, Tree


def chain(depth: int, times: int) -> Language:
    """Rules of which each calls the one before several times."""
    rules: dict[str, Tree] = {"r0": Cat((Bytes(((65, 65),)),) * 2)}
    rules |= {f"r{at}": Cat((RuleCall(f"r{at - 1}"),) * times) for at in range(1, depth)}
    return Language({**rules, "start": RuleCall(f"r{depth - 1}")})


def size(tree: Tree, language: Language, kept: frozenset[str]) -> int:
    """Nodes of a tree, counted one by one, with all calls written out but those of ``kept``."""
    if isinstance(tree, RuleCall) and tree.rule not in kept:
        return size(language.rules[tree.rule], language, kept)
    return 1 + sum(size(part, language, kept) for part in tree.parts) if isinstance(tree, Cat) else 1


@pytest.mark.parametrize("times", [2, 3])
def test_calls_are_written_out_up_to_the_limit_of_nodes(times: int) -> None:
    for depth in range(2, 14 if times == 2 else 10):
        language = chain(depth, times)
        every = frozenset(language.rules)
        before = sum(size(tree, language, every) for tree in language.rules.values())
        kept = frozenset(remaining(language))
        after = sum(size(language.rules[rule], language, kept) for rule in kept)
        assert after <= before + MAX_ADDED_NODES
        if size(language.rules["start"], language, frozenset()) < MAX_ADDED_NODES // 4:
            assert kept == {"start"}
