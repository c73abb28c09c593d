"""What each token id writes: the bytes after the ids of a tokenizer whose tokens have bytes of their own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from dllm.common.digest import digest
from dllm.common.errors import Refusal
from dllm.constraints.languages.trees import IntArray
from dllm.models.text.pieces import HEX_BYTE, REPLACEMENT, SPACE, spelling_bytes
from dllm.models.text.tokenizer import Tokenizer

# Gemma's decoder, which writes every token as it does anywhere: others strip the first blank.
IN_PLACE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
CHECKED, LINE = 2000, 50  # ids decoded at the start, and how many of them in one text


def written_in_place(spelling: str) -> bytes:
    """The bytes of an entry of SentencePiece's vocabulary, which may stand for a single byte."""
    byte = HEX_BYTE.fullmatch(spelling)
    return spelling.replace(SPACE, " ").encode() if byte is None else bytes.fromhex(byte[1])


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes that each id writes: none of a special id, the mask, padding, or a hole in the range of ids."""

    texts: tuple[bytes | None, ...]  # [V] the bytes of each id; None: it writes nothing

    @staticmethod
    def of(tokenizer: Tokenizer, size: int = 0, ends: Iterable[int] = ()) -> Vocabulary:
        """The table of a tokenizer. size: as many ids as the model has logits; 0: as the tokenizer has. ends: further
        ids that write nothing. Raises UserError where tokens have no bytes of their own, or decoding gives others."""
        spelt = _spelling(tokenizer.backend)
        texts: list[bytes | None] = [None] * (size or len(tokenizer))
        silent = {*tokenizer.special_ids, *ends}
        for spelling, number in tokenizer.backend.get_vocab().items():
            if number not in silent and number < len(texts):
                texts[number] = spelt(spelling)
        _check_decoding(tokenizer.backend, texts)
        return Vocabulary(tuple(texts))

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the whole table: what is compiled for one vocabulary serves all equal ones."""
        return digest(b"".join(b"-" if text is None else len(text).to_bytes(4, "little") + text for text in self.texts))

    @cached_property
    def trie(self) -> Trie:
        """All texts by their beginnings."""
        return Trie.of(self.texts)


def _spelling(backend: Backend) -> Callable[[str], bytes]:
    """What makes bytes of an entry of the vocabulary."""
    model, decoder = type(backend.model).__name__, type(backend.decoder).__name__
    if isinstance(backend.model, models.BPE) and isinstance(backend.decoder, decoders.ByteLevel):
        return spelling_bytes
    if isinstance(backend.model, models.BPE) and json.loads(backend.decoder.__getstate__()) == IN_PLACE:
        return written_in_place
    kind = model if model in ("WordPiece", "WordLevel") else f"SentencePiece's or another {model}"
    raise Refusal(
        f"a {{constraint:name}} needs a byte-level BPE tokenizer, and this one is {kind} with the decoder {decoder}, "
        "whose tokens have no bytes of their own. Use a checkpoint with a byte-level tokenizer, or drop it."
    )


def _check_decoding(backend: Backend, texts: list[bytes | None]) -> None:
    """Decode random ids and compare with their bytes, damaged characters of byte-level tokenizers included. Others
    write as many U+FFFD as there are bytes in a row."""
    damage = isinstance(backend.decoder, decoders.ByteLevel)
    numbers = [
        number
        for number, text in enumerate(texts)
        if text is not None and (damage or REPLACEMENT not in decoded([text]))
    ]
    draw = random.Random(0)
    for _ in range(CHECKED // LINE if numbers else 0):
        ids = draw.choices(numbers, k=LINE)
        if backend.decode(ids, skip_special_tokens=False) != decoded(texts[number] or b"" for number in ids):
            raise Refusal(
                f"the tokenizer does not decode the ids {ids[:5]}... to the bytes of its vocabulary, so a constraint "
                "cannot know what they write. Use a checkpoint with a byte-level tokenizer, or drop it."
            )


def decoded(pieces: Iterable[bytes]) -> str:
    """The text of some bytes as a tokenizer writes it: U+FFFD for what is not a character."""
    return b"".join(pieces).decode(errors="replace")


@dataclass(frozen=True, eq=False)
class Trie:
    """The beginnings of all texts: N nodes; node 0 is the empty text."""

    # where each level begins, and the end: beginnings of d bytes are bounds[d] to bounds[d + 1]
    bounds: tuple[int, ...]
    parent: IntArray  # [N] the node without the last byte
    byte: NDArray[np.uint8]  # [N] the last byte
    node: IntArray  # [V] the node of each id's text (-1: it has none)

    @staticmethod
    def of(texts: Sequence[bytes | None]) -> Trie:
        """The trie of ``texts`` by id; equal texts share a node."""
        by_number = {number: text for number, text in enumerate(texts) if text is not None}
        order = sorted(by_number, key=by_number.__getitem__)
        lengths = np.array([len(by_number[number]) for number in order], np.int64)
        data, begin = (
            np.frombuffer(b"".join(by_number[number] for number in order), np.uint8),
            np.cumsum(lengths) - lengths,
        )
        bounds, parents, last = [0, 1], [np.zeros(1, np.int32)], [np.zeros(1, np.uint8)]
        node, alive = np.zeros(len(order), np.int32), np.flatnonzero(lengths)
        while len(alive):
            parent, byte = node[alive], data[begin[alive] + len(bounds) - 2]
            new = np.ones(len(alive), bool)  # sorted texts with the same beginning are side by side
            new[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
            node[alive] = bounds[-1] - 1 + np.cumsum(new)
            parents, last = [*parents, parent[new]], [*last, byte[new]]
            bounds.append(bounds[-1] + int(new.sum()))
            alive = alive[lengths[alive] > len(bounds) - 2]
        by_id = np.full(len(texts), -1, np.int32)
        by_id[order] = node
        return Trie(tuple(bounds), np.concatenate(parents), np.concatenate(last), by_id)
