"""Random checkpoints of the published shapes, and what a forward of them is measured by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, UserError, load, part
from experiments.bench import forward_kinds, random_checkpoint
from experiments.bench.random_checkpoint import SHAPES, config_of

SMALL: dict[str, dict[str, Any]] = {
    "llada-8b": {"d_model": 256, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 384, "vocab_size": 512,
                 "embedding_size": 512, "mask_token_id": 500, "eos_token_id": 501, "pad_token_id": 501},
    "dream-7b": {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
                 "vocab_size": 512, "mask_token_id": 500, "pad_token_id": 501, "eos_token_id": 501},
    "llada2-mini": {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                    "intermediate_size": 384, "moe_intermediate_size": 128, "num_experts": 16, "vocab_size": 512,
                    "pad_token_id": 501, "eos_token_id": 501, "mask_token_id": 500, "rotary_dim": 32},
}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sizes in SMALL.items():
        monkeypatch.setitem(SHAPES, name, {**SHAPES[name], **sizes})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", SMALL)
def test_a_random_checkpoint_loads_and_decodes_in_every_kind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(random_checkpoint, "SHARD", 1 << 18)
    assert random_checkpoint.main([name, str(tmp_path), "--layers", "2"]) == 0
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 and "GB" in capsys.readouterr().out
    for kind in (None, "int8", "int4"):
        model = load(tmp_path, dtype="bfloat16", quantize=kind)
        (row,) = Decoder(model, gen_length=32, blocks="fixed", eos="none")([list(range(20))])
        assert len(row.tokens) == 32 and model.config.layers == 2


NOISE = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "global_head_dim": 64, "num_global_key_value_heads": 1, "intermediate_size": 256, "moe_intermediate_size": 128,
         "num_experts": 8, "top_k_experts": 2, "vocab_size": 512, "sliding_window": 16}  # fmt: skip


def test_a_random_model_of_noise_loads_and_decodes_in_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "diffusiongemma-26b"
    text = SHAPES[name]["text_config"] | NOISE
    monkeypatch.setitem(SHAPES, name, SHAPES[name] | {"canvas_length": 16, "text_config": text})
    assert random_checkpoint.main([name, str(tmp_path), "--layers", "6"]) == 0
    rule, blocks = part("sampler", "renoise", steps=3), part("blocks", "fixed", block_length=16)
    for kind in (None, "int8", "int4"):
        model = load(tmp_path, dtype="bfloat16", quantize=kind)
        (row,) = Decoder(model, rule, blocks, "finished", "none", gen_length=32)([list(range(20))])
        assert len(row.canvas) == 32 and 4 <= row.nfe <= 6


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_checkpoint.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1e9}))
    with pytest.raises(UserError, match="has 1 GB free, and llada-8b takes 16"):
        random_checkpoint.write("llada-8b", tmp_path, None)


@pytest.mark.usefixtures("small")
def test_forwards_are_timed_by_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(forward_kinds, "machine", lambda: "a machine")
    monkeypatch.setattr(forward_kinds.torch, "randint", lambda low, high, shape: forward_kinds.torch.ones(shape).long())
    assert forward_kinds.main(["--layers", "1", "--runs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:] == ["1", "8", "32", "124", "256"]
    assert config_of("llada-8b", 1)["n_layers"] == 1
