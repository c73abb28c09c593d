"""The bytes that ids write, against what the tokenizer decodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dllm.parts import BYTE_OF, Choice, Constraints, Ids, Tokenizer, UserError, Vocabulary

MINI = Path(__file__).parents[2] / "dllm" / "models" / "checkpoints" / "mini-llada"


IN_PLACE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def around(backend: Backend, special_ids: frozenset[int] = frozenset()) -> Tokenizer:
    size = max(backend.get_vocab().values()) + 1
    return Tokenizer(backend, {}, None, None, None, (), special_ids, size)


def byte_level(*merged: str) -> Backend:
    """All bytes, then ``merged`` tokens."""
    vocabulary = dict(BYTE_OF)
    for text in merged:
        vocabulary[text] = len(vocabulary)
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return backend


def test_a_demo_model_writes_the_bytes_of_its_texts() -> None:
    tokenizer = Tokenizer.from_folder(MINI)
    table = Vocabulary.of(tokenizer, len(tokenizer) + 45)
    assert len(table) == len(tokenizer) + 45 and table.texts[len(tokenizer) :] == (None,) * 45
    assert all(table.texts[number] is None for number in tokenizer.special_ids)
    text = "Größe: 3 €,\tnaïve – 日本 🎉\n"
    assert b"".join(table.texts[number] or b"?" for number in tokenizer.encode(text)).decode() == text


def test_every_byte_has_its_id_and_added_tokens_are_their_text() -> None:
    backend = byte_level("Ġthe", "Ã©")
    backend.add_tokens([AddedToken("two words"), AddedToken("日本")])
    backend.add_special_tokens(["<|end|>"])
    texts = Vocabulary.of(around(backend, frozenset([backend.token_to_id("<|end|>")]))).texts
    assert list(texts[:256]) == [bytes([byte]) for byte in range(256)]
    assert texts[256:] == (b" the", "é".encode(), b"two words", "日本".encode(), None)


def test_a_tokenizer_that_writes_blanks_in_place_has_bytes_too() -> None:
    """Gemma's: SentencePiece's spelling, bytes by themselves, and no blank that goes at the front."""
    known = ["<unk>", "\u2581", "\u2581\u2581", "\u2581the", "日本", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Backend(models.BPE({text: number for number, text in enumerate(known)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(IN_PLACE)
    texts = Vocabulary.of(around(backend, frozenset([0]))).texts
    assert texts[:5] == (None, b" ", b"  ", b" the", "日本".encode())
    assert list(texts[5:]) == [bytes([byte]) for byte in range(256)]
    ids = [1, 3, 4, *(5 + byte for byte in "é 🎉".encode()), 2]
    assert b"".join(texts[number] or b"?" for number in ids).decode() == backend.decode(ids) == "  the日本é 🎉  "


def test_ends_and_ids_beyond_the_logits_write_nothing() -> None:
    table = Vocabulary.of(around(byte_level("ab", "cd")), size=257, ends=[10])
    assert len(table) == 257 and table.texts[10] is None and table.texts[256] == b"ab"


def test_equal_tables_have_one_fingerprint() -> None:
    tables: list[tuple[bytes | None, ...]] = [
        (b"a", b"b"),
        (b"ab", b""),
        (b"a", None),
        (None, b"a"),
        (b"a", b"b", None),
    ]
    prints = [Vocabulary(texts).fingerprint for texts in tables]
    assert len(set(prints)) == len(tables) and Vocabulary((b"a", b"b")).fingerprint == prints[0]


def word_piece() -> Backend:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return backend


def sentence_piece() -> Backend:
    """Llama's, which drops the blank in front of a text."""
    backend = Backend(models.BPE({"▁a": 0, "<0x0A>": 1}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([*IN_PLACE, decoders.Strip(" ", 1, 0)])
    return backend


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (word_piece(), "this one is WordPiece with the decoder WordPiece"),
        (sentence_piece(), "SentencePiece's or another BPE with the decoder Sequence"),
        (Backend(models.Unigram([("a", 0.0)])), "SentencePiece's or another Unigram with the decoder NoneType"),
        (Backend(models.WordLevel({"a": 0}, unk_token="a")), "this one is WordLevel"),
    ],
    ids=["wordpiece", "sentencepiece", "unigram", "wordlevel"],
)
def test_other_tokenizers_are_refused_by_name(backend: Backend, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Vocabulary.of(around(backend))


def test_a_tokenizer_that_decodes_otherwise_is_refused() -> None:
    class Shouting:
        """A byte-level tokenizer whose text is not what its vocabulary says."""

        def __init__(self, backend: Backend) -> None:
            self.backend, self.model, self.decoder = backend, backend.model, backend.decoder

        def __getattr__(self, name: str) -> Any:
            return getattr(self.backend, name)

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return str(self.backend.decode(ids, skip_special_tokens=skip_special_tokens)).upper()

    with pytest.raises(UserError, match="does not decode the ids"):
        Vocabulary.of(replace(around(byte_level()), backend=Shouting(byte_level())))  # type: ignore[arg-type]


def test_models_of_two_sizes_with_one_tokenizer_have_vocabularies_of_their_own() -> None:
    """Equal ones share a vocabulary, even where they end otherwise."""
    tokenizer, ids = Tokenizer.from_folder(MINI), Ids(1, 2, ())
    made = [Constraints(tokenizer, size, ids, forbid) for size, forbid in ((300, False), (400, False), (300, True))]
    small, large, other = (one._shared(Choice(["a"])).vocabulary for one in made)
    assert (len(small), len(large)) == (300, 400) and other is small
    silent = Constraints(tokenizer, 300, Ids(1, 2, (3,)), False)._shared(Choice(["a"])).vocabulary
    assert silent is not small and silent.texts[3] is None
