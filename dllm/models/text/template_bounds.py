"""What each method and filter may make at most, from its arguments: bytes, before the call.

A method that is not here cannot be called, and a filter that is not here does not exist. A bound takes what its method
takes, after the budget. Where a call may take longer than its arguments are long, its bound refuses by the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from dllm.models.text.template_budget import MOST_ENTRIES, RenderingBudget

Bound = Callable[..., int]
_STEPS = 1 << 28  # comparisons of characters, a tenth of a second
_SMALL = 1 << 12  # characters, and numbers, that a filter takes which templates of conversations do not need
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
LIST_FILTERS = ("dictsort", "groupby", "list", "max", "min", "sort", "unique", "join", "sum")  # take lists whole
# A directive of a printf format: its key, width, precision and conversion.
_DIRECTIVE = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(\d{0,4})(?:\.(\d{0,4}))?[hlL]?([a-zA-Z%])")


def _length(budget: RenderingBudget, value: Any) -> int:
    return budget.size(value).text_length


def _texts(times: int = 1) -> Bound:
    """Of a text as long as its value and its other arguments, or ``times`` as long."""
    return lambda budget, *args, **fields: 4 * times * sum(_length(budget, each) for each in (*args, *fields.values()))


def _stripped(budget: RenderingBudget, text: Any, chars: Any = None) -> int:
    _refuse_slow(_length(budget, text), _length(budget, chars) if chars is not None else 1)
    return 4 * _length(budget, text)


def _refuse_slow(length: int, other: int) -> None:
    if length * other > _STEPS:
        raise SecurityError(f"texts of {length} and {other} characters take too long to compare")


def _replaced(budget: RenderingBudget, text: Any, old: Any, new: Any, count: Any = None) -> int:
    text, old, new = (budget.text(value) for value in (text, old, new))
    matches = text.count(old)
    matches = matches if count is None or count < 0 else min(matches, count)
    return 4 * (len(text) + matches * max(0, len(new) - len(old)))


def _padded(budget: RenderingBudget, text: Any, width: int = 80, fill: str = " ") -> int:
    return 4 * max(_length(budget, text), width)


def _tabbed(budget: RenderingBudget, text: str, tabsize: int = 8) -> int:
    return 4 * (len(text) + text.count("\t") * max(0, tabsize))


def _split(budget: RenderingBudget, text: str, sep: str | None = None, maxsplit: int = -1) -> int:
    matches = len(text) // 2 if sep is None else text.count(sep) if sep else 0
    return 4 * len(text) + 64 * (1 + (matches if maxsplit < 0 else min(matches, maxsplit)))


def _split_backwards(budget: RenderingBudget, text: str, sep: str | None = None, maxsplit: int = -1) -> int:
    _refuse_slow(len(text), len(sep or ""))
    return _split(budget, text, sep, maxsplit)


def _lines(budget: RenderingBudget, text: str, keepends: bool = False) -> int:
    return 4 * len(text) + 64 * (1 + sum(map(text.count, _LINE_ENDS)))


def _nothing(*args: Any, **fields: Any) -> int:
    """Of what answers by a number, a truth, or what is there already."""
    return 0


def _searched(budget: RenderingBudget, text: str, part: str, *among: int) -> int:
    """Of the text in parts, or a place in it."""
    _refuse_slow(len(text), len(part))
    return 4 * len(text) + 300


def _joined(budget: RenderingBudget, between: str, values: Iterable[str]) -> int:
    size = budget.size(values)
    return 4 * (size.characters + len(between) * (len(values) if isinstance(values, str) else size.entries))


def _indented(
    budget: RenderingBudget, text: Any, width: int | str = 4, first: bool = False, blank: bool = False
) -> int:
    text = budget.text(text)
    lines, each = 2 + sum(map(text.count, _LINE_ENDS)), len(width) if isinstance(width, str) else max(0, width)
    return 4 * (len(text) + lines * each) + 128 * lines


def _as_json(
    budget: RenderingBudget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> int:
    size = budget.size(value)
    deep = 0 if indent is None else len(indent) if isinstance(indent, str) else max(0, indent)
    between = 8 + (0 if separators is None else budget.size(separators).characters)
    # A character is written by six at most, or by twelve of ASCII; the parts are small texts before they are joined.
    return 12 * size.characters + size.entries * (128 + 4 * (deep * size.depth + between))


def printed_size(budget: RenderingBudget, form: str, values: Any) -> int:
    """Of ``form % values``."""
    rest = _DIRECTIVE.sub("", form)
    if "%" in rest and re.search(r"\*|\d{5}", rest):
        raise SecurityError("a format asks for too wide a field")
    directives = _DIRECTIVE.findall(form)
    wide = sum(int(width or 0) + int(places or 0) + 330 for width, places, _ in directives)
    quoted = any(kind in "ra" for *_, kind in directives)
    parts = values if isinstance(values, tuple) else values.values() if isinstance(values, Mapping) else (values,)
    each = [(10 if quoted else 1) * _length(budget, value) for value in parts]
    return 4 * (len(form) + wide + (len(directives) * max([0, *each]) if isinstance(values, Mapping) else sum(each)))


def _formatted(budget: RenderingBudget, form: Any, *args: Any, **fields: Any) -> int:
    return printed_size(budget, budget.text(form), fields or args)


def _copied_list(budget: RenderingBudget, value: Any, *args: Any, **fields: Any) -> int:
    """Of lists of what is in a list, and of lower-case copies of its texts, by which they are ordered."""
    for argument in (*args, *fields.values()):
        _refuse_large(budget, argument)
    size = budget.size(value)
    entries = len(value) if isinstance(value, str | range) else size.entries
    return 200 * entries + 12 * size.characters


def _batched(budget: RenderingBudget, value: Any, number: int, fill_with: Any = None) -> int:
    if number > MOST_ENTRIES:
        raise SecurityError(f"a list of {number} entries is too long")
    return _copied_list(budget, value) + 8 * max(0, number)


def _numbered(budget: RenderingBudget, value: Any, *args: Any, **fields: Any) -> int:
    """Of a number from a text or a number."""
    _refuse_large(budget, value)
    return 0


def _by_name(budget: RenderingBudget, value: Any, *args: Any, **fields: Any) -> int:
    """Of what gives values of a list: its first argument is a name."""
    _refuse_large(budget, [*args[:1], fields.get("attribute")])
    return 0


def _rounded(budget: RenderingBudget, value: Any, precision: int = 0, method: str = "common") -> int:
    if abs(precision) > 400:  # noqa: PLR2004  # ten to this power is multiplied by
        raise SecurityError(f"{precision} places are too many")
    return 0


def _refuse_large(budget: RenderingBudget, value: Any) -> None:
    size = sum(_length(budget, entry) for entry in value) if isinstance(value, list) else _length(budget, value)
    if size > _SMALL:
        raise SecurityError(f"a value of {size} characters is too long here, where {_SMALL} are the most")


def _small(budget: RenderingBudget, value: Any, *args: Any, **fields: Any) -> int:
    """Of a filter that templates of conversations do not need: it takes little."""
    _refuse_large(budget, value)
    for item in (*args, *fields.values()):
        if (isinstance(item, int) and abs(item) > _SMALL) or (isinstance(item, str) and len(item) > 128):  # noqa: PLR2004
            raise SecurityError(f"a number is over {_SMALL} here, or a text over 128 characters")
    return 1 << 22


def _reversed(budget: RenderingBudget, value: Any) -> int:
    return 4 * len(value) if isinstance(value, str) else _copied_list(budget, value)


def _copied(budget: RenderingBudget, value: Any, *args: Any) -> int:
    return 100 * budget.size(value).entries


_ANSWERS = """isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle
              isupper startswith endswith count find index"""
METHOD_BOUNDS: Mapping[type, Mapping[str, Bound]] = {
    str: {
        **dict.fromkeys(_ANSWERS.split(), _nothing),
        **dict.fromkeys(("lower", "upper", "casefold", "swapcase", "title", "capitalize"), _texts(3)),
        **dict.fromkeys(("removeprefix", "removesuffix"), _texts()),
        **dict.fromkeys(("strip", "lstrip", "rstrip"), _stripped),
        **dict.fromkeys(("rfind", "rindex", "partition", "rpartition"), _searched),
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
        "replace": _replaced,
        "expandtabs": _tabbed,
        "split": _split,
        "rsplit": _split_backwards,
        "splitlines": _lines,
        "join": _joined,
    },
    list: {"count": _nothing, "index": _nothing, "copy": _copied},
    tuple: {"count": _nothing, "index": _nothing},
    dict: {**dict.fromkeys(("get", "items", "keys", "values"), _nothing), "copy": _copied},
}
FILTER_BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(("count", "d", "default", "first", "items", "last", "length", "random"), _nothing),
    **dict.fromkeys(("attr", "map", "reject", "rejectattr", "select", "selectattr"), _by_name),
    **dict.fromkeys(("lower", "upper", "capitalize"), _texts(3)),
    "title": _texts(20),  # words are texts before they are joined
    **dict.fromkeys(("e", "escape", "forceescape"), _texts(6)),
    **dict.fromkeys(("safe", "string"), _texts()),
    "wordcount": _texts(8),
    "truncate": _texts(),
    "trim": _stripped,
    "replace": _replaced,
    "center": _padded,
    "indent": _indented,
    "format": _formatted,
    "tojson": _as_json,
    **dict.fromkeys(LIST_FILTERS, _copied_list),
    "reverse": _reversed,
    "batch": _batched,
    "slice": _batched,
    **dict.fromkeys(("abs", "filesizeformat", "float", "int"), _numbered),
    "round": _rounded,
    **dict.fromkeys(("pprint", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr"), _small),
}
