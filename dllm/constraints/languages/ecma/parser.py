r"""Reads patterns of ECMA-262 (section 22.2.1, with the flag ``u``) as trees, in which ``^``, ``$``, ``\b`` and ``\B``
are marks: bytes that no text holds.

Escapes that say nothing, such as ``\-``, lone ``]``, ``{`` and ``}``, and ``-`` beside a class in brackets are errors
under ``u`` alone. They mean themselves without the flag, patterns in use hold them, and so they are taken here.
"""

from __future__ import annotations

import re
from typing import NoReturn

from dllm.common.errors import Refusal, verbatim
from dllm.constraints.languages.ecma.classes import CLASS_ESCAPES, NO_LINE_END, property_ranges
from dllm.constraints.languages.regex import REFUSED_PARTS
from dllm.constraints.languages.trees import Alt, Bytes, Cat, Rep, Tree
from dllm.constraints.languages.utf8 import LAST, Ranges, characters, complement

FIRST_ASSERTION = 0xFC
ASSERTION_MARKS = {sign: Bytes(((mark, mark),)) for mark, sign in enumerate("^$bB", FIRST_ASSERTION)}
_CONTROLS = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
_COUNTS, _NO_LOW = re.compile(r"\{([0-9]+)(,([0-9]*))?\}"), re.compile(r"\{,[0-9]+\}")
_PROPERTY = re.compile(r"\\([pP])\{([A-Za-z0-9_=]*)\}")
_HYPHEN: Ranges = ((0x2D, 0x2D),)
_SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LONGEST = 100  # of a name of \p, and of what is after \u, zeros in front of a code point included
# What others' regular expressions read, and ECMA-262 does not: how it is written there.
_ADVICE = {"A": "Write ^.", "Z": "Write $.", "z": "Write $.", "a": r"Write \x07.", "G": "Leave it out.",
            "N": r"Write \u{...}.", "U": r"Write \u{...}.", "h": r"Write [\t ].", "R": r"Write \r?\n.",
            "Q": "Escape each sign.", "E": "Escape each sign.", "X": r"Write \P{M}\p{M}*."}  # fmt: skip
_GROUPS = (
    (r"P<", "(?P<name>...) is Python's", "Write (?<name>...)."),
    (r"#", "comments are Python's", "Leave them out."),
    (r">", "atomic groups are Python's", "Write (?:...)."),
    (r"\(", "conditional groups are Python's", "Write both cases out."),
    (
        r"[a-zA-Z]*(-[a-zA-Z]*)?[:)]",
        "flags inside a pattern are not known",
        "Write the cases out, such as [aA] and [^].",
    ),
    (r"", "an unknown group", "Write (?:...) or (?<name>...)."),
)
_AHEAD = ("(?=", "(?!", "(?<=", "(?<!")


