r"""Patterns of JSON Schema: exactly what Node's RegExp finds under ``u``, each construct, each refusal."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from typing import Any

import pytest
from ecma_judge import matches
from harness import DATA, full
from random_patterns import random_pattern
from word_samples import drawn_words, texts_over

from dllm.parts import ByteAutomaton, JsonSchema, Patterns, UserError, automaton_of

# Digits, letters and spaces of other scripts; what Python calls a space and ECMA-262 does not, and the reverse.
SIGNS = ["a", "b", "B", "1", "٣", "_", " ", "\n", "\r", "\t", "\u2028", "\ufeff", "\x85", "\x1c", "\xa0", "é", "É", "λ",
         "-", "]", "{", "}", "/", ",", "\\", "\x03", "\0", "\x08", "😀", "𝟛", "\uffff", "\u212a"]  # fmt: skip
ATOMS = ["a", "b", "é", "😀", ".", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "[ab]", "[^a]", "[a-c1-3]",
         r"[^\w\s]", r"[\d_]", "[^]", "[]", r"\x61", r"\u0061", r"\u{1F600}", r"\uD83D\uDE00", r"[\uD83D\uDE00a]",
         r"\uD83D", r"\cC", r"\0", r"[\b]", r"\t", r"\/", r"\p{L}", r"\P{L}", r"\p{Lu}", r"\p{digit}",
         r"\p{Script=Greek}", r"\p{scx=Latn}", r"[\p{Alphabetic}_]", r"[^\p{ASCII}]", r"\p{White_Space}", r"[\w-]",
         r"[\w\-.]", r"\]", r"\}", r"\{", r"(?<name>a|b)", "(?:)", "^", "$", r"\b", r"\B", r"\b", "^", "$"]  # fmt: skip
# What is an error under ``u`` alone, beside what it means.
LENIENT = {r"\]": "]", r"\}": "}", r"\{": "{", r"[\w\-.]": r"[\w-.]"}
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,3}?", "{2,}", "{0}"]


def searched(pattern: str) -> ByteAutomaton:
    return Patterns().automaton(pattern, "#")


def drawn_pattern(seed: int) -> str:
    """A pattern with each name of a group once."""
    draw = random.Random(seed)
    inner = random_pattern(draw, ATOMS, REPEATS)
    front, back = draw.choice([("", ""), ("^", "$"), ("^", "$"), ("^", ""), ("", "$")])
    return re.sub(r"\?<name>", lambda found: f"?<n{found.start()}>", front + inner + back)


def leniently(pattern: str) -> str:
    """The same pattern, as it is often written though ``u`` forbids it."""
    for strict, lenient in LENIENT.items():
        pattern = pattern.replace(strict, lenient)
    return pattern


def texts_for(automaton: ByteAutomaton, draw: random.Random) -> list[str]:
    """Words, words with a changed sign, and short texts; of signs that no version of Unicode is about to assign."""
    words = drawn_words(automaton, draw, 12, 6)
    changed = [word[:at] + draw.choice(SIGNS) + word[at + 1 :] for word in words for at in [draw.randint(0, len(word))]]
    short = ["".join(draw.choices(SIGNS, k=draw.randint(0, 4))) for _ in range(60)]
    known = [text for text in words + changed if all(map(assigned, text))]
    return [*known, *short, *SIGNS, ""]


def assigned(sign: str) -> bool:
    """Whether Python's Unicode has the sign: newer ones are letters to one engine and nothing to the other."""
    return unicodedata.category(sign) != "Cn"


def test_random_patterns_are_found_where_node_finds_them() -> None:
    """Words of ours are found by Node, and both agree on every other text."""
    patterns = [drawn_pattern(seed) for seed in range(300 if full() else 40)]
    automata = [searched(leniently(pattern)) for pattern in patterns]
    asked = [
        (pattern, texts_for(found, random.Random(seed)))
        for seed, (pattern, found) in enumerate(zip(patterns, automata, strict=True))
    ]
    for (pattern, texts), found, told in zip(asked, automata, matches(asked), strict=True):
        assert told is not None, pattern
        assert [found.accepts(text.encode()) for text in texts] == told, pattern
    assert sum(len(found.moves) > 0 for found in automata) > 0.8 * len(patterns)


CONSTRUCTS = [
    "a", "^a", "a$", "^a|b", "a|b$", "^(a|b$)", "(a|^b)", "", "^", "^$|b", "$^", r"\bab\b", r"a\B", r"\B", "(^a)*b",
    "(?:^|,)a(?:$|,)", "^^a$$", "a$b", "a??b", "(a{0,2}){0,2}", "a{0}", "((a|ab)(c|bc))", "[a-b]+?", "a{2", "{", "x{,",
    r"^(?:\b|a)+$", r"(\b|^)*a", "$|^a", r"[^]\b$",
]  # fmt: skip


