"""How many tokens a text takes at least, told by its bytes: a prompt that cannot fit is refused before it is tokenized.

A token writes at most as many letters, digits, bytes of other scripts and other signs as the longest of the vocabulary
in each. Told only of tokenizers that keep every byte: byte-level BPE, and BPE that falls back to bytes. Others drop
white space, or write any number of signs as one unknown token, so that their bound is 0.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from dllm.models.text.pieces import BYTE_OF, SPACE, spelling_bytes

LETTERS = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))
_DIGITS = bytes(range(0x30, 0x3A))
_HIGH = bytes(range(0x80, 0x100))
REST = bytes(sorted({*range(0x80)} - {*LETTERS, *_DIGITS}))
BYTE_CLASSES = (LETTERS, _DIGITS, _HIGH, REST)
# Bytes that NFC may make one of, where tokenizers knows later characters than Python: a Hangul syllable of three bytes
# is written in nine, and an iota with two accents in seven instead of two.
COMPOSED = 4
LOSSLESS_SPLITS = ("ByteLevel", "Split", "Digits", "Punctuation", "Metaspace")  # pre-tokenizers that may keep all signs


@dataclass(frozen=True)
class LeastTokens:
    """What a tokenizer allows to be told of a text's length in tokens before it is encoded."""

    most: tuple[int, ...] | None  # bytes of each class that one token writes at most (0: none does); None: not known
    composes: bool = False  # the tokenizer normalises texts by NFC

    @staticmethod
    def of(backend: Backend) -> LeastTokens:
        """What a tokenizer allows to be told."""
        described = json.loads(backend.to_str())
        vocabulary = backend.get_vocab()
        if not _keeps_bytes(described, vocabulary):
            return LeastTokens(None)
        most = [0] * len(BYTE_CLASSES)
        for spelling in vocabulary:
            for counts in (_counts(spelling_bytes(spelling)), _counts(spelling.encode())):
                counts[-1] += spelling.count(SPACE)
                most = [max(pair) for pair in zip(most, counts, strict=True)]
        return LeastTokens(tuple(most), any(part["type"] == "NFC" for part in _parts(described["normalizer"])))

    def __call__(self, text: str) -> int:
        """A number of tokens that no text of these bytes goes below; 0 where nothing is known."""
        if self.most is None:
            return 0
        if self.composes and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        letters, digits, high, rest = _counts(text.encode())
        counts = (letters, digits, high // COMPOSED if self.composes else high, rest)
        return max(-(-count // most) for count, most in zip(counts, self.most, strict=True) if most)


def _counts(data: bytes) -> list[int]:
    """Bytes of each class."""
    return [len(data) - len(data.translate(None, some)) for some in BYTE_CLASSES]


def _parts(described: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer, or those that a sequence holds."""
    if described is None:
        return
    inner = described.get("normalizers", described.get("pretokenizers"))
    for entry in [described] if inner is None else inner:
        yield from [entry] if inner is None else _parts(entry)


def _keeps_bytes(described: Mapping[str, Any], vocabulary: Mapping[str, int]) -> bool:
    """Whether every byte of a text is in one of its tokens."""
    model, splits = described["model"], list(_parts(described["pre_tokenizer"]))
    by_bytes = any(part["type"] == "ByteLevel" for part in splits) and all(sign in vocabulary for sign in BYTE_OF)
    falls_back = model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    sound = (
        model.get("type") == "BPE",
        by_bytes or falls_back,
        all(map(_keeps, _parts(described["normalizer"]))),
        all(part["type"] in LOSSLESS_SPLITS and part.get("behavior") != "Removed" for part in splits),
        not any(token["lstrip"] or token["rstrip"] for token in described["added_tokens"]),
    )
    return all(sound)


def _keeps(normalizer: Mapping[str, Any]) -> bool:
    """Whether a normalizer drops nothing: NFC, and SentencePiece's blanks."""
    blanks = normalizer["type"] == "Replace" and normalizer["pattern"] == {"String": " "}
    return normalizer["type"] in ("NFC", "Prepend") or (blanks and normalizer["content"] == SPACE)
