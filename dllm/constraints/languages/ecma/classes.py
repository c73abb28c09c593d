r"""What ``.``, ``\d``, ``\w``, ``\s`` and ``\p{...}`` match in ECMA-262 with the flag ``u`` ."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dllm.constraints.languages.ecma.property_names import BINARY_NAMES, CATEGORY_NAMES, SCRIPT_KEYS, is_script
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, LAST, Ranges, inverted
from dllm.errors import not_installed

LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
NO_LINE_END = inverted(LINE_ENDS)
ASCII_DIGITS: Ranges = ((0x30, 0x39),)
ASCII_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# White space (TAB, VT, FF, U+FEFF and the category Zs) and line ends: not U+001C to U+001F, not U+0085.
WHITE_SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
CLASS_ESCAPES: dict[str, Ranges] = {
    "d": ASCII_DIGITS, "D": inverted(ASCII_DIGITS), "w": ASCII_WORD, "W": inverted(ASCII_WORD),
    "s": WHITE_SPACE, "S": inverted(WHITE_SPACE),
}  # fmt: skip
_EVERYWHERE: dict[str, Ranges] = {"Any": ALL_CHARACTERS, "ASCII": ((0, 0x7F),)}


@lru_cache(maxsize=256)  # of some 700 that there are; its caller bounds the names
def property_ranges(text: str) -> Ranges | None:
    r"""The code points of ``\p{text}``, by the tables of ``regex``. None: Unicode has no such name, or ``regex`` does
    not know it. Raises UserError where ``regex`` is not installed."""
    if text in _EVERYWHERE:
        return _EVERYWHERE[text]
    if text == "Assigned":
        return inverted(_matched("gc=Cn") or ())
    key, equals, value = text.partition("=")
    category = value if key in ("gc", "General_Category") else "" if equals else key
    if category in CATEGORY_NAMES:
        return _matched(f"gc={category}")
    if key in SCRIPT_KEYS and is_script(value):
        return _matched(f"{SCRIPT_KEYS[key]}={value}")
    return _matched(BINARY_NAMES[text]) if text in BINARY_NAMES else None


def _matched(asked: str) -> Ranges | None:
    """What ``regex`` matches by this property; None: it knows no such one."""
    try:
        import regex
    except ImportError:
        raise not_installed(r"\p{...} in a pattern of constraint.schema", "regex", "constraints") from None
    try:
        engine = regex.compile(rf"\p{{{asked}}}+", regex.V0)
    except regex.error:
        return None
    return tuple((run.start(), run.end() - 1) for run in engine.finditer(_every_character()))


@lru_cache(maxsize=1)
def _every_character() -> str:
    return np.arange(LAST + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
