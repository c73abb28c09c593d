"""GGUF files as llama.cpp's converter writes them: the numbers, the description and the tokenizer of the checkpoint."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from harness import full
from model_folders import DATA, HEADERS, byte_tokenizer, logits, published, random_folder, write_tokenizer
from test_grouped_packing import held_weights

from dllm import Decoder, UserError, load
from dllm.parts import (
    PLAIN_KINDS,
    QWEN2_SPLIT,
    SPLITS,
    Prompts,
    SettingWarning,
    Source,
    TensorReader,
    Tokenizer,
    check_kind,
    contents_of,
    describe,
    fact_rows,
    fingerprint,
    inspect_checkpoint,
    load_model,
    load_narrow,
    locate,
    packs_by_64,
    quantize_folder,
    read_gguf,
    read_model_config,
    tokenizer_at,
    unwatched,
)
from tests.support.gguf_files import Converted, mini_gguf

TOKENS = torch.arange(5, 18)[None]
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llada_mha_untied": {"d_model": 256, "mlp_hidden_size": 256, "n_heads": 4, "n_kv_heads": 4},
    "llada_gqa_tied": {"d_model": 256, "mlp_hidden_size": 256, "n_heads": 4, "n_kv_heads": 2},
    "dream_gqa": WIDE,
    "llada_moe": {
        **WIDE,
        "expert_intermediate_size": 256,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "dense_intermediate_size": 256,
        "moe_layer_freq": [1, 1],
    },
    "rnd1": {**WIDE, "moe_intermediate_size": 256, "head_dim": 64},
}
SMALL = {"num_hidden_layers": 2, "n_layers": 2}


def converted(name: str, where: Path, kind: Kind, **more: Any) -> tuple[Path, Path]:
    """A file of a type, and the plain folder of the same numbers."""
    sizes = {key: value for key, value in SMALL.items() if key in published(name)}
    random_folder(where / "source", published(name, **{**FAMILIES[name], **sizes, "eos_token_id": 61}))
    made = Converted(where / "source", where / "model.gguf", kind, **more)
    return where / "model.gguf", made.save_wide(where / "wide")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("llada_mha_untied", kind) for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")),
        ("llada_gqa_tied", "Q8_0"),
        ("dream_gqa", "Q8_0"),
        ("llada_moe", "Q4_0"),
        ("rnd1", "Q8_0"),
    ],
)
def test_widened_it_computes_what_its_float32_copy_does(name: str, kind: str, tmp_path: Path) -> None:
    """Bit for bit, with q and k of LLaDA in their published order, and experts out of one tensor."""
    file, wide = converted(name, tmp_path, Kind[kind])
    expected, found = load_model(wide), load_model(file)
    assert expected.state_dict().keys() == found.state_dict().keys()
    for key, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[key], tensor), key
    assert torch.equal(logits(found, TOKENS), logits(expected, TOKENS))


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_are_what_their_layout_says(kind: str, tmp_path: Path) -> None:
    """Against numbers that were packed one by one, up to a rounding of float32."""
    file, wide = converted("dream_gqa", tmp_path, Kind[kind])
    expected, found = load_model(wide).state_dict(), load_model(file).state_dict()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=1e-7)


def test_each_type_that_is_read_is_compared_with_ggmls_own_code() -> None:
    """By ``tests/packed.py``: gguf's arithmetic in NumPy, which reads them here, is another program."""

    def reads(kind: str) -> bool:
        try:
            check_kind(kind)
        except UserError:
            return False
        return kind not in PLAIN_KINDS

    cases = json.loads((DATA.parent / "packed" / "ggml.json").read_text())["cases"]
    assert {kind.name for kind in Kind if reads(kind.name)} == cases.keys() and len(cases) == 23


@pytest.mark.parametrize("name", list(FAMILIES))
def test_it_is_described_as_its_config_does(name: str, tmp_path: Path) -> None:
    file, _ = converted(name, tmp_path, Kind.F16)
    assert read_model_config(file) == read_model_config(tmp_path / "source")


