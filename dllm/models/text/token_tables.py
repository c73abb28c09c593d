"""The keys that we read of the tokenizer's JSON files: type and default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.models.keys import MAX_SIZE, REQUIRED, KeyRule, KeyRules, integer, token_ids


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _token(value: Any) -> bool:
    """A special token: a string, or an object with its content."""
    return _text(value) or (isinstance(value, dict) and _text(value.get("content")))


def _tokens(value: Any) -> bool:
    """A list of special tokens, or an object from names to special tokens."""
    return isinstance(value, list | dict) and all(map(_token, value.values() if isinstance(value, dict) else value))


def _numbered(value: Any) -> bool:
    """Added tokens by id: ``{"151643": {"content": "<|endoftext|>", "special": true}}``."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return isinstance(value, dict) and all(
        number.isascii()
        and number.isdigit()
        and isinstance(entry, dict)
        and _text(entry.get("content"))
        and all(isinstance(entry.get(name, False), bool) for name in flags)
        for number, entry in value.items()
    )


def _templates(value: Any) -> bool:
    """One template, or several by name: an object, or a list of objects."""
    if isinstance(value, dict):
        return all(map(_text, value.values()))
    return _text(value) or (
        isinstance(value, list)
        and all(
            isinstance(entry, dict) and _text(entry.get("name")) and _text(entry.get("template")) for entry in value
        )
    )


SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKENIZER: KeyRules = {
    **{name: KeyRule("a string or an object with its content", _token) for name in SPECIAL_TOKEN_KEYS},
    "additional_special_tokens": KeyRule("a list of strings or of objects with their content", _tokens, []),
    "extra_special_tokens": KeyRule("a list or an object of strings or of objects with their content", _tokens, []),
    "added_tokens_decoder": KeyRule(
        "an object from ids to objects with a content and flags that are true or false", _numbered, {}
    ),
    "chat_template": KeyRule(
        "a string, an object of strings or a list of objects with a name and a template", _templates
    ),
}
GENERATION: KeyRules = {"eos_token_id": token_ids(MAX_SIZE)}


def added_tokens(content: Mapping[str, Any]) -> KeyRules:
    """added_tokens.json has a key per token; the value is its id."""
    return dict.fromkeys(content, integer(0, MAX_SIZE, REQUIRED))


def named_tokens(content: Mapping[str, Any]) -> KeyRules:
    """The special tokens of a model's own, such as ``image_token``; ``add_bos_token`` is none."""
    rule = TOKENIZER["bos_token"]
    return {
        key: rule for key, value in content.items() if key.endswith("_token") and key not in TOKENIZER and _token(value)
    }
