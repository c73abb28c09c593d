"""Regular expressions: exactly the texts of ``re.fullmatch`` (law 2), each construct, each refusal."""

from __future__ import annotations

import random
import re

import pytest
from harness import full
from random_patterns import random_pattern
from word_samples import drawn_words, texts_over

from dllm.parts import Language, Regex, UserError, automaton_of, regex_tree, to_automaton

ATOMS = ["a", "b", "B", "é", ".", r"\w", r"\d", r"\s", r"\W", r"\S", r"\D", "[ab]", "[^a]", "[a-c1-3]", r"[^\w\s]",
         r"[\d_]", "k", "[^k]", "ss", "(?:)", r"\x41", r"\n", "[é-ü]", r"\."]  # fmt: skip
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,3}?", "{2,}", "{,2}"]
# The sign of kelvin and the long s are k and s without their case, and ٣ is a digit.
SIGNS = ["a", "b", "B", "1", " ", "\n", "é", "É", "٣", "\u212a", "ſ", "s", "_", "-", "😀", "\uffff", "\x85"]


@pytest.mark.parametrize("seed", range(3000 if full() else 60))
def test_random_patterns_have_the_texts_of_fullmatch(seed: int) -> None:
    draw = random.Random(seed)
    pattern = draw.choice(["", "", "(?i)", "(?s)", "(?is)"]) + random_pattern(draw, ATOMS, REPEATS)
    try:
        automaton = automaton_of(Regex(pattern))
    except UserError as error:
        assert "no text at all" in str(error)
        automaton = to_automaton(Language({"start": regex_tree("[^\\s\\S]", "", anchored=True)}))
    judge = re.compile(pattern)
    words = drawn_words(automaton, draw, 12, 6)
    changed = [word[:at] + draw.choice(SIGNS) + word[at + 1 :] for word in words for at in [draw.randint(0, len(word))]]
    texts = ["".join(draw.choices(SIGNS, k=draw.randint(0, 4))) for _ in range(60)]
    for text in [*words, *changed, *texts, *SIGNS]:
        assert automaton.accepts(text.encode()) == bool(judge.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    ["a|bc?", "(a|b)*abb", "(?P<first>a)(?:b|)", "a{2,3}b{2}", "[^b]{1,2}", "(a*)*b", "(a?){3}", "^a|b$", "^(a|^b)$",
     r"\Aa\Z", "(^a|b$)", "^^a$$", "", "a||b", "(?s).", ".", "(?i)A[b]", "[a-b]+?",
     "(a{0,2}){0,2}", "a{0}", "((a|ab)(c|bc))"],
)  # fmt: skip
def test_each_construct_has_the_texts_of_fullmatch(pattern: str) -> None:
    automaton = automaton_of(Regex(pattern))
    for text in texts_over("abcA\n", 4):
        assert automaton.accepts(text.encode()) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("flags", ["", "(?i)", "(?s)"])
@pytest.mark.parametrize("one", [r"\w", r"\d", r"\s", r"\W", ".", "[k-s]", "[^k-s]", "[^é]", "[\U00010400-\U00010427]"])
def test_classes_are_those_of_python_character_by_character(flags: str, one: str) -> None:
    automaton, judge = automaton_of(Regex(flags + one)), re.compile(flags + one)
    step = 1 if full() else 509
    edges = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF, 0x17F, 0x212A, 0x10400, 0x10428]
    for point in [*range(0x250), *edges, *range(0x250, 0x110000, step)]:
        if not 0xD800 <= point < 0xE000:
            assert automaton.accepts(chr(point).encode()) == bool(judge.fullmatch(chr(point))), hex(point)


def test_what_is_no_complete_text_is_no_word() -> None:
    automaton = automaton_of(Regex("(?s).*"))
    for text in [b"\x80", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xff"]:
        assert not automaton.accepts(text)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a(", "constraint.pattern='a(' is no regular expression: missing ), unterminated subpattern at position 1."),
        (
            "a(?=b)",
            "constraint.pattern='a(?=b)' looks ahead or behind, which is no regular language here. Write the "
            "alternatives out.",
        ),
        ("(?<!a)b", "looks ahead or behind"),
        (r"(a)\1", "refers back to a group, "),
        ("(a)(?(1)b|c)", "refers back"),
        ("(?m)a", "sets a flag; only (?s) and (?i) are known. Write the cases out."),
        ("(?i:a)b", "sets a flag"),
        ("(?x)a b", "sets a flag"),
        ("(?a)a", "sets a flag"),
        ("(?-i:a)", "sets a flag"),
        ("a^b", "has an anchor inside. Only ^ and $ are known, at the two ends."),
        (r"\ba", "anchor"),
        ("(^a)*", "anchor"),
        ("a$b", "anchor"),
        ("a*+", "possessive"),
        ("(?>a)", "atomic"),
        ("a{99999999999}", "no regular expression"),
        ("[", "no regular"),
        ("(" * 2000 + ")" * 2000, "nested too deeply"),
        (r"[^\s\S]", "no text at all"),
    ],
)
def test_what_is_refused_says_why(pattern: str, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(Regex(pattern))
    assert says in str(refusal.value)
    assert len(str(refusal.value)) < 300