def test_any_rows_at_a_time_are_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, wide = converted("llada_gqa_tied", tmp_path, Kind.Q8_0)
    plain = load_model(wide, fuse=False)
    monkeypatch.setattr("dllm.models.weights.tensor_reader.UNPACKED", 1)
    with TensorReader(contents_of(file, read_model_config(file)).tensors) as reader:
        key = "model.transformer.blocks.1.k_proj.weight"
        expected = plain.layers[1].attn.k.weight
        assert torch.equal(reader.read(Source(key), torch.float32), expected)
        assert torch.equal(reader.read(Source(key, (3, 77)), torch.float32), expected[3:77])


@pytest.mark.skipif(not packs_by_64(), reason="this processor's operator has another layout")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_int4_keeps_the_steps_of_the_file(kind: str, tmp_path: Path) -> None:
    file, wide = converted("llada_gqa_tied", tmp_path, Kind[kind])
    with pytest.warns(
        SettingWarning, match=f"15 matrices as {kind}: 14 keep their steps, with .*; the other 1 are wide"
    ):
        model = load_model(file, dtype=torch.bfloat16, quantize="int4")
    plain = load_model(wide, fuse=False)
    for layer, there in zip(model.layers, plain.layers, strict=True):
        expected = torch.cat([there.attn.get_submodule(part).weight for part in "qkv"])
        step = layer.attn.qkv.scale.transpose(0, 1)[..., 0].float().repeat_interleave(32, 1).abs()
        assert ((held_weights(layer.attn.qkv) - expected).abs() <= step / 16 + 1e-6).all()


def test_int4_of_a_file_of_several_types_is_near_its_numbers(tmp_path: Path) -> None:
    """As Q4_K_M has them: values in more bits than the rest of their fused product, which are rounded anew."""
    file, wide = converted("dream_gqa", tmp_path, Kind.Q4_0, kinds={"v_proj": Kind.Q8_0, "lm_head": Kind.Q8_0})
    exact = logits(load_model(wide), TOKENS)
    kept, anew = (
        (logits(load_model(one, dtype=torch.bfloat16, quantize="int4"), TOKENS).float() - exact).norm()
        for one in (file, wide)
    )
    assert kept < anew / 2


@pytest.mark.skipif(not packs_by_64(), reason="this processor's operator has another layout")
def test_experts_keep_their_steps(tmp_path: Path) -> None:
    """Down projections in more bits, as in Q4_K_M, are rounded anew beside them."""
    file, wide = converted("llada_moe", tmp_path, Kind.Q4_0, kinds={"down_proj": Kind.Q8_0})
    model, plain = load_model(file, dtype=torch.bfloat16, quantize="int4"), load_model(wide, fuse=False)
    found, expected = model.layers[1].mlp.experts, plain.layers[1].mlp.experts
    for number, expert in enumerate(expected):
        for name, matrix, far in (
            ("gate_up", torch.cat([expert.gate.weight, expert.up.weight]), 1 / 16),
            ("down", expert.down.weight, 0.6),
        ):
            held = SimpleNamespace(narrow=getattr(found, name)[number], scale=getattr(found, f"{name}_scale")[number])
            step = held.scale.transpose(0, 1)[..., 0].float().repeat_interleave(32, 1).abs()
            assert ((held_weights(held) - matrix).abs() <= far * step + 1e-6).all()


def test_quantised_once_it_is_what_memory_would_hold(tmp_path: Path) -> None:
    """With the tokenizer of the file, from the file alone."""
    file = mini_gguf(tmp_path / "mini.gguf")
    config = read_model_config(file)
    quantize_folder(file, tmp_path / "once", config, "int4", None, unwatched)
    found = load_narrow(tmp_path / "once", read_model_config(tmp_path / "once"), "cpu", False, unwatched).state_dict()
    expected = load_model(file, dtype=torch.bfloat16, quantize="int4").state_dict()
    assert expected.keys() == found.keys() and all(torch.equal(found[key], expected[key]) for key in expected)
    once, own = Tokenizer.from_folder(tmp_path / "once"), tokenizer_at(file)
    assert own is not None and once.backend.to_str() == own.backend.to_str()
    assert (once.stop_ids, once.mask_id, once.eos_id, once.template) == (
        own.stop_ids,
        own.mask_id,
        own.eos_id,
        own.template,
    )


