"""JSON as trees: its pieces, and the language of all of it."""

from __future__ import annotations

from functools import lru_cache

from dllm.constraints.languages.trees import Alt, Bytes, Cat, Language, Rep, RuleCall, Tree
from dllm.constraints.languages.utf8 import LAST, characters, literal_text

DIGIT = Bytes(((0x30, 0x39),))
DIGITS = Rep(DIGIT, 1)
WHOLE = Cat((Rep(literal_text("-"), 0, 1), Alt((literal_text("0"), Cat((Bytes(((0x31, 0x39),)), Rep(DIGIT)))))))
FRACTION = Cat((literal_text("."), DIGITS))
EXPONENT = Cat((Bytes(((0x45, 0x45), (0x65, 0x65))), Rep(Bytes(((0x2B, 0x2B), (0x2D, 0x2D))), 0, 1), DIGITS))
JSON_NUMBER = Cat((WHOLE, Rep(FRACTION, 0, 1), Rep(EXPONENT, 0, 1)))
WORDS = Alt((literal_text("true"), literal_text("false"), literal_text("null")))
_SPACES = Rep(Bytes(((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))))


@lru_cache(maxsize=1)
def character() -> Tree:
    """One character of a string as JSON may write it; of its escapes not those of surrogates."""
    hexadecimal = Bytes(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))
    plain = characters(((0x20, 0x21), (0x23, 0x5B), (0x5D, LAST)))
    not_d = Bytes(((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66)))
    d_low = Cat((Bytes(((0x44, 0x44), (0x64, 0x64))), Bytes(((0x30, 0x37),))))
    unit = Cat((literal_text("u"), Alt((Cat((not_d, hexadecimal)), d_low)), hexadecimal, hexadecimal))
    short = Bytes(tuple((ord(sign), ord(sign)) for sign in '"/\\bfnrt'))
    return Alt((plain, Cat((literal_text("\\"), Alt((short, unit))))))


def string() -> Tree:
    """Any string."""
    return Cat((literal_text('"'), Rep(character()), literal_text('"')))


def around(whitespace: str) -> Tree:
    """What may be around any value, name or sign: whitespace any."""
    return _SPACES if whitespace == "any" else Cat()


def behind(whitespace: str) -> Tree:
    """What may be after ``,`` and ``:``."""
    spaces: dict[str, Tree] = {"any": _SPACES, "one": Rep(literal_text(" "), 0, 1), "none": Cat()}
    return spaces[whitespace]


def comma_list(opens: str, entry: Tree, closes: str, whitespace: str) -> Tree:
    """Any number of entries between brackets, with commas."""
    space = around(whitespace)
    rest = Rep(Cat((literal_text(","), behind(whitespace), entry, space)))
    return Cat((literal_text(opens), space, Rep(Cat((entry, space, rest)), 0, 1), literal_text(closes)))


def any_value(whitespace: str, call: str) -> Tree:
    """The rule of any value, which calls itself by this name."""
    member = Cat((string(), around(whitespace), literal_text(":"), behind(whitespace), RuleCall(call)))
    lists = comma_list("[", RuleCall(call), "]", whitespace), comma_list("{", member, "}", whitespace)
    return Alt((string(), JSON_NUMBER, WORDS, *lists))


def json_language(depth: int, whitespace: str) -> Language:
    """Any JSON with at most ``depth`` containers around a value."""
    space = around(whitespace)
    start = Cat((space, RuleCall("value"), space))
    return Language({"start": start, "value": any_value(whitespace, "value")}, depth=depth)
