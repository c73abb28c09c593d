"""Small languages whose automata are, or would be on the way, far too large."""

from __future__ import annotations

from dllm.parts import Alt, Cat, Language, Rep, RuleCall, Tree, literal_text

A, B = literal_text("a"), literal_text("b")
DOUBLING: dict[str, Tree] = {f"r{number}": Cat((RuleCall(f"r{number + 1}"),) * 2) for number in range(40)}


def framed(letter: str) -> Tree:
    """A text of the language between two letters."""
    return Cat((literal_text(letter), RuleCall("start"), literal_text(letter)))


EXPLODING: dict[str, Language] = {
    "counted in counted": Language({"start": Rep(Rep(A, 0, 1000), 0, 1000)}),
    "three times": Language({"start": Rep(Rep(Rep(A, 1, 100), 1, 100), 1, 100)}),
    "optional in optional": Language({"start": Rep(Rep(Rep(Alt((A, B)), 0, 30), 0, 30), 0, 30)}),
    "far behind": Language({"start": Cat((Rep(Alt((A, B))), A, Rep(Alt((A, B)), 30, 30)))}),
    "a thousand million": Language({"start": Rep(A, 10**9, 10**9)}),
    "nothing, a thousand million times": Language({"start": Rep(Cat(), 10**9, 10**9)}),
    "branches": Language({"start": Rep(Alt(tuple(Rep(literal_text(f"{n:x}"), 0, n) for n in range(400))), 0, 50)}),
    "doubling": Language({"start": RuleCall("r0"), **DOUBLING, "r40": A}),
    "doubling nothing": Language({"start": RuleCall("r0"), **DOUBLING, "r40": Cat()}),
    "deep": Language({"start": Alt((A, *map(framed, "bcdef")))}, depth=9),
}