@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_a_file_decodes_as_its_folder(kind: str, tmp_path: Path) -> None:
    mini, file = locate("mini-llada"), mini_gguf(tmp_path / "mini.gguf", Kind[kind])
    models = load(file), load("mini-llada")
    assert models[0].ids == models[1].ids and fingerprint(file) != fingerprint(mini)
    prompts = ["Copy the list:\n[1, 2]", "Reverse the list:\n[3, 4, 5]"]
    answers = [Decoder(model, gen_length=16)(prompts) for model in models]
    assert [one.text for one in answers[0]] == [one.text for one in answers[1]] and answers[0][0].text


@pytest.mark.parametrize("adds", [True, False, None])
def test_a_file_says_whether_plain_texts_begin_with_the_first_token(adds: bool | None, tmp_path: Path) -> None:
    """llama.cpp's ``add_bos_token``; a conversation begins as its chat template says."""
    split_tokenizer(tmp_path / "source", "qwen2")
    config = published(
        "llada_mha_untied",
        vocab_size=280,
        embedding_size=280,
        eos_token_id=261,
        mask_token_id=263,
        bos_token_id=260,
        pad_token_id=None,
    )
    random_folder(tmp_path / "source", config)
    said = {} if adds is None else {"tokenizer__ggml__add_bos_token": adds}
    Converted(tmp_path / "source", tmp_path / "model.gguf", Kind.F16, tokenizer__ggml__pre="qwen2", **said)
    model, told = describe(tmp_path / "model.gguf"), {"role": "user", "content": "the 12"}
    assert model.tokenizer is not None
    first = model.tokenizer.backend.token_to_id("<|startoftext|>")
    plain, chat = (Prompts(model.config, model.tokenizer, model.ids, "model", 8, chat=on) for on in (False, True))
    assert plain.encode("the 12") == [*[first] * bool(adds), *model.tokenizer.encode("the 12")]
    assert chat.encode([told]) == model.tokenizer.encode_chat([told])


