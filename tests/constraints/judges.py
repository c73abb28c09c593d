"""Judges of texts that share no code with the constraints: json.loads with jsonschema, and llguidance where it is
installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, time
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

FORMATS = FormatChecker(formats=["date", "uuid", "ipv4", "email"])


@FORMATS.checks("time", raises=ValueError)
def is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(time.fromisoformat(value).tzinfo)


@FORMATS.checks("date-time", raises=ValueError)
def is_date_time(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value).tzinfo)


class Real(float):
    """A number as it is written: within floats, since jsonschema divides, and whole only if it is, which a float of 70
    digits always is."""

    def __new__(cls, text: str) -> Real:
        return super().__new__(cls, max(-1e300, min(1e300, float(text))))

    def __init__(self, text: str) -> None:
        mantissa, _, exponent = text.lower().partition("e")
        whole, _, fraction = mantissa.partition(".")
        digits = (whole + fraction).rstrip("0")  # the exponent may have 20 digits, too many for Decimal
        self.whole = not digits.strip("-") or len(digits) <= len(whole) + int(exponent or 0)

    def is_integer(self) -> bool:
        return self.whole


def read(text: str) -> Any:
    """As json.loads, with numbers as they are written."""
    return json.loads(text, parse_float=Real)


def validates(schema: Any, text: str) -> bool:
    """Whether jsonschema takes what json.loads reads."""
    return Draft202012Validator(schema, format_checker=FORMATS).is_valid(read(text))


def other_judge(schema: Any) -> Callable[[str], str] | None:
    """What llguidance has against the value of a text (empty: nothing). None: it does not know all keywords of the
    schema. ImportError where it is not installed.

    It reads one spelling of each value: no ``\\u0041``, and 1 for 1.0 where an enumeration says so.
    """
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(json.dumps(plain(schema)))
    if LLMatcher.validate_grammar(grammar, _bytes()):
        return None

    def judge(text: str) -> str:
        matcher = LLMatcher(_bytes(), grammar, log_level=0)
        written = json.dumps(plain(read(text)), ensure_ascii=False).replace("\x7f", "\\u007f").encode()
        taken = matcher.try_consume_tokens(list(written))
        ends = "" if matcher.is_accepting() else "the text goes on"
        return ends if taken == len(written) else f"nothing goes on behind {written[:taken].decode(errors='replace')!r}"

    return judge


def plain(value: Any) -> Any:
    """A value with whole numbers as such."""
    match value:
        case dict():
            return {name: plain(entry) for name, entry in value.items()}
        case list():
            return [plain(entry) for entry in value]
        case float() if value.is_integer() and abs(value) < 1e15:
            return int(value)
    return value


@cache
def _bytes() -> Any:
    """A tokenizer of single bytes, and an end."""
    from llguidance import LLTokenizer, TokenizerWrapper

    class Bytes:
        eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
        tokens = (*(bytes([byte]) for byte in range(256)), b"<|end|>")

        def __call__(self, text: str | bytes) -> list[int]:
            return list(text if isinstance(text, bytes) else text.encode())

    return LLTokenizer(TokenizerWrapper(Bytes()))
