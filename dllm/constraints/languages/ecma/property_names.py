r"""The names of ``\p{...}`` in ECMA-262 (the tables of section 22.2.1): case and underscores count."""

from __future__ import annotations

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