def split_tokenizer(folder: Path, cut: str) -> Tokenizer:
    """A published tokenizer in miniature, with the expression of ``cut``."""
    special = {
        "<|startoftext|>": True,
        "<|endoftext|>": True,
        "<|eot_id|>": True,
        "<|mdm_mask|>": True,
        "<tool>": False,
    }
    backend = byte_tokenizer(special, merges=(("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("1", "2")))
    written = json.loads(backend.to_str())
    written["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLITS[cut]}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    if cut == "qwen2":
        written["normalizer"] = {"type": "NFC"}
    write_tokenizer(folder, backend, bos_token="<|startoftext|>", eos_token="<|endoftext|>")
    (folder / "tokenizer.json").write_text(json.dumps(written))
    (folder / "chat_template.jinja").write_text(HEADERS)
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("cut", ["bailingmoe", "qwen2"])
def test_tokens_merges_and_template_make_the_tokenizer(cut: str, tmp_path: Path) -> None:
    expected = split_tokenizer(tmp_path / "source", cut)
    config = published(
        "llada_mha_untied",
        vocab_size=280,
        embedding_size=280,
        eos_token_id=261,
        mask_token_id=263,
        bos_token_id=260,
        pad_token_id=None,
    )
    random_folder(tmp_path / "source", config)
    Converted(tmp_path / "source", tmp_path / "model.gguf", Kind.F16, tokenizer__ggml__pre=cut)
    found = tokenizer_at(tmp_path / "model.gguf")
    assert found is not None
    for field in ("mask_id", "eos_id", "stop_ids", "special_ids", "size", "template"):
        assert getattr(found, field) == getattr(expected, field), field
    for text in ("Hé, the 12 cats didn't\n\n sit  ∑", "e\u0301 the<tool> <|eot_id|>\r\n\n 1234 ... 'LL", " ", ""):
        assert found.encode(text) == expected.encode(text)
        assert found.decode(found.encode(text)) == expected.decode(expected.encode(text))
    messages = [{"role": "user", "content": " What is 2 + 2?\n"}]
    assert found.encode_chat(messages) == expected.encode_chat(messages)
    assert inspect_checkpoint(tmp_path / "model.gguf").usable


def test_expressions_cut_as_the_published_ones(tmp_path: Path) -> None:
    assert SPLITS["qwen2"] == QWEN2_SPLIT
    tokenizer = split_tokenizer(tmp_path, "bailingmoe").backend
    cut = tokenizer.pre_tokenizer.pre_tokenize_str("I'll take 12 of it...\n\n ok")  # type: ignore[union-attr]
    pieces = [text.replace("Ġ", " ").replace("Ċ", "\n") for text, _ in cut]
    assert pieces == ["I", "'ll", " take", " ", "1", "2", " of", " it", "...\n\n", " ok"]


def test_a_vocabulary_that_is_not_there_or_not_read(tmp_path: Path) -> None:
    file, _ = converted("llada_mha_untied", tmp_path, Kind.F16)
    assert tokenizer_at(file) is None and load(file).tokenizer is None
    assert any("No tokenizer files" in note for note in inspect_checkpoint(file).notes)
    split_tokenizer(tmp_path / "source", "qwen2")
    for more, sentence in (
        ({"tokenizer__ggml__pre": "tekken"}, r"pre='tekken', and known ones are bailingmoe.*Put the model's tokenizer"),
        ({"tokenizer__ggml__pre": "qwen2", "tokenizer__huggingface__json": "{"}, "huggingface.json cannot be read"),
    ):
        wide = published("llada_mha_untied", vocab_size=280, embedding_size=280, eos_token_id=261, mask_token_id=263)
        (tmp_path / "alone").mkdir(exist_ok=True)
        random_folder(tmp_path / "source", wide)
        Converted(tmp_path / "source", tmp_path / "alone" / "m.gguf", Kind.F16, **more)
        with pytest.raises(UserError, match=sentence):
            load(tmp_path / "alone" / "m.gguf")
    split_tokenizer(tmp_path / "alone", "qwen2")
    assert load(tmp_path / "alone" / "m.gguf").tokenizer is not None, "the files beside it"


def test_check_tells_the_types_and_the_memory(tmp_path: Path) -> None:
    file, _ = converted("dream_gqa", tmp_path, Kind.Q4_K, kinds={"v_proj": Kind.Q6_K})
    report = inspect_checkpoint(file, mask_id=60)
    rows = dict(fact_rows(report))
    assert report.usable and "14 tensors Q4_K" in rows["stored"] and "2 tensors Q6_K" in rows["stored"]
    assert "1 file, " in rows["stored"] and "memory int4" in rows and report.parameters > 800_000


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    return converted("llada_mha_untied", folder, Kind.Q8_0)[0].read_bytes()


def refused(data: bytes, where: Path) -> str:
    """The sentence for a file, which the check and loading share."""
    where.write_bytes(data)
    with pytest.raises(UserError) as caught:
        load(where)
    assert not inspect_checkpoint(where).usable
    return str(caught.value)


def test_a_file_that_is_cut_off_is_refused_wherever_it_is(sound: bytes, tmp_path: Path) -> None:
    for end in (0, 3, 4, 9, 20, 60, 200, 700, len(sound) // 2, len(sound) - 1):
        said = refused(sound[:end], tmp_path / "cut.gguf")
        assert "Finish the download" in said or "Copy the" in said, (end, said)


def test_any_byte_of_a_header_may_be_wrong(sound: bytes, tmp_path: Path) -> None:
    """It loads, or a sentence says why it does not; nothing else happens, and no time is lost."""
    file, end = tmp_path / "odd.gguf", sound.index(b"blk.1.")
    for at in range(4, end, 1 if full() else end // 50):
        for value in (0, 255, sound[at] ^ 64):
            file.write_bytes(sound[:at] + bytes([value]) + sound[at + 1 :])
            try:
                contents_of(file, read_model_config(file))
            except UserError as error:
                assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b"GGUF", b"GGML", "does not begin as a GGUF file does"),
        (struct.pack("<I", 3), struct.pack(">I", 3), r"bytes in the other order \(big-endian\)\. Take the little"),
        (
            b"\x05\0\0\0\0\0\0\0llada",
            b"\x05\0\0\0\0\0\0\0mamba",
            "architecture='mamba'; models that are read from GGUF are llada, llada-moe, dream",
        ),
        (
            b"blk.1.attn_q.weight",
            b"blk.1.attn_x.weight",
            r"has blk\.1\.attn_x\.weight, which is not part of LLaDAModelLM",
        ),
        (b"blk.1.attn_q.weight", b"blk.0.attn_q.weight", r"blocks\.1\.q_proj\.weight is missing"),
        (b"llada.rope.freq_base", b"llada.rope.freq_bass", r"lacks llada\.rope\.freq_base"),
        (b"token_embd.weight", b"token_embt.weight", r"has no tensor token_embd\.weight"),
    ],
)
def test_another_file_is_refused(old: bytes, new: bytes, sentence: str, sound: bytes, tmp_path: Path) -> None:
    assert re.search(sentence, refused(sound.replace(old, new, 1), tmp_path / "other.gguf"))


def test_an_unknown_type_and_one_that_nobody_widens_are_refused(sound: bytes, tmp_path: Path) -> None:
    at = sound.index(b"blk.1.attn_q.weight") + len("blk.1.attn_q.weight") + 4 + 16
    assert sound[at] == Kind.Q8_0
    for number, sentence in ((99, "has type 99, which gguf does not know"), (Kind.I8, "type I8 is not read")):
        assert sentence in refused(sound[:at] + bytes([number]) + sound[at + 1 :], tmp_path / "type.gguf")


def test_parts_of_a_file_are_read_together_or_named(tmp_path: Path) -> None:
    _, wide = converted("llada_gqa_tied", tmp_path, Kind.Q8_0, split=9)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) == len(read_gguf(parts[0]).files) == 3
    expected, found = load_model(wide).state_dict(), load_model(parts[1]).state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    parts[0].rename(tmp_path / "one.gguf")
    with pytest.raises(UserError, match=r"is one of 3 parts, and model-00001-of-00003\.gguf is missing\. Finish the d"):
        load(parts[2])
    with pytest.raises(UserError, match=r"is one of 3 parts, which are named NAME-00001-of-00003\.gguf\. Give the par"):
        load(tmp_path / "one.gguf")


def test_a_file_on_the_hub_is_downloaded_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns) if revision is None else (f"{name} at {revision}", allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=r"owner/name on the hub has no file none\.gguf"):
        locate("owner/name/none.gguf")
    asked.clear()
    (tmp_path / "sub").mkdir()
    for name in ("model-Q8_0.gguf", "sub/m-00001-of-00003.gguf"):
        (tmp_path / name).touch()
    assert locate("owner/name-GGUF/model-Q8_0.gguf") == tmp_path / "model-Q8_0.gguf"
    assert locate("owner/name/sub/m-00001-of-00003.gguf") == tmp_path / "sub" / "m-00001-of-00003.gguf"
    assert locate("owner/name-GGUF/model-Q8_0.gguf@refs/pr/1") == tmp_path / "model-Q8_0.gguf"
    assert locate("owner/name@v1.0", weights=False) == tmp_path
    assert [name for name, _ in asked[2:]] == ["owner/name-GGUF at refs/pr/1", "owner/name at v1.0"]
    del asked[2:]
    assert asked == [("owner/name-GGUF", ["model-Q8_0.gguf"]), ("owner/name", ["sub/m-*-of-00003.gguf"])]


def test_a_folder_of_files_is_told_to_name_one(sound: bytes, tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(sound)
    with pytest.raises(
        UserError, match=r"no config\.json, .* It has a\.gguf, b\.gguf\. Name a file of it: path=.*a\.g"
    ):
        load(tmp_path)


def test_a_missing_file_and_a_missing_library(tmp_path: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"is not a file here\. Download it, and give its path"):
        load(tmp_path / "none.gguf")
    (tmp_path / "m.gguf").write_bytes(sound)
    monkeypatch.setattr("dllm.models.formats.gguf_file.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs gguf, which is not installed\. Install it with: .*\[gg"):
        load(tmp_path / "m.gguf")
