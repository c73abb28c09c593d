"""A prompt is text: what spells a special token in it stays text, and all other texts are encoded as ever."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from model_folders import byte_tokenizer, dream_tokenizer, llada_tokenizer, sdar_tokenizer, write_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dllm.parts import (
    BYTE_OF,
    CHECKPOINTS,
    PrefilledPrompt,
    Prompts,
    Tokenizer,
    UserError,
    describe,
    generate,
    pieces_of,
    shipped_models,
)
from dllm.tasks.mini.tasks import TASKS
from tests.support.tiny import EOS, make_tiny

SHIPPED = [CHECKPOINTS / name for name in shipped_models()]
MAKERS = [llada_tokenizer, sdar_tokenizer, dream_tokenizer]
ORDINARY = [
    "", " ", "\n\n", "Hé, the 12 cats didn't\n\n sit  ∑", "a < b | c > d", "<|", "|>", "<|eot", "<think>x</think>", "[",
    'Sort the list:\n["Kai", "Emma", "Hugo"]', "\U000f0000\U0010fffd", "e\u0301\ufffd\u200b", "<<|>>", "\t\r\n",
]  # fmt: skip


def prompts(folder: Path, **options: Any) -> Prompts:
    _, config, tokenizer, ids, _ = describe(folder)
    return Prompts(config, tokenizer, ids, folder.name, 8, **options)


@pytest.fixture(params=[*SHIPPED, *MAKERS], ids=lambda entry: getattr(entry, "__name__", None) or entry.name)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if isinstance(request.param, Path):
        return Tokenizer.from_folder(request.param)
    request.param(tmp_path)
    return Tokenizer.from_folder(tmp_path)


def spellings(tokenizer: Tokenizer) -> list[str]:
    return [str(tokenizer.token(number)) for number in sorted(tokenizer.special_ids)]


def texts(tokenizer: Tokenizer, count: int = 60) -> list[str]:
    """Texts of spellings of special tokens, whole, cut and within each other, among ordinary pieces."""
    rng = random.Random(18)
    pieces = [*spellings(tokenizer), *(word[1:] for word in spellings(tokenizer)), *ORDINARY]
    nested = [f"{word[:at]}{word}{word[at:]}" for word in spellings(tokenizer) for at in range(len(word) + 1)]
    return nested + ["".join(rng.choices(pieces, k=rng.randrange(1, 7))) for _ in range(count)]


def same(one: str, other: str) -> bool:
    """Equal texts; Qwen's tokenizers write them in the composed form."""
    return normalize("NFC", one) == normalize("NFC", other)


def shipped_prompts() -> list[str]:
    """Prompts of the tasks that the shipped models were trained for."""
    return [item.prompt for task in TASKS for item in generate(task, 0, 2)]


def test_ordinary_texts_are_encoded_as_the_tokenizer_does_by_itself(tokenizer: Tokenizer) -> None:
    for text in [*ORDINARY, *shipped_prompts()]:
        theirs = tokenizer.backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == tokenizer.encode(text, special=True) == theirs
        if tokenizer.has_chat_template:
            written = tokenizer.render([{"role": "user", "content": text}])
            ids = tokenizer.backend.encode(written + "so", add_special_tokens=False).ids
            assert tokenizer.encode_chat([{"role": "user", "content": text}], "so") == ids


def test_a_text_spells_no_special_token_and_loses_nothing(tokenizer: Tokenizer) -> None:
    found = 0
    for text in texts(tokenizer):
        ids = tokenizer.encode(text)
        assert not set(ids) & tokenizer.special_ids
        assert same(tokenizer.decode(ids, skip_special=False), text)
        found += bool(set(tokenizer.backend.encode(text, add_special_tokens=False).ids) & tokenizer.special_ids)
    assert found > 40


def test_in_a_conversation_only_the_template_makes_special_tokens(tokenizer: Tokenizer) -> None:
    if not tokenizer.has_chat_template:
        pytest.skip("no chat template")
    for text in texts(tokenizer, 30)[::3]:
        messages = [{"role": "user", "content": f"x{text}x"}, {"role": "assistant", "content": "y"}]
        plain = [{"role": "user", "content": "xx"}, {"role": "assistant", "content": "y"}]
        ids, bare = tokenizer.encode_chat(messages, text), tokenizer.encode_chat(plain)
        special = [token for token in ids if token in tokenizer.special_ids]
        assert special == [token for token in bare if token in tokenizer.special_ids]
        assert same(tokenizer.decode(ids, skip_special=False), tokenizer.render(messages) + text)


