"""What each token id writes: the bytes behind the ids of a byte-level tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from dllm.common.digest import digest
from dllm.constraints.trie import Trie
from dllm.errors import UserError
from dllm.models.pieces import written
from dllm.models.tokenizer import Tokenizer

CHECKED, LINE = 2000, 50  # ids decoded at the start, and how many of them in one text


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes that each id writes. None: it writes nothing, and no text has it: a special id, the mask, padding, a
    hole in the range of ids."""

    texts: tuple[bytes | None, ...]  # [V] the bytes of each id; None: it writes nothing

    @staticmethod
    def of(tokenizer: Tokenizer, size: int = 0, ends: Iterable[int] = ()) -> Vocabulary:
        """The table of a tokenizer. size: as many ids as the model has logits; 0: as many as the tokenizer has.

        ends: ids that end an answer, which write nothing, whatever the tokenizer says. Raises UserError for a
        tokenizer that is not byte-level, and where decoding ids does not give their bytes.
        """
        _check_kind(tokenizer.backend)
        texts: list[bytes | None] = [None] * (size or len(tokenizer))
        silent = {*tokenizer.special_ids, *ends}
        for spelling, number in tokenizer.backend.get_vocab().items():
            if number not in silent and number < len(texts):
                texts[number] = written(spelling)
        _check_decoding(tokenizer.backend, texts)
        return Vocabulary(tuple(texts))

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the whole table: what is compiled for one vocabulary serves all equal ones."""
        return digest(b"".join(
            b"-" if text is None else len(text).to_bytes(4, "little") + text for text in self.texts
        ))  # fmt: skip

    @cached_property
    def trie(self) -> Trie:
        """All texts by their beginnings."""
        return Trie.of(self.texts)


def _check_kind(backend: Backend) -> None:
    model, decoder = type(backend.model).__name__, type(backend.decoder).__name__
    if isinstance(backend.model, models.BPE) and isinstance(backend.decoder, decoders.ByteLevel):
        return
    kind = model if model in ("WordPiece", "WordLevel") else f"SentencePiece's or another {model}"
    raise UserError(
        f"a constraint needs a byte-level BPE tokenizer, and this one is {kind} with the decoder {decoder}, whose "
        "tokens have no bytes of their own. Use a checkpoint with a byte-level tokenizer, or drop the constraint."
    )


def _check_decoding(backend: Backend, texts: list[bytes | None]) -> None:
    """Decode random ids and compare with their bytes, damaged characters included."""
    known = [number for number, text in enumerate(texts) if text is not None]
    draw = random.Random(0)
    for _ in range(CHECKED // LINE if known else 0):
        ids = draw.choices(known, k=LINE)
        if backend.decode(ids, skip_special_tokens=False) != decoded(texts[number] or b"" for number in ids):
            raise UserError(
                f"the tokenizer does not decode the ids {ids[:5]}... to the bytes of its vocabulary, so a constraint "
                "cannot know what they write. Use a checkpoint with a byte-level tokenizer, or drop the constraint."
            )


def decoded(pieces: Iterable[bytes]) -> str:
    """The text of some bytes as a tokenizer writes it: U+FFFD for what is no character."""
    return b"".join(pieces).decode(errors="replace")
