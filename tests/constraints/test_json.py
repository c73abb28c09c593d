"""JSON: exactly what ``json.loads`` reads, without surrogates, up to a depth, in three spacings."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import pytest
from harness import full
from word_samples import drawn_words

from dllm.parts import ByteAutomaton, Json, automaton_of, difference

automaton = cache(automaton_of)


def surrounding(value: Any) -> int:
    """The most containers around any value in this one."""
    return max((1 + surrounding(inner) for inner in value), default=0) if isinstance(value, list) else 0


def refuse(constant: str) -> None:
    raise ValueError(constant)


def belongs(text: str, depth: int, whitespace: str) -> bool:
    """By the standard library, with lists for objects so that repeated names count."""
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: [inner for _, inner in pairs], parse_constant=refuse)
    except ValueError:
        return False
    escapes = re.findall(r"\\(?:u(....)|.)", text)
    if surrounding(value) > depth or any(code and 0xD800 <= int(code, 16) < 0xE000 for code in escapes):
        return False
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    if whitespace == "one":
        bare = re.sub("([,:]) ", r"\1", bare)
    return whitespace == "any" or not re.search(r"[ \t\n\r]", bare)


def random_value(draw: random.Random, depth: int) -> Any:
    kinds = ["list", "object"] if depth else []
    kind = draw.choice([*kinds, "text", "number", "word"])
    if kind == "list":
        return [random_value(draw, depth - 1) for _ in range(draw.randint(0, 3))]
    if kind == "object":
        return {draw.choice("abé"): random_value(draw, depth - 1) for _ in range(draw.randint(0, 2))}
    if kind == "text":
        return "".join(draw.choices('aé😀"\\\n\x01\ud7ff/{]', k=draw.randint(0, 3)))
    return draw.choice([True, False, None]) if kind == "word" else draw.choice([0, -1, 12, 0.5, -2.25, 1e300, 1e-9])


def random_text(draw: random.Random) -> str:
    """Some JSON in some spacing, or nearly so."""
    spaces = draw.choice(["", " ", "\n\t ", "  "])
    text = json.dumps(
        random_value(draw, draw.randint(0, 4)),
        ensure_ascii=draw.random() < 0.3,
        separators=(draw.choice([",", ", ", f",{spaces}"]), draw.choice([":", ": ", f"{spaces}:"])),
        indent=draw.choice([None, None, None, 1]),
    )
    if draw.random() < 0.5:
        at = draw.randint(0, len(text))
        new = draw.choice([*' ",0-.[]é\\\x7f', "", "e1", "\\u00eF", "\\uDFff", "NaN", "{}"])
        text = text[:at] + new + text[at + draw.randint(0, 1) :]
    return text


@pytest.mark.parametrize("whitespace", ["any", "one", "none"])
@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_texts_belong_as_the_standard_library_says(depth: int, whitespace: str) -> None:
    draw, language = random.Random(depth), automaton(Json(depth, whitespace))
    texts = [random_text(draw) for _ in range(20_000 if full() else 250)]
    words = drawn_words(language, draw, 1000 if full() else 20, 20)
    found = [language.accepts(text.encode()) for text in texts]
    assert found == [belongs(text, depth, whitespace) for text in texts]
    assert 0.05 < sum(found) / len(found) < 0.95
    for word in words:
        assert belongs(word, depth, whitespace), word


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_spacings_and_depths_lie_within_each_other(depth: int) -> None:
    none, one, anything = (automaton(Json(depth, whitespace)) for whitespace in ("none", "one", "any"))
    assert within(none, one) and within(one, anything) and within(one, none) == (depth == 0)
    for kind in ("any", "one", "none"):
        assert within(automaton(Json(depth, kind)), automaton(Json(depth + 1, kind)))


def within(small: ByteAutomaton, large: ByteAutomaton) -> bool:
    return len(difference(small, large).moves) == 0


@pytest.mark.parametrize("depth", [4, 5, 6])
def test_every_depth_doubles_the_states(depth: int) -> None:
    # What follows a value differs in a list and in an object: s(d) = 2 s(d - 1) + 51, and 637 at depth 3.
    assert len(automaton(Json(depth)).moves) == (637 + 51) * 2 ** (depth - 3) - 51
