"""JSON as trees: its pieces, and the language of all of it."""

from __future__ import annotations

from functools import lru_cache

from dllm.constraints.languages.trees import Alt, Bytes, Call, Cat, Language, Rep, Tree
from dllm.constraints.languages.utf8 import LAST, characters, literal

DIGIT = Bytes(((0x30, 0x39),))
DIGITS = Rep(DIGIT, 1)
WHOLE = Cat((Rep(literal("-"), 0, 1), Alt((literal("0"), Cat((Bytes(((0x31, 0x39),)), Rep(DIGIT)))))))
FRACTION = Cat((literal("."), DIGITS))
EXPONENT = Cat((Bytes(((0x45, 0x45), (0x65, 0x65))), Rep(Bytes(((0x2B, 0x2B), (0x2D, 0x2D))), 0, 1), DIGITS))
NUMBER = Cat((WHOLE, Rep(FRACTION, 0, 1), Rep(EXPONENT, 0, 1)))
WORDS = Alt((literal("true"), literal("false"), literal("null")))
_SPACES = Rep(Bytes(((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))))


@lru_cache(maxsize=1)
def character() -> Tree:
    """One character of a string as JSON may write it; of its escapes not those of surrogates."""
    hexadecimal = Bytes(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))
    plain = characters(((0x20, 0x21), (0x23, 0x5B), (0x5D, LAST)))
    not_d = Bytes(((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66)))
    d_low = Cat((Bytes(((0x44, 0x44), (0x64, 0x64))), Bytes(((0x30, 0x37),))))
    unit = Cat((literal("u"), Alt((Cat((not_d, hexadecimal)), d_low)), hexadecimal, hexadecimal))
    short = Bytes(tuple((ord(sign), ord(sign)) for sign in '"/\\bfnrt'))
    return Alt((plain, Cat((literal("\\"), Alt((short, unit))))))


def string() -> Tree:
    """Any string."""
    return Cat((literal('"'), Rep(character()), literal('"')))


def around(whitespace: str) -> Tree:
    """What may stand around any value, name or sign: whitespace any."""
    return _SPACES if whitespace == "any" else Cat()


def behind(whitespace: str) -> Tree:
    """What may stand after ``,`` and ``:``."""
    spaces: dict[str, Tree] = {"any": _SPACES, "one": Rep(literal(" "), 0, 1), "none": Cat()}
    return spaces[whitespace]


def listed(opens: str, entry: Tree, closes: str, whitespace: str) -> Tree:
    """Any number of entries between brackets, with commas."""
    space = around(whitespace)
    rest = Rep(Cat((literal(","), behind(whitespace), entry, space)))
    return Cat((literal(opens), space, Rep(Cat((entry, space, rest)), 0, 1), literal(closes)))


def any_value(whitespace: str, call: str) -> Tree:
    """The rule of any value, which calls itself by this name."""
    member = Cat((string(), around(whitespace), literal(":"), behind(whitespace), Call(call)))
    lists = listed("[", Call(call), "]", whitespace), listed("{", member, "}", whitespace)
    return Alt((string(), NUMBER, WORDS, *lists))


def json_language(depth: int, whitespace: str) -> Language:
    """Any JSON with at most ``depth`` containers around a value."""
    space = around(whitespace)
    return Language({"start": Cat((space, Call("value"), space)), "value": any_value(whitespace, "value")}, depth=depth)
