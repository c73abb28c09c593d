"""Grammars: exactly the texts of Lark's own Earley parser with ``dynamic_complete`` (law 2), and each refusal."""

from __future__ import annotations

import random
import re
import sys
import time

import pytest
from harness import full
from word_samples import drawn_words, texts_over

from dllm.parts import Grammar, UserError, automaton_of, difference

lark = pytest.importorskip("lark")

TERMINALS = ['"x"', '"y"', "/x+/", "X", "Y", '"xy"', '"y"i', '("x"|"y")']
OPERATORS = ["?", "*", "+", "~2", "~1..2", "~0..1"]


def random_grammar(draw: random.Random) -> str:
    """Three rules of terminals and of each other, with some text that is ignored in one of two."""
    rules = [f"{name}: {random_cases(draw)}" for name in ("start", "a", "b")]
    pair = "pair{p, q}: p (q p)?\n" if "pair" in "".join(rules) else ""
    ignored = draw.choice(["", '%ignore "_"\n', "%ignore /_/\n"])
    return "\n".join(rules) + f'\n{pair}X: "x" | "y" "x"\nY: /y/\n{ignored}'


def random_cases(draw: random.Random, depth: int = 1) -> str:
    cases = []
    for _ in range(draw.randint(1, 3)):
        parts = [random_part(draw, depth) for _ in range(draw.randint(1, 3))]
        cases.append(" ".join(parts))
    return " | ".join(cases)


def random_part(draw: random.Random, depth: int) -> str:
    one = draw.choice([*TERMINALS, "a", "b", "a", "b"])
    kind = draw.random()
    if depth and kind < 0.2:
        return f"({random_cases(draw, depth - 1)}){draw.choice(OPERATORS)}"
    if depth and kind < 0.25:
        return f"[{one}]"
    if kind < 0.3:
        return f"pair{{{one}, {draw.choice(TERMINALS[:5])}}}" if not one.startswith("(") else one
    return f"{one}{draw.choice(OPERATORS)}" if kind < 0.5 else one


def judged(grammar: str) -> lark.Lark | None:
    """Lark's parser; None where Lark does not take the grammar."""
    try:
        return lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
    except (lark.exceptions.LarkError, ValueError):
        return None


def nothing(text: bytes) -> bool:
    return False


def reads(judge: lark.Lark, text: str) -> bool:
    try:
        judge.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def test_random_grammars_have_the_texts_of_lark() -> None:
    compared = large = 0
    for seed in range(3000 if full() else 25):
        grammar = random_grammar(random.Random(seed))
        judge = judged(grammar)
        try:
            accepts = automaton_of(Grammar(grammar, depth=3, limit=500)).accepts
        except UserError as error:
            assert re.search("more than|left recursion|no text at all", str(error)), (grammar, error)
            large += "more than" in str(error)
            if judge is None or "no text at all" not in str(error):
                continue
            accepts = nothing
        if judge is not None:
            compared += 1
            for text in [*texts_over("xy", 4), "_x", "x_", "_", "x_y", "y__x", "Y", "xY", "xxxxyxxx"]:
                # A call that reads nothing can be left out: texts of 3 letters need no more than 3 calls.
                assert accepts(text.encode()) <= reads(judge, text), (grammar, text)
                assert len(text) > 3 or accepts(text.encode()) == reads(judge, text), (grammar, text)
    assert compared > 9 and large < 0.5 * compared, (compared, large)


@pytest.mark.parametrize("times", ["*", "+", "?", "~2", "~0..2", "~1..3"])
def test_a_repetition_that_begins_with_its_own_rule_has_the_texts_of_lark(times: str) -> None:
    grammar = f'start: (start "x"){times} "y" | "y"'
    judge, automaton = judged(grammar), automaton_of(Grammar(grammar, depth=5, limit=2000))
    assert judge is not None
    for text in texts_over("xy", 7):
        assert automaton.accepts(text.encode()) == reads(judge, text), text


PROGRAM = """
start: (let | show)+
let: "let"i NAME "=" sum ";"
show: "show" sum ";"
sum: sum ("+" | "-") product | product
product: product "*" atom | atom
atom: NUMBER | NAME | "(" sum ")" | "-" atom
NAME: /[a-z_][a-z0-9_]*/
%import common.INT -> NUMBER
%import common.WS
%ignore WS
%ignore "#" /[^\\n]*/ "\\n"
"""


def test_words_of_a_small_language_are_read_by_lark() -> None:
    judge = judged(PROGRAM)
    assert judge is not None
    automaton = automaton_of(Grammar(PROGRAM, depth=2))
    for word in drawn_words(automaton, random.Random(1), 20, 30):
        assert reads(judge, word), word
    for text in ["LET x=1;", "let x = (1+2)*-3 ; # so\nshow x;", "showx;letx=1;", "let x=((1));show-1;"]:
        assert reads(judge, text) and automaton.accepts(text.encode()), text
    for text in ["let 1=x;", "let x=;", "# only"]:
        assert not reads(judge, text) and not automaton.accepts(text.encode()), text
    assert not automaton.accepts(b"let x=(((1)));")  # deeper than 2