def test_each_construct_is_found_where_node_finds_it() -> None:
    asked = [(pattern, list(texts_over("ab,\n", 3))) for pattern in CONSTRUCTS]
    asked += [(f"^{atom}$", SIGNS) for atom in ATOMS]
    lenient = ("]", "}", "{", "a{", r"\-", r"\_", r"\@", r"[\w-.]", r"[.-\w]", "[}{]")
    asked += [(f"^{pattern}$", SIGNS) for pattern in lenient]
    for (pattern, texts), told in zip(asked, matches(asked), strict=True):
        found = searched(pattern)
        assert [found.accepts(text.encode()) for text in texts] == told, pattern


def test_classes_are_those_of_ecma_262() -> None:
    """The tables of sections 12.2, 12.3 and 22.2.2.9, beside any engine."""
    space = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
             0x3000, 0xFEFF]  # fmt: skip
    word = [ord(sign) for sign in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"]
    for escape, points in {"d": range(0x30, 0x3A), "w": word, "s": space}.items():
        inside, outside = searched(f"^\\{escape}$"), searched(f"^\\{escape.upper()}$")
        for point in [*range(0x3100), *range(0xFE00, 0x10000), 0x1D7DB, 0x1F600]:
            text = chr(point).encode()
            assert inside.accepts(text) == (point in points) and outside.accepts(text) == (point not in points)


def test_the_suites_group_of_ecma_262_is_judged_as_it_says() -> None:
    groups = json.loads((DATA / "json_schema_suite" / "ecmascript-regex.json").read_text(encoding="utf-8"))
    for group in groups:
        found = automaton_of(JsonSchema(group["schema"], additional=True))
        for test in group["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            assert found.accepts(text.encode()) == test["valid"], (group["description"], test["description"])


@pytest.mark.parametrize(("pattern", "says"), [
    ("(?i)a", "flags inside a pattern are not known at position 0. Write the cases out, such as [aA] and [^]."),
    ("(?s:a)", "flags inside"), (r"\Aa", r"\A is not an escape at position 0. Write ^."), (r"a\Z", "Write $."),
    (r"a\z", "Write $."), ("(?P<n>a)", "Write (?<name>...)."), ("(?P=n)", "refers back"), ("(?#x)a", "comments"),
    ("a*+", "possessive quantifiers are Python's at position 2"), ("a{2}+", "possessive"), ("(?>a)", "atomic"),
    ("(?(1)a|b)", "conditional"), (r"(a)\1", "refers back"), (r"(?<n>a)\k<n>", "refers back"),
    ("a(?=b)", "looks ahead"),
    ("(?<!a)b", "looks ahead or behind"), ("a{,2}", "Write {0,n}."), (r"\a", r"Write \x07."),
    (r"\y", r"\y is not an escape"),
    (r"\01", r"\0 is not an escape"), (r"\c1", "not an escape"), (r"\x4", "not an escape"), (r"\u12", "four digits"),
    (r"\u{110000}", "beyond 10FFFF"), (r"\p{Foo}", r"\p{Foo} is not a property known here"),
    (r"\p{Script=greek}", "not a property"), (r"\p{IsGreek}", "not a property"), (r"\p{alpha}", "not a property"),
    (r"\pL", r"\p without {...}"), ("a{2,1}", "out of order"), ("[b-a]", "out of order"), ("a**", "nothing to repeat"),
    ("^*", "nothing to repeat"), ("{1}", "nothing to repeat"), ("(", "missing )"), ("a)", "unmatched )"),
    ("[a", "missing ]"),
    ("\\", "nothing after"), ("(?<1>a)", "no name"), ("(?<n>a)(?<n>b)", "a second group"),
    (r"[\p{L}--a]", "is not an end of"),
    ("a{99999999999999999999999}", "20 digits"), ("a{9999999999}", "more than 20000 states"), ("(?<n", "no name"),
    ("(" * 5000 + ")" * 5000, "nested too deeply"),
])  # fmt: skip
def test_what_is_refused_says_how_ecma_262_writes_it(pattern: str, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema({"properties": {"a": {"type": "string", "pattern": pattern}}}))
    assert says in str(refusal.value) and len(str(refusal.value)) < 400
    assert "at #/properties/a" in str(refusal.value) or "states" in says


def test_names_under_patterns_and_values_of_enumerations_follow_the_same_patterns() -> None:
    named: dict[str, Any] = {"type": "object", "patternProperties": {r"^\d+$": {}}, "additionalProperties": False}
    found = automaton_of(JsonSchema(named))
    assert found.accepts(b'{"4":1}') and not found.accepts('{"৪":1}'.encode())
    listed = automaton_of(JsonSchema({"enum": ["٣", "3"], "pattern": r"^\d$"}))
    assert listed.accepts(b'"3"') and not listed.accepts('"٣"'.encode())


def test_without_regex_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dllm.parts import property_ranges

    property_ranges.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "regex", None)
    with pytest.raises(UserError, match=r"pip install -e '.*\[constraints\]'"):
        searched(r"\p{L}")
