r"""What ``.``, ``\d``, ``\w``, ``\s`` and ``\p{...}`` match in ECMA-262 with the flag ``u`` ."""

from __future__ import annotations

from functools import lru_cache

from dllm.common.installing import not_installed
from dllm.constraints.languages.utf8 import ALL_CHARACTERS, Ranges, complement, matched_ranges

LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
NO_LINE_END = complement(LINE_ENDS)
ASCII_DIGITS: Ranges = ((0x30, 0x39),)
ASCII_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# White space (TAB, VT, FF, U+FEFF and the category Zs) and line ends: not U+001C to U+001F, not U+0085.
WHITE_SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
CLASS_ESCAPES: dict[str, Ranges] = {
    "d": ASCII_DIGITS,
    "D": complement(ASCII_DIGITS),
    "w": ASCII_WORD,
    "W": complement(ASCII_WORD),
    "s": WHITE_SPACE,
    "S": complement(WHITE_SPACE),
}
_EVERYWHERE: dict[str, Ranges] = {"Any": ALL_CHARACTERS, "ASCII": ((0, 0x7F),)}


@lru_cache(maxsize=256)  # of some 700 that there are; its caller bounds the names
def property_ranges(text: str) -> Ranges | None:
    r"""The code points of ``\p{text}``, by the tables of ``regex``. None: Unicode has no such name, or ``regex`` does
    not know it. Raises UserError where ``regex`` is not installed."""
    if text in _EVERYWHERE:
        return _EVERYWHERE[text]
    if text == "Assigned":
        return complement(_regex_ranges("gc=Cn") or ())
    key, equals, value = text.partition("=")
    category = value if key in ("gc", "General_Category") else "" if equals else key
    if category in CATEGORY_NAMES:
        return _regex_ranges(f"gc={category}")
    if key in SCRIPT_KEYS and is_script(value):
        return _regex_ranges(f"{SCRIPT_KEYS[key]}={value}")
    return _regex_ranges(BINARY_NAMES[text]) if text in BINARY_NAMES else None


def _regex_ranges(name: str) -> Ranges | None:
    """What ``regex`` matches by this property; None: it knows no such one."""
    try:
        import regex
    except ImportError:
        raise not_installed(r"\p{{}...} in a pattern of {constraint.schema:name}", "regex", "constraints") from None
    try:
        engine = regex.compile(rf"\p{{{name}}}+", regex.V0)
    except regex.error:
        return None
    return matched_ranges(engine)


_CATEGORIES = """
    LC Cased_Letter Pe Close_Punctuation Pc Connector_Punctuation Cc Control cntrl Sc Currency_Symbol Pd
    Dash_Punctuation Nd Decimal_Number digit Me Enclosing_Mark Pf Final_Punctuation Cf Format Pi Initial_Punctuation L
    Letter Nl Letter_Number Zl Line_Separator Ll Lowercase_Letter M Mark Combining_Mark Sm Math_Symbol Lm
    Modifier_Letter Sk Modifier_Symbol Mn Nonspacing_Mark N Number Ps Open_Punctuation C Other Lo Other_Letter No
    Other_Number Po Other_Punctuation So Other_Symbol Zp Paragraph_Separator Co Private_Use P Punctuation punct Z
    Separator Zs Space_Separator Mc Spacing_Mark Cs Surrogate S Symbol Lt Titlecase_Letter Cn Unassigned Lu
    Uppercase_Letter
"""
# Each with its short name, which ``regex`` may take for something else.
_BINARY = """
    ASCII_Hex_Digit/AHex Alphabetic/Alpha Bidi_Control/Bidi_C Bidi_Mirrored/Bidi_M Case_Ignorable/CI Cased/
    Changes_When_Casefolded/CWCF Changes_When_Casemapped/CWCM Changes_When_Lowercased/CWL Changes_When_Titlecased/CWT
    Changes_When_Uppercased/CWU Dash/ Default_Ignorable_Code_Point/DI Deprecated/Dep Diacritic/Dia Emoji/
    Emoji_Component/EComp Emoji_Modifier/EMod Emoji_Modifier_Base/EBase Emoji_Presentation/EPres
    Extended_Pictographic/ExtPict Extender/Ext Grapheme_Base/Gr_Base Grapheme_Extend/Gr_Ext Hex_Digit/Hex
    IDS_Binary_Operator/IDSB IDS_Trinary_Operator/IDST ID_Continue/IDC ID_Start/IDS Ideographic/Ideo Join_Control/Join_C
    Logical_Order_Exception/LOE Lowercase/Lower Math/ Noncharacter_Code_Point/NChar Pattern_Syntax/Pat_Syn
    Pattern_White_Space/Pat_WS Quotation_Mark/QMark Radical/ Regional_Indicator/RI Sentence_Terminal/STerm
    Soft_Dotted/SD Terminal_Punctuation/Term Unified_Ideograph/UIdeo Uppercase/Upper Variation_Selector/VS
    White_Space/space XID_Continue/XIDC XID_Start/XIDS
"""
CATEGORY_NAMES = frozenset(_CATEGORIES.split())
# The long name of each name.
BINARY_NAMES = {
    name: long for long, _, short in (pair.partition("/") for pair in _BINARY.split()) for name in (long, short) if name
}
SCRIPT_KEYS = {"Script": "sc", "sc": "sc", "Script_Extensions": "scx", "scx": "scx"}


def is_script(name: str) -> bool:
    """Whether a name is spelt as those of scripts are, such as Old_Italic and Grek; ``regex`` overlooks case."""
    parts = name.split("_")
    return name == "SignWriting" or (name.isascii() and all(part.isalpha() and part.istitle() for part in parts))
