"""Tokenizers of the three published shapes, in miniature: 256 bytes, a merge or two, and their special tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_folders import HEADERS, byte_tokenizer, dream_tokenizer, llada_tokenizer, sdar_tokenizer, write_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models

from dllm.parts import Tokenizer, UserError

MESSAGES = [{"role": "user", "content": " What is 2 + 2?\n"}]
TEXT = "Hé, the 12 cats didn't\n\n sit  ∑"


@pytest.fixture
def llada(tmp_path: Path) -> Tokenizer:
    llada_tokenizer(tmp_path / "llada")
    return Tokenizer.from_folder(tmp_path / "llada")


@pytest.fixture
def sdar(tmp_path: Path) -> Tokenizer:
    sdar_tokenizer(tmp_path / "sdar")
    return Tokenizer.from_folder(tmp_path / "sdar")


@pytest.fixture
def dream(tmp_path: Path) -> Tokenizer:
    dream_tokenizer(tmp_path / "dream")
    return Tokenizer.from_folder(tmp_path / "dream")


@pytest.mark.parametrize("name", ["llada", "sdar", "dream"])
def test_text_comes_back_as_it_went_in(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert not set(ids) & tokenizer.special_ids


def test_ids_are_found_by_their_published_strings(llada: Tokenizer, sdar: Tokenizer, dream: Tokenizer) -> None:
    assert (llada.mask_id, llada.eos_id, llada.stop_ids) == (258, 257, (257, 261))
    assert [len(tokenizer) for tokenizer in (llada, dream)] == [262, 264]
    assert (dream.mask_id, dream.eos_id, dream.stop_ids) == (263, 258, (258, 260))


def test_generation_config_adds_stops_and_mask_may_be_unmarked(sdar: Tokenizer) -> None:
    assert (sdar.mask_id, sdar.eos_id, len(sdar)) == (260, 256, 261)
    assert sdar.stop_ids == (256, 258)


def test_decoding_drops_mask_and_special_ids_but_no_plain_added_token(sdar: Tokenizer) -> None:
    text = sdar.encode("<think>ab")
    ids = [*text[:2], 260, text[2], *sdar.encode("<|im_end|><|endoftext|>", special=True)]
    assert sdar.mask_id == 260 and len(ids) == 6
    assert sdar.decode(ids) == "<think>ab"
    assert sdar.decode(ids, skip_special=False) == "<think>a<|MASK|>b<|im_end|><|endoftext|>"


def test_ids_beyond_the_vocabulary_decode_to_nothing(llada: Tokenizer) -> None:
    assert llada.decode([*llada.encode("ab"), len(llada) + 5]) == "ab"
    assert llada.token(len(llada)) is None
    assert llada.token(-1) is None


def test_llada_conversation_opens_one_assistant_turn(llada: Tokenizer) -> None:
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    expected = "<|startoftext|>" + header.format("user") + "What is 2 + 2?<|eot_id|>" + header.format("assistant")
    assert llada.render(MESSAGES) == expected
    ids = llada.encode_chat(MESSAGES)
    assert ids == llada.encode(expected, special=True)
    assert ids.count(256) == 1  # the template brings the bos; none is added
    assert llada.decode(ids, skip_special=False) == expected


def test_chat_template_is_read_from_either_file(sdar: Tokenizer, dream: Tokenizer) -> None:
    expected = "<|im_start|>user\n What is 2 + 2?\n<|im_end|>\n<|im_start|>assistant\n"
    assert sdar.render(MESSAGES) == dream.render(MESSAGES) == expected
    assert sdar.has_chat_template


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": HEADERS}]
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=named, bos_token="<s>")
    assert Tokenizer.from_folder(tmp_path).render(MESSAGES).startswith("<s><|start_header_id|>user")


def test_chat_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    llada_tokenizer(tmp_path, chat=False)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert not tokenizer.has_chat_template
    with pytest.raises(UserError, match="no chat template .* Pass the prompt as plain text"):
        tokenizer.render(MESSAGES)


def test_messages_the_template_refuses_or_that_lack_a_field_are_named(tmp_path: Path) -> None:
    template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=template)
    tokenizer = Tokenizer.from_folder(tmp_path)
    with pytest.raises(UserError, match="user first"):
        tokenizer.render([{"role": "system", "content": "x"}])
    with pytest.raises(UserError, match=r"messages\[0\]"):
        tokenizer.render([{"role": "user"}])


def test_dream_loads_without_its_remote_code_and_splits_like_qwen2(dream: Tokenizer, tmp_path: Path) -> None:
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    vocabulary = json.loads((tmp_path / "dream" / "vocab.json").read_text())
    native = Qwen2Tokenizer(vocab=vocabulary, merges=[("h", "e"), ("Ġ", "t")])
    for text in (TEXT, "he the\u0301 there's  12345\r\n\t x", " "):
        assert dream.encode(text) == native(text, add_special_tokens=False)["input_ids"]


def test_published_limits_of_length_do_not_cut_text(tmp_path: Path) -> None:
    backend = byte_tokenizer({})
    backend.enable_truncation(5)
    backend.enable_padding(length=50)
    write_tokenizer(tmp_path, backend)
    assert len(Tokenizer.from_folder(tmp_path).encode("a" * 20)) == 20


def test_tokens_that_only_the_settings_know_are_registered(tmp_path: Path) -> None:
    write_tokenizer(
        tmp_path,
        byte_tokenizer({"<|mdm_mask|>": True}),
        added_tokens_decoder={"257": {"content": "<|eot_id|>", "special": True}},
    )
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a<|eot_id|>", special=True)[-1] == 257
    assert tokenizer.stop_ids == (257,)


def test_contradicting_ids_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({}), added_tokens_decoder={"300": {"content": "<|eot_id|>"}})
    with pytest.raises(UserError, match=r"'<\|eot_id\|>' should have id 300 but gets 256"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_files_are_refused(name: str, tmp_path: Path) -> None:
    llada_tokenizer(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(UserError, match="Copy the checkpoint again"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_without_merges_is_refused(tmp_path: Path) -> None:
    dream_tokenizer(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"merges\.txt"):
        Tokenizer.from_folder(tmp_path)


def test_a_template_that_fails_while_it_renders_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template="{{ messages + 1 }}")
    with pytest.raises(UserError, match="the chat template refuses these messages"):
        Tokenizer.from_folder(tmp_path).render(MESSAGES)


def test_loop_controls_and_generation_blocks_are_no_broken_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% break %}{% endfor %}"
    write_tokenizer(tmp_path, byte_tokenizer({}), chat_template=template)
    assert Tokenizer.from_folder(tmp_path).render(MESSAGES) == MESSAGES[0]["content"]


def test_named_special_tokens_of_transformers_5_are_special(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_tokenizer({"<img>": False}), extra_special_tokens={"image_token": "<img>"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a<img>b", special=True)) == "ab"


def test_a_vocabulary_that_cannot_encode_is_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    write_tokenizer(tmp_path, backend)
    with pytest.raises(UserError, match="the tokenizer cannot encode"):
        Tokenizer.from_folder(tmp_path)
