"""What tokens write: joined, the text, in whatever way a tokenizer puts texts together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from dllm.models.pieces import BYTE_OF, pieces_of
from dllm.models.tokenizer import Tokenizer

MINI = Path(__file__).parents[2] / "dllm" / "models" / "checkpoints" / "mini-llada"
SIGNS = "ab é€😀日\N{REPLACEMENT CHARACTER}\n"
WORDS = ("▁the", "▁", "a", "é", "日本", "n", "'", "t", "##ing", ",", "x</w>")


def byte_level() -> Backend:
    """All bytes, some that are merged, and added tokens."""
    of_byte = {byte: sign for sign, byte in BYTE_OF.items()}
    texts = (b" \xf0\x9f", b"\x98\x80", "日本".encode(), b"\xac ")
    merged = ["".join(of_byte[byte] for byte in text) for text in texts]
    backend = Backend(models.BPE({sign: at for at, sign in enumerate([*BYTE_OF, *merged])}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("two words"), AddedToken("é")])
    backend.add_special_tokens(["<|end|>"])
    return backend


def sentence_piece() -> Backend:
    """Bytes as SentencePiece falls back on them, and words with its blank; Llama's decoder."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    backend = Backend(models.BPE({name: at for at, name in enumerate(names)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])  # fmt: skip
    return backend


def words(decoder: object) -> Backend:
    backend = Backend(models.WordLevel({name: at for at, name in enumerate(WORDS)}, "a"))
    if decoder is not None:
        backend.decoder = decoder  # type: ignore[assignment]
    return backend


BACKENDS = {
    "byte-level": byte_level(), "SentencePiece": sentence_piece(), "Metaspace": words(decoders.Metaspace()),
    "WordPiece": words(decoders.WordPiece()), "suffixes": words(decoders.BPEDecoder()), "no decoder": words(None),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKENDS)
def test_joined_they_are_the_text_of_any_ids(name: str) -> None:
    backend, dice = BACKENDS[name], random.Random(5)
    for _ in range(300):
        ids = dice.choices(range(backend.get_vocab_size()), k=dice.randrange(14))
        pieces = pieces_of(backend, ids)
        assert len(pieces) == len(ids)
        assert b"".join(pieces) == str(backend.decode(ids, skip_special_tokens=False)).encode(), ids


@pytest.mark.parametrize("name", ["byte-level", "SentencePiece"])
def test_a_byte_of_a_whole_character_is_that_byte(name: str) -> None:
    first = {"byte-level": BYTE_OF, "SentencePiece": {f"<0x{byte:02X}>": byte for byte in range(256)}}[name]
    backend, dice = BACKENDS[name], random.Random(6)
    of_byte: dict[int, int] = {byte: backend.token_to_id(sign) for sign, byte in first.items()}
    for _ in range(100):
        data = ("x" + "".join(dice.choices(SIGNS, k=dice.randrange(9)))).encode()
        assert pieces_of(backend, [of_byte[byte] for byte in data]) == [bytes([byte]) for byte in data]


def spelt(backend: Backend, *names: str) -> Sequence[bytes]:
    return pieces_of(backend, [backend.token_to_id(name) for name in names])


def test_what_a_token_writes_may_depend_on_its_place() -> None:
    spm, wordpiece = BACKENDS["SentencePiece"], BACKENDS["WordPiece"]
    assert spelt(spm, "▁the", "▁the", "<0xE2>", "<0x82>", "<0xAC>", "a") == [
        b"the", b" the", b"\xe2", b"\x82", b"\xac", b"a"]  # fmt: skip
    assert spelt(wordpiece, "a", "##ing", ",", "a") == [b"a", b"ing", b",", b" a"]


def test_bytes_that_are_no_character_write_what_the_text_has_for_them() -> None:
    backend, lost = BACKENDS["byte-level"], "\N{REPLACEMENT CHARACTER}".encode()
    signs = {byte: sign for sign, byte in BYTE_OF.items()}
    names = [signs[byte] for byte in b"a\xe2\x82b\xff\xf0\x9f\x98"]
    assert spelt(backend, *names) == [b"a", lost, b"", b"b", lost, lost, b"", b""]


def test_special_ids_write_nothing() -> None:
    tokenizer = Tokenizer.from_folder(MINI)
    ids = tokenizer.encode("Größe 日本 🎉")
    assert tokenizer.eos_id is not None
    mixed = [tokenizer.eos_id, *ids[:3], tokenizer.eos_id, *ids[3:]]
    pieces = tokenizer.pieces(mixed)
    assert b"".join(pieces).decode() == "Größe 日本 🎉" == tokenizer.decode(mixed)
    assert [at for at, piece in enumerate(pieces) if not piece] == [0, 4]
