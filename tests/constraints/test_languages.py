"""Trees to automata: depth, products and limits, against counting by hand and brute force over short texts."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from exploding import EXPLODING
from harness import full
from word_samples import texts_over

from dllm.parts import (
    ALL_CHARACTERS,
    Alt,
    Automaton,
    ByteAutomaton,
    Bytes,
    Cat,
    CompileLimits,
    Language,
    Rep,
    RuleCall,
    Tree,
    UserError,
    characters,
    difference,
    intersection,
    literal_text,
    product_automaton,
    to_automaton,
    within_limits,
)

A, B, X = literal_text("a"), literal_text("b"), literal_text("x")
OPEN, CLOSE = literal_text("("), literal_text(")")
TEXTS = to_automaton(Language({"start": Rep(characters(ALL_CHARACTERS))}))


def complement(a: ByteAutomaton) -> ByteAutomaton:
    """The texts that are not words of ``a``."""
    return difference(TEXTS, a)


def limited(language: Language, limits: CompileLimits) -> ByteAutomaton:
    with within_limits(limits):
        return to_automaton(language)


def words(automaton: ByteAutomaton, alphabet: str = "ab", length: int = 5) -> set[str]:
    return {text for text in texts_over(alphabet, length) if automaton.accepts(text.encode())}


def random_tree(draw: random.Random, depth: int = 4) -> tuple[Tree, str]:
    """A tree without calls, and the regular expression that says the same."""
    kind = draw.choice(["bytes", "cat", "alt", "rep", "machine"]) if depth else "bytes"
    if kind == "bytes":
        return draw.choice([(A, "a"), (B, "b"), (Bytes(((97, 98),)), "[ab]"), (Bytes(()), "(?!)"), (Cat(), "")])
    if kind == "rep":
        part, text = random_tree(draw, depth - 1)
        low, high = draw.choice([(0, None), (1, None), (0, 1), (2, 3), (0, 0)])
        return Rep(part, low, high), f"(?:{text}){{{low},{'' if high is None else high}}}"
    parts = [random_tree(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    trees, patterns = tuple(tree for tree, _ in parts), [f"(?:{text})" for _, text in parts]
    if kind == "alt":
        return Alt(trees), f"(?:{'|'.join(patterns)})" if parts else "(?!)"
    return (Cat(trees) if kind == "cat" else Automaton(to_automaton(Language({"start": Cat(trees)})))), "".join(
        patterns
    )


@pytest.mark.parametrize("seed", range(2000 if full() else 30))
def test_random_trees_and_their_products_have_the_right_words(seed: int) -> None:
    draw = random.Random(seed)
    (tree, pattern), (other, second) = random_tree(draw), random_tree(draw)
    a, b = to_automaton(Language({"start": tree})), to_automaton(Language({"start": other}))
    every = set(texts_over("ab", 5))
    in_a, in_b = ({text for text in every if re.fullmatch(judge, text)} for judge in (pattern, second))
    assert words(a) == in_a and words(b) == in_b
    assert words(intersection(a, b)) == in_a & in_b
    assert words(difference(a, b)) == in_a - in_b
    assert words(complement(a)) == every - in_a


@pytest.mark.parametrize("seed", range(300 if full() else 20))
def test_equal_languages_have_equal_tables_and_no_state_too_many(seed: int) -> None:
    a = to_automaton(Language({"start": random_tree(random.Random(seed))[0]}))
    for same in (complement(complement(a)), intersection(a, a), to_automaton(Language({"start": Automaton(a)}))):
        assert np.array_equal(same.moves, a.moves) and np.array_equal(same.accepting, a.accepting)
    # Myhill and Nerode: states are told apart by texts shorter than their number.
    futures = {frozenset(words(from_state(a, state), "ab", min(6, len(a.moves)))) for state in range(len(a.moves))}
    assert len(a.moves) > 6 or len(futures) == len(a.moves)
    assert all(futures)


def random_automaton(draw: random.Random, letters: int) -> ByteAutomaton:
    size, dense = draw.randint(1, 14), draw.choice([0.2, 0.5, 0.9])
    moves = np.full((size, 256), -1, np.int32)
    moves[:, 97 : 97 + letters] = [
        [draw.randint(0, size - 1) if draw.random() < dense else -1 for _ in range(letters)] for _ in range(size)
    ]
    return ByteAutomaton(moves, np.array([draw.random() < 0.3 for _ in range(size)]))


# 698 and 2377: a hash in which (class, block) was (block, class) merged states.
@pytest.mark.parametrize("seed", range(3000) if full() else [*range(40), 698, 2377])
def test_random_automata_are_minimal_and_multiplied_as_by_hand(seed: int) -> None:
    draw = random.Random(seed)
    letters = draw.randint(1, 6)
    raw, other = random_automaton(draw, letters), random_automaton(draw, letters)
    made = to_automaton(Language({"start": Automaton(raw)}))
    both, without = intersection(raw, other), difference(raw, other)
    assert len(made.moves) == naive_count(raw)
    for text in short_words(raw, letters):
        assert made.accepts(text) == raw.accepts(text)
        assert both.accepts(text) == (raw.accepts(text) and other.accepts(text))
        assert without.accepts(text) == (raw.accepts(text) and not other.accepts(text))


def short_words(automaton: ByteAutomaton, letters: int) -> list[bytes]:
    """Texts that leave the automaton with their last letter or not at all, shortest first, at most 300."""
    found = [b""]
    for text in found:
        state = 0
        for byte in text:
            state = int(automaton.moves[state, byte]) if state >= 0 else -1
        if state >= 0 and len(found) < 300:
            found += [text + bytes([97 + letter]) for letter in range(letters)]
    return found


def naive_count(automaton: ByteAutomaton) -> int:
    """States after refinement one round at a time, of those that are reached and lead to acceptance."""
    moves = [*automaton.moves.tolist(), [-1] * 256]
    block = [int(accepts) for accepts in automaton.accepting] + [0]
    for _ in moves:
        marks = [(block[state], *(block[target] for target in row)) for state, row in enumerate(moves)]
        numbers = {mark: number for number, mark in enumerate(dict.fromkeys(marks))}
        block = [numbers[mark] for mark in marks]
    reached, waiting = {0}, [0]
    while waiting:
        new = {target for target in moves[waiting.pop()] if target >= 0} - reached
        reached |= new
        waiting += new
    return len({block[state] for state in reached} - {block[-1]})


def from_state(automaton: ByteAutomaton, state: int) -> ByteAutomaton:
    """The same states with 0 and ``state`` exchanged."""
    swap = np.arange(len(automaton.moves) + 1)
    swap[[0, state]] = state, 0
    swap[-1] = -1
    return ByteAutomaton(swap[automaton.moves][swap[:-1]].astype(np.int32), automaton.accepting[swap[:-1]])


def test_two_complements_of_everything_are_nothing() -> None:
    nothing = difference(TEXTS, TEXTS)
    assert len(nothing.moves) == 0 and not nothing.accepts(b"")
    assert np.array_equal(complement(nothing).moves, TEXTS.moves)
    assert len(intersection(nothing, TEXTS).moves) == 0


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_depth_counts_brackets(depth: int) -> None:
    rule = Alt((X, Cat((OPEN, Rep(RuleCall("a"), 1), CLOSE))))
    automaton = to_automaton(Language({"start": RuleCall("a"), "a": rule}, depth=depth))
    for text in texts_over("(x)", 7):
        deepest = max(text[:at].count("(") - text[:at].count(")") for at in range(len(text) + 1))
        assert automaton.accepts(text.encode()) == (balanced(text) and deepest <= depth), text


def balanced(text: str) -> bool:
    """Whether it is x, or brackets around one or more such."""
    while "x" in text and text != "x":
        shorter = re.sub(r"\(x+\)", "x", text)
        if shorter == text:
            return False
        text = shorter
    return text == "x"


def test_right_recursion_needs_no_depth() -> None:
    rules = {"start": Alt((Cat((A, RuleCall("next"))), A)), "next": Alt((Cat((B, RuleCall("start"))), B))}
    assert words(to_automaton(Language(rules, depth=0))) == {"ababa"[:size] for size in range(1, 6)}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_round_of_rules_that_call_each_other_counts_once(depth: int) -> None:
    around = Cat((A, RuleCall("a"), B))
    rules = {"start": around, "a": Alt((X, Cat((OPEN, RuleCall("b"), CLOSE)))), "b": around}
    automaton = to_automaton(Language(rules, depth=depth))
    for rounds in range(5):
        text = "a" + "(a" * rounds + "x" + "b)" * rounds + "b"
        assert automaton.accepts(text.encode()) == (rounds <= depth), text


def test_each_circle_of_rules_has_the_whole_depth() -> None:
    inner = Alt((X, Cat((OPEN, RuleCall("inner"), CLOSE))))
    outer = Alt((RuleCall("inner"), Cat((A, RuleCall("outer"), B))))
    automaton = to_automaton(Language({"start": RuleCall("outer"), "outer": outer, "inner": inner}, depth=2))
    assert automaton.accepts(b"aa((x))bb")
    assert not automaton.accepts(b"aaa((x))bbb") and not automaton.accepts(b"aa(((x)))bb")


def test_rules_that_both_contain_themselves_share_their_depth() -> None:
    rules = {
        "start": Alt((X, Cat((OPEN, RuleCall("start"), CLOSE)), Cat((A, RuleCall("b"), B)))),
        "b": Alt((X, Cat((A, RuleCall("b"), B)), Cat((OPEN, RuleCall("start"), CLOSE)))),
    }
    automaton = to_automaton(Language(rules, depth=2))
    assert automaton.accepts(b"(axb)") and automaton.accepts(b"a(x)b") and automaton.accepts(b"((x))")
    assert not automaton.accepts(b"(a(x)b)") and not automaton.accepts(b"aaaxbbb")


def test_long_chains_of_rules_are_read_without_recursion() -> None:
    chain: dict[str, Tree] = {f"r{number}": Cat((A, RuleCall(f"r{number + 1}"))) for number in range(3000)}
    automaton = to_automaton(Language({"start": RuleCall("r0"), **chain, "r3000": B}))
    assert automaton.accepts(b"a" * 3000 + b"b") and len(automaton.moves) == 3002


@pytest.mark.parametrize("name", EXPLODING)
def test_what_explodes_is_refused_in_time(name: str) -> None:
    language, begun = EXPLODING[name], time.thread_time()
    with pytest.raises(UserError, match=r"more than (2000 states|0.5 s)"):
        limited(language, CompileLimits(2000, 0.5, language.depth))
    assert time.thread_time() - begun < 1.5


def test_what_explodes_stays_below_two_gigabytes() -> None:
    names = list(EXPLODING) if full() else ["three times"]
    states, seconds = (20_000, 10) if full() else (2000, 1)
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
sys.path.insert(0, "tests/support")
from exploding import EXPLODING
from dllm.constraints.languages.automaton_of import to_automaton
from dllm.constraints.languages.limits import CompileLimits, within_limits
from dllm.common.errors import UserError
for name in {names}:
    try:
        with within_limits(CompileLimits({states}, {seconds})):
            to_automaton(EXPLODING[name])
        sys.exit(name + " was not refused")
    except UserError as error:
        print(name, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def test_too_many_states_and_too_much_time_say_so() -> None:
    with pytest.raises(UserError) as refusal:
        limited(EXPLODING["three times"], CompileLimits(2000, 10, 4))
    assert str(refusal.value) == (
        "the constraint needs more than 2000 states at depth 4. Lower constraint.depth, or shorten counted repetitions."
    )
    with pytest.raises(UserError) as refusal:
        limited(Language({"start": Rep(A, 1500, 1500)}), CompileLimits(1000, 10, None))
    assert str(refusal.value) == (
        "the constraint needs more than 1000 states. Shorten counted repetitions, or write it more simply."
    )
    with pytest.raises(UserError, match=r"took more than 1e-06 s to compile \(\d+ states\)\. Lower"):
        limited(Language({"start": Rep(A, 500)}), CompileLimits(2000, 1e-6, 4))
    assert len(limited(Language({"start": Rep(A, 1999, 1999)}), CompileLimits(2000)).moves) == 2000


def test_limits_hold_for_everything_inside() -> None:
    with pytest.raises(UserError, match="more than 10 states"), within_limits(CompileLimits(10)):
        long, other = (to_automaton(Language({"start": literal_text(text)})) for text in ("abcdef", "b" * 9))
        product_automaton(long, other, np.logical_or)