class Parser:
    """Reads one pattern, from the left. where: names it in refusals."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self._names: set[str] = set()

    def read(self) -> Tree:
        """The whole pattern. Raises UserError."""
        pattern = self._cases()
        if self.at < len(self.text):
            self._wrong("unmatched )")
        return pattern

    def _cases(self) -> Tree:
        cases = [self._terms()]
        while self._take("|"):
            cases.append(self._terms())
        return cases[0] if len(cases) == 1 else Alt(tuple(cases))

    def _terms(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.text) and self._next not in "|)":
            is_group, atom = self._next == "(", self._atom()
            parts.append(self._repeat(atom, is_group or atom not in ASSERTION_MARKS.values()))
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    @property
    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, what: str) -> bool:
        is_there = self.text.startswith(what, self.at)
        self.at += len(what) * is_there
        return is_there

    def _wrong(self, why: str, way_out: str = "") -> NoReturn:
        behind = f" {verbatim(way_out)}" if way_out else ""
        raise Refusal(
            f"{self.where} is no regular expression of ECMA-262: {verbatim(why)} at position {self.at}.{behind}"
        )

    def _refuse(self, part: str) -> NoReturn:
        raise Refusal(f"{self.where} {REFUSED_PARTS[part]}")

    def _atom(self) -> Tree:
        match self._next:
            case "(":
                return self._group()
            case "[":
                return characters(self._brackets())
            case "\\" if self.text[self.at + 1 : self.at + 2] in ("b", "B"):
                self.at += 2
                return ASSERTION_MARKS[self.text[self.at - 1]]
            case "\\":
                return characters(self._escape())
            case "^" | "$" as sign:
                self.at += 1
                return ASSERTION_MARKS[sign]
            case "*" | "+" | "?":
                self._wrong("nothing to repeat")
            case "{" if _COUNTS.match(self.text, self.at):
                self._wrong("nothing to repeat")
            case ".":
                self.at += 1
                return characters(NO_LINE_END)
        self.at += 1
        return characters(((ord(self.text[self.at - 1]),) * 2,))

    def _repeat(self, atom: Tree, repeats: bool) -> Tree:
        """The atom with the quantifier after it, if there is one. repeats: it may have one."""
        counts = _COUNTS.match(self.text, self.at)
        if self._next == "" or self._next not in "*+?" and not counts:
            if _NO_LOW.match(self.text, self.at):
                self._wrong("{,n} is not a quantifier", "Write {0,n}.")
            return atom
        if not repeats:
            self._wrong("nothing to repeat")
        low, high = self._counts(counts) if counts else _SIGNS[self._next]
        self.at += counts.end() - counts.start() if counts else 1
        self._take("?")
        if self._next == "+":
            self._wrong("possessive quantifiers are Python's", "Leave the + out.")
        if self._next and self._next in "*?" or _COUNTS.match(self.text, self.at):
            self._wrong("nothing to repeat")
        return Rep(atom, low, high)

    def _counts(self, match: re.Match[str]) -> tuple[int, int | None]:
        if max(len(match[1]), len(match[3] or "")) > 20:
            self._wrong("a number of more than 20 digits")
        low = int(match[1])
        high = low if match[2] is None else int(match[3]) if match[3] else None
        if high is not None and high < low:
            self._wrong("numbers out of order in {}")
        return low, high

    def _group(self) -> Tree:
        """``(``: what it begins, up to its ``)``."""
        if any(self.text.startswith(sign, self.at) for sign in _AHEAD):
            self._refuse("ASSERT")
        begin = self.at
        if not self._take("(?:") and not self._name() and not self._foreign():
            self._take("(")
        pattern = self._cases()
        if not self._take(")"):
            self.at = begin
            self._wrong("missing )")
        return pattern

    def _name(self) -> bool:
        """Read ``(?<name>``, if it is here."""
        if not self._take("(?<"):
            return False
        end = self.text.find(">", self.at)
        name = self.text[self.at : end]
        if end < 0 or not name.replace("$", "_").isidentifier():
            self._wrong("no name of a group")
        if name in self._names:
            self._wrong(f"a second group named {name!r:.40}")
        self._names.add(name)
        self.at = end + 1
        return True

    def _foreign(self) -> bool:
        """Refuse what only others' regular expressions have. Raises UserError."""
        if self.text.startswith("(?P=", self.at):
            self._refuse("GROUPREF")
        if self.text.startswith("(?", self.at):
            self._wrong(*next(words for begin, *words in _GROUPS if re.compile(begin).match(self.text, self.at + 2)))
        return False

    def _brackets(self) -> Ranges:
        """A class in brackets."""
        begin, ranges = self.at, list[tuple[int, int]]()
        self.at += 1
        is_negated = self._take("^")
        while not self._take("]"):
            start, first = self.at, self._entry(begin)
            if self._next != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
                ranges += first
                continue
            self.at += 1
            ranges += self._range(start, first, self._entry(begin))
        return complement(tuple(ranges)) if is_negated else tuple(ranges)

    def _range(self, start: int, first: Ranges, last: Ranges) -> Ranges:
        """Two entries in brackets with ``-`` between, which ``start`` there; beside a class that is a sign."""
        if _single(first) and _single(last):
            if first[0][0] > last[0][0]:
                self._wrong("range out of order")
            return ((first[0][0], last[0][0]),)
        if last == _HYPHEN or re.search(r"\\[pP]", self.text[start : self.at]):
            self._wrong("a class is not an end of a range", "Write - last in the brackets.")
        return (*first, *_HYPHEN, *last)

    def _entry(self, begin: int) -> Ranges:
        """One character or class in brackets."""
        if self.at >= len(self.text):
            self.at = begin
            self._wrong("missing ]")
        if self._take("\\b"):
            return ((0x08, 0x08),)
        if self._next == "\\":
            return self._escape()
        self.at += 1
        return ((ord(self.text[self.at - 1]),) * 2,)

    def _escape(self) -> Ranges:
        """A backslash and what it escapes: the code points that are meant."""
        sign = self.text[self.at + 1 : self.at + 2]
        if sign in ("p", "P"):
            return self._property()
        if sign and sign in "123456789" or sign == "k":
            self._refuse("GROUPREF")
        if sign and sign in CLASS_ESCAPES:
            self.at += 2
            return CLASS_ESCAPES[sign]
        point = self._point(sign)
        return ((point, point),)

    def _point(self, sign: str) -> int:
        """The code point of an escaped character."""
        behind = self.text[self.at + 2 : self.at + 2 + _LONGEST]
        if sign in _CONTROLS:
            self.at += 2
            return _CONTROLS[sign]
        if sign == "c" and re.match("[A-Za-z]", behind):
            self.at += 3
            return ord(behind[0]) % 32
        if sign == "0" and not behind[:1].isdecimal():
            self.at += 2
            return 0
        if sign == "x" and (digits := re.match("[0-9A-Fa-f]{2}", behind)):
            self.at += 4
            return int(digits[0], 16)
        if sign == "u":
            return self._unicode(behind)
        if not sign:
            self._wrong("nothing after \\")
        if sign.isascii() and sign.isalnum():
            self._wrong(f"\\{sign} is not an escape", _ADVICE.get(sign, f"Write \\xHH or {sign}."))
        self.at += 2
        return ord(sign)

    def _unicode(self, behind: str) -> int:
        if long := re.match(r"\{([0-9A-Fa-f]+)\}", behind):
            if len(long[1].lstrip("0")) > 6 or int(long[1], 16) > LAST:
                self._wrong("a code point beyond 10FFFF")
            self.at += 2 + long.end()
            return int(long[1], 16)
        if pair := re.match(r"([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})", behind):
            self.at += 2 + pair.end()
            return 0x10000 + ((int(pair[1], 16) - 0xD800) << 10) + int(pair[2], 16) - 0xDC00
        digits = re.match("[0-9A-Fa-f]{4}", behind)
        if not digits:
            self._wrong(r"\u without four digits or {...}")
        self.at += 6
        return int(digits[0], 16)

    def _property(self) -> Ranges:
        r"""``\p{...}`` or ``\P{...}``."""
        match = _PROPERTY.match(self.text, self.at)
        if not match:
            self._wrong(r"\p without {...}")
        ranges = property_ranges(match[2]) if len(match[2]) <= _LONGEST else None
        if ranges is None:
            self._wrong(f"{match[0]:.60} is not a property known here", r"Write such as \p{L}, \p{Script=Greek}.")
        self.at = match.end()
        return complement(ranges) if match[1] == "P" else ranges


def _single(ranges: Ranges) -> bool:
    """Whether an entry in brackets is one character, which may begin or end a range."""
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