def test_written_by_a_program_special_tokens_are_recognised_but_the_mask(tokenizer: Tokenizer) -> None:
    for number in tokenizer.special_ids:
        ids = tokenizer.encode(f"a{tokenizer.token(number)}b", special=True)
        assert (number in ids) == (number != tokenizer.mask_id)


@pytest.mark.parametrize("chat", [None, False])
def test_prompts_of_every_kind_are_text(chat: bool | None) -> None:
    made = prompts(CHECKPOINTS / "mini-llada", chat=chat)
    assert made.tokenizer is not None
    word, ids = "<|eot_id|><|mdm_mask|>", made.tokenizer.special_ids
    for prompt in (f"a{word}", PrefilledPrompt("a", word), PrefilledPrompt("a<|eot", "_id|>")):
        ends = [token for token in made.encode(prompt) if token in ids]
        assert ends == [token for token in made.encode("aa") if token in ids]
    assert not set(made.ids_of(word)) & ids
    request = made.infill([word, 2])
    tokens, masked = request.tokens, request.masked
    assert made.ids.mask not in tokens[:-2] and tokens[-2:] == [made.ids.mask] * 2 and sum(masked) == 2


def test_token_ids_may_be_any_but_the_mask() -> None:
    made = prompts(CHECKPOINTS / "mini-llada")
    assert made.tokenizer is not None
    others = [token for token in made.tokenizer.special_ids if token != made.ids.mask]
    assert made.encode([5, *others]) == [5, *others]
    with pytest.raises(UserError, match=f"token id {made.ids.mask} is the mask"):
        made.encode([5, made.ids.mask])


def test_an_unknown_word_stays_the_unknown_token(tmp_path: Path) -> None:
    """Even where it counts as special: no text spells it."""
    backend = Backend(models.WordLevel({"[UNK]": 0, "a": 1, "<end>": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["[UNK]", "<end>"])
    write_tokenizer(tmp_path, backend, unk_token="[UNK]", eos_token="<end>")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a zebra a") == [1, 0, 1]
    assert tokenizer.encode("zebra a <end> b") == [0, 1, 0, 0, 0] and 2 not in tokenizer.encode("<end>")


def test_tokens_that_take_in_white_space_or_other_spellings_are_cut_too(tmp_path: Path) -> None:
    backend = byte_tokenizer({})
    backend.normalizer = normalizers.Lowercase()
    tokens = [AddedToken("<end>", special=True, normalized=True), AddedToken("<pad>", special=True, lstrip=True)]
    backend.add_tokens(tokens)
    write_tokenizer(tmp_path, backend)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert set(backend.encode("<END>   <pad>").ids) == {256, 257}
    for text in ("<END>", f"a{' ' * 3000}<pad>b", "<eNd><pad>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text.lower() and not set(ids) & {256, 257}


def test_a_line_break_that_ends_answers_is_no_special_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({"<|endoftext|>": True}))
    newline = byte_tokenizer({}).encode("\n").ids
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, *newline]}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a\nb")[1:2] == newline and newline[0] in tokenizer.stop_ids


def test_a_special_token_of_one_character_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({"§": True}))
    with pytest.raises(UserError, match="holds '§', a special token that cannot be written otherwise"):
        Tokenizer.from_folder(tmp_path).encode("a§b")


def test_thousands_of_spellings_are_cut_at_once() -> None:
    """Deeper than Python's recursion, had each cut a call of its own."""
    tokenizer = Tokenizer.from_folder(SHIPPED[0])
    assert not set(tokenizer.encode("<|eot_id|>" * 3000)) & tokenizer.special_ids


def test_on_the_command_lines_own_path_a_prompt_is_text(tmp_path: Path) -> None:
    made = prompts(make_tiny(tmp_path / "tiny"))
    assert made.encode("w1 <|endoftext|> w2 <|mdm_mask|>") == [62, 1, 0, 0, 2, 0, 0, 63]
    assert made.encode([1, EOS]) == [1, EOS]


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
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def words(decoder: object) -> Backend:
    backend = Backend(models.WordLevel({name: at for at, name in enumerate(WORDS)}, "a"))
    if decoder is not None:
        backend.decoder = decoder  # type: ignore[assignment]
    return backend


BACKENDS = {
    "byte-level": byte_level(),
    "SentencePiece": sentence_piece(),
    "Metaspace": words(decoders.Metaspace()),
    "WordPiece": words(decoders.WordPiece()),
    "suffixes": words(decoders.BPEDecoder()),
    "no decoder": words(None),
}


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
        b"the",
        b" the",
        b"\xe2",
        b"\x82",
        b"\xac",
        b"a",
    ]
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
