"""DiffusionGemma in GGUF: the folder's numbers, description and logits, and a sentence for a file that is not whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from model_folders import DATA
from rank_threads import threads, together

from dllm import UserError, load
from dllm.parts import SettingWarning, inspect_checkpoint, load_model, read_model_config, tokenizer_at
from tests.packed import gguf_matrices
from tests.support.gemma_gguf import gemma_gguf

A = "diffusion-gemma."


@pytest.mark.parametrize("name", ["dg_dev", "dg_other"])
def test_a_file_has_the_numbers_and_the_description_of_its_folder(name: str, tmp_path: Path) -> None:
    """Of all published tensors, bit for bit; so its logits are the recorded ones of the folder."""
    file = gemma_gguf(DATA / name, tmp_path / "m.gguf")
    described = read_model_config(file)
    assert described == read_model_config(DATA / name) and described.unread == ()
    found, expected = load_model(file).state_dict(), load_model(DATA / name).state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[key], one) for key, one in expected.items())
    assert inspect_checkpoint(file).usable


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_other_types_are_what_gguf_makes_of_them(kind: str, tmp_path: Path) -> None:
    found = list(gguf_matrices(gemma_gguf(DATA / "dg_dev", tmp_path / "m.gguf", Kind[kind])))
    assert len(found) == 143 and all(one.equal for one in found)


def test_two_ranks_hold_the_shares_of_the_folder(tmp_path: Path) -> None:
    file, ranks = gemma_gguf(DATA / "dg_dev", tmp_path / "m.gguf"), threads(2)
    shares = [
        together(ranks, lambda rank, one=one: load_model(one, ranks=ranks[rank]).state_dict())
        for one in (file, DATA / "dg_dev")
    ]
    for ours, theirs in zip(*shares, strict=True):
        assert all(torch.equal(ours[key], one) for key, one in theirs.items())


def same_as_folder(file: Path) -> None:
    found, expected = load_model(file).state_dict(), load_model(DATA / "dg_dev").state_dict()
    assert all(torch.equal(found[key], one) for key, one in expected.items())


def test_gate_and_up_may_be_apart_and_heads_one_number(tmp_path: Path) -> None:
    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if "gate_up_exps" in name]:
            gate, up = np.split(tensors.pop(name), 2, 1)
            tensors |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        tensors["self_cond_norm.weight"] = tensors.pop("self_cond_pre_norm.weight")

    same_as_folder(gemma_gguf(DATA / "dg_dev", tmp_path / "m.gguf", edit=edit))

    def alike(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        keys[A + "attention.head_count_kv"] = 2

    config = read_model_config(gemma_gguf(DATA / "dg_dev", tmp_path / "one.gguf", edit=alike))
    assert config.gemma is not None and {one.kv_heads for one in config.gemma.layers} == {2}


def without(*names: str) -> Any:
    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in [one for one in (*keys, *tensors) if one.startswith(names)]:
            keys.pop(name, None), tensors.pop(name, None)

    return edit


def set_to(**values: Any) -> Any:
    """Keys, or tensors where a value is an array; ``__`` stands for a dot."""

    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name, value in values.items():
            name = name.replace("__", ".")
            if isinstance(value, np.ndarray):
                tensors[name] = value.astype(np.float32)
            else:
                keys[name if name.startswith(("diffusion.", "general.")) else A + name] = value

    return edit


REFUSED: list[tuple[Any, str]] = [
    (without("self_cond_"), r"has no self_cond_\* tensors: its converter left out the self-conditioning, without"),
    (without("self_cond_up"), r"lacks self_cond_up\.weight, a part of its self-conditioning"),
    (without("rope_freqs"), r"has no tensor rope_freqs\.weight"),
    (without("token_embd"), "has no tensor token_embd"),
    (without("output_norm"), r"tensor model\.decoder\.norm\.weight is missing"),
    (without("blk.2.ffn_down_exps.scale"), r"layers\.2\.router\.per_expert_scale is missing"),
    (without("blk.1.enc_layer_output_scale"), r"language_model\.layers\.1\.layer_scalar is missing"),
    (without("blk.1.layer_output_scale"), r"decoder\.layers\.1\.layer_scalar is missing"),
    (without("blk.0.attn_v"), r"layers\.0\.self_attn\.v_proj\.weight is missing"),
    *(
        (without(key), rf"lacks {key}")
        for key in (
            A + "block_count",
            A + "rope.freq_base_swa",
            A + "expert_count",
            A + "final_logit_softcapping",
            A + "attention.head_count_kv",
            A + "attention.sliding_window_pattern",
            A + "attention.value_length_swa",
            A + "context_length",
            "diffusion.canvas_length",
        )
    ),
    (set_to(output__weight=np.ones((64, 32))), r"has a head of its own, output\.weight"),
    (set_to(rope_freqs__weight=np.array([1, 1, 2e30, 1e30, 1e30, 1e30, 1e30, 1e30])), "scaled rotary embeddings"),
    (set_to(rope_freqs__weight=np.ones(7)), "scaled rotary embeddings"),
    (set_to(attention__causal=True), r"attention\.causal=true, and only false is supported"),
    (set_to(attention__shared_kv_layers=2), r"shared_kv_layers=2"),
    (set_to(rope__scaling__factor=2.0), "factor=2"),
    (set_to(attention__value_length=4), r"value_length=4, and keys of 16"),
    (set_to(rope__dimension_count_swa=4), r"dimension_count_swa=4, and keys of 8"),
    (set_to(attention__head_count_kv=[2, 2]), r"has 2 values of .*head_count_kv for 6 layers"),
    (set_to(diffusion__canvas_length=0), r"canvas_length=0"),
    (set_to(general__type="mmproj"), r"general\.type='mmproj'"),
    (set_to(blk__0__odd__weight=np.ones(3)), r"has blk\.0\.odd\.weight, which is not part of"),
    (set_to(diffusion__shift_logits=True), "shift_logits=true"),
]


@pytest.mark.parametrize(("edit", "sentence"), REFUSED, ids=[str(at) for at in range(len(REFUSED))])
def test_a_file_that_is_not_whole_is_refused(edit: Any, sentence: str, tmp_path: Path) -> None:
    file = gemma_gguf(DATA / "dg_dev", tmp_path / "m.gguf", edit=edit)
    with pytest.raises(UserError, match=sentence) as caught:
        load(file)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert not inspect_checkpoint(file).usable


def test_settings_of_the_sampler_are_told(tmp_path: Path) -> None:
    edit = set_to(diffusion__eb_max_steps=32, diffusion__eb_entropy_bound=0.1, diffusion__eb_t_min=0.3)
    file = gemma_gguf(DATA / "dg_dev", tmp_path / "m.gguf", edit=edit)
    said = r"was published with sampler\.steps=32 sampler\.t_min=0\.3: set it beside sampler=renoise"
    assert any(re.search(said, one) for one in read_model_config(file).warnings)
    with pytest.warns(SettingWarning, match=said):
        load(file)


MERGES = ["t h", "th e", "▁ the", "\n \n", "a b", "ab c", "1 2"]
SPECIAL = {"<|turn>": 3, "<turn|>": 3, "<|channel>": 4, "<|tool_call>": 1, "<|odd|>": 1, "</s>": 1}


def vocabulary(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
    letters = [*"abcdefghinort12▁\n", *(merge.replace(" ", "") for merge in MERGES)]
    words = {
        "<pad>": 3,
        "<eos>": 3,
        "<bos>": 3,
        "<unk>": 2,
        **SPECIAL,
        **{f"<0x{at:02X}>": 6 for at in range(256)},
        **dict.fromkeys(letters, 1),
    }
    embedding = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = np.resize(embedding, (len(words), embedding.shape[1]))
    ids = {"bos": 2, "unknown": 3}
    keys |= {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": list(words),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": list(words.values()),
        "tokenizer.ggml.add_bos_token": True,
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()},
    }


def merged(text: str, known: dict[str, int]) -> list[int]:
    """Byte pair merges by a loop, the earliest rule first, and bytes for what is not known."""
    parts = [*text.replace(" ", "▁")]
    for rule in MERGES:
        pair, at = rule.split(" "), 0
        while at < len(parts) - 1:
            if parts[at : at + 2] == pair:
                parts[at : at + 2] = ["".join(pair)]
            at += 1
    spelt = [[part] if part in known else [f"<0x{byte:02X}>" for byte in part.encode()] for part in parts]
    return [known[one] for part in spelt for one in part]


def test_its_vocabulary_spells_blanks_and_bytes(tmp_path: Path) -> None:
    tokenizer = tokenizer_at(gemma_gguf(DATA / "dg_dev", tmp_path / "m.gguf", edit=vocabulary))
    assert tokenizer is not None
    known = tokenizer.backend.get_vocab()
    for text in ("the the  abc\n\n\n12", "né ∑ 12\n", " the", "", "\n" * 7 + "ab"):
        ids = tokenizer.encode(text)
        assert ids == merged(text, known) and tokenizer.decode(ids) == text
    added = tokenizer.backend.get_added_tokens_decoder()
    assert {one.content for one in added.values() if not one.special} == {"<|channel>", "<|tool_call>"}
    assert {known["<turn|>"], known["<eos>"]} <= {*tokenizer.stop_ids} and tokenizer.opening == (known["<bos>"],)
    assert tokenizer.backend.encode("a<|turn>the<|channel>").ids == [
        known[one] for one in ("a", "<|turn>", "the", "<|channel>")
    ]