def test_words_do_not_run_into_each_other() -> None:
    free, apart = automaton_of(Grammar(PROGRAM, depth=1)), automaton_of(Grammar(PROGRAM, depth=1, words=True))
    for text in ["letx=1;", "show x1;showx;", "showé;"]:
        assert not apart.accepts(text.encode()), text
    for text in ["let x=1;", "show(x)+1;", "let\tx=1;show 1;"]:
        assert apart.accepts(text.encode()) and free.accepts(text.encode()), text
    assert free.accepts(b"letx=1;") and len(difference(apart, free).moves) == 0


def test_a_word_may_hold_more_than_ascii() -> None:
    apart = automaton_of(Grammar('start: "é" "x"\n%ignore " "\n', words=True))
    assert apart.accepts("é x".encode()) and not apart.accepts("éx".encode())


def test_a_depth_lies_within_the_next_and_left_recursion_has_none() -> None:
    languages = [automaton_of(Grammar(PROGRAM, depth=depth)) for depth in (0, 1, 2)]
    assert languages[0].accepts(b"let x=1+2-3*4*5;") and not languages[0].accepts(b"show (1);")
    assert languages[1].accepts(b"show (1)+(2);") and not languages[1].accepts(b"show ((1));")
    for small, large in zip(languages, languages[1:], strict=False):
        assert len(difference(small, large).moves) == 0 < len(difference(large, small).moves)


@pytest.mark.parametrize("rest", ["", '%ignore " "\n', '%ignore " "\nunused: "(" start ")"\n'])
def test_depth_is_counted_at_the_start_rule_whatever_is_ignored(rest: str) -> None:
    rules = 'start: "1" | list\nlist: "[" ("a" "b" "c" "d" "e")? start? "]"\n'
    automaton = automaton_of(Grammar(rules + rest, depth=1))
    for text, belongs in {"[1]": True, "[[]]": True, "[[1]]": False, "[[[]]]": False, "1": True}.items():
        assert automaton.accepts(text.encode()) == belongs, text


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("start: missing\n", "constraint.grammar: Rule 'missing' used but not defined (in rule start)."),
        ("start: (\n", "constraint.grammar: "),
        ('start: A\nA: A | "x"\n', "Recursion in terminal 'A'"),
        (
            'start: a\na: b "x" | "y"\nb: a "z" | "w"\n',
            "constraint.grammar: the rule 'a' begins with itself by way of others (left recursion). Begin it with "
            "something that reads text, or use repetition: x*.",
        ),
        ('start: a\na: b a "x" | "y"\nb: "z"?\n', "'a' begins with itself"),
        ("start: A\nA: /a(?=b)/\n", "constraint.grammar: terminal A='a(?=b)' looks ahead or behind, "),
        ("start: /(a)\\1/\n", "constraint.grammar: terminal '(a)\\\\1' refers back"),
        ("start: /^a/\n", "anchor"),
        ("start: /a b/x\n", "sets a flag"),
        ("start: /a*/\n", "may be empty"),
        ("start: A\n%declare A\n", "declared"),
        ('begin: "x"\n', "constraint.start='start' is not a rule of the grammar."),
        ('start: "x"~3..2\n', "is not a range"),
        ('start: t{"x"}\nt{y}: y t{t{y}}\n', "without an end"),
        ("start: start\n", "no text at all"),
        ('%import nothing.of.this\nstart: "x"\n', "constraint.grammar: "),
    ],
)
def test_what_is_refused_says_why(grammar: str, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(Grammar(grammar))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_lark_a_grammar_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lark.load_grammar", None)
    with pytest.raises(UserError, match=r"constraint=grammar needs lark, .* pip install -e '.*\[constraints\]'"):
        automaton_of(Grammar('start: "x"'))


def test_terminals_that_double_each_other_are_refused_at_once() -> None:
    """Lark's own loader takes a second for 14 of them, and twice as long for each more."""
    doubling = "".join(f"A{number}: A{number + 1} A{number + 1}\n" for number in range(60))
    for text, says in (
        (f'start: A0\n{doubling}A60: "a"\n', r"its terminals have 2\S+ parts .*, more than 20000. Make rules"),
        ("start: A\nA: B B\nB: A A\n", "Recursion in terminal 'A'"),
        ("start: A\nA: A A\n", "Recursion in"),
    ):
        began = time.thread_time()
        with pytest.raises(UserError, match=f"constraint.grammar: {says}"):
            automaton_of(Grammar(text))
        assert time.thread_time() - began < 1
