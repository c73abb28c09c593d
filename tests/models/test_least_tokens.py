"""The least number of tokens by bytes never exceeds what a tokenizer makes of a text."""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from dllm import load
from dllm.parts import BYTE_OF, LeastTokens

PIECES = ["a", " ", "the ", "1234567890", "e\u0301", "\u1fbe\u0308\u0301", "\u1112\u1161\u11ab", "日本", "<|eot_id|>",
          "====", "\n\n", "▁", "internationally ", "\x00", "\U0001f600", "Wilhelmina"]  # fmt: skip


def byte_level(normalizer: str, *more: str) -> Tokenizer:
    """Bytes, and some longer tokens."""
    spelt = {sign: number for number, sign in enumerate(BYTE_OF)}
    merges = []
    for text in more:
        for end in range(2, len(text) + 1):
            if text[:end] not in spelt:
                merges.append((text[: end - 1], text[end - 1]))
                spelt[text[:end]] = len(spelt)
    made = Tokenizer(models.BPE(spelt, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if normalizer:
        made.normalizer = getattr(normalizers, normalizer)()
    return made


KEEP = {
    "mini": lambda: load("mini-llada").tokenizer.backend,  # type: ignore[union-attr]
    "nfc": lambda: byte_level("NFC", "aaaa", "the"),
    "plain": lambda: byte_level("", "====", "ÅĽ"),
}


@pytest.mark.parametrize("name", KEEP)
def test_no_text_has_fewer_tokens(name: str) -> None:
    backend, dice = KEEP[name](), Random(7)
    least = LeastTokens.of(backend)
    assert least.most is not None
    for _ in range(300):
        few = dice.sample(PIECES, dice.randint(1, 3))
        text = "".join(dice.choices(few, k=dice.randint(1, 60)))
        assert 0 < least(text) <= len(backend.encode(text, add_special_tokens=False).ids)
    assert least("a" * 1000) >= 1000 // 19


@pytest.mark.parametrize("normalizer", ["NFKC", "Lowercase", "StripAccents"])
def test_nothing_is_told_of_what_may_drop_bytes(normalizer: str) -> None:
    assert LeastTokens.of(byte_level(normalizer))("a" * 1000) == 0


def test_nothing_is_told_where_white_space_is_dropped() -> None:
    made = byte_level("")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])
    assert LeastTokens.of(made)("a " * 1000) == 0
    assert LeastTokens.of(Tokenizer(models.WordLevel({"a": 0, "?": 1}, "?")))("a" * 1000) == 0
