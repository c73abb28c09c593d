"""The benchmark against published checkouts, on stand-ins with their interfaces, which are written here: Fast-dLLM's
decodes with plain operations on the same checkpoint, the others answer with one token everywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from dllm import Decoder, UserError, load, part
from experiments.bench import forward_kinds, random_checkpoint
from experiments.bench import peers as bench_peers
from experiments.bench.random_checkpoint import SHAPES, config_of

SIZES = [
    "--width=64",
    "--layers=1",
    "--mlp=32",
    "--vocabulary=500",
    "--prompt=9",
    "--answer=6",
    "--block=3",
    "--rounds=1",
]
MODEL = """
import torch
from dllm.models.weights.weights import load_model


class LLaDAModelLM:
    @classmethod
    def from_pretrained(cls, path, torch_dtype):
        self = cls()
        self.network = load_model(path, "cpu", torch_dtype)
        return self

    def eval(self):
        return self
"""
GENERATE = """
import torch


def generate(model, prompt, steps, gen_length, block_length, mask_id):
    print("what a checkout prints must not disturb the answers")
    x = torch.cat([prompt, torch.full((1, gen_length), mask_id)], 1)
    for begin in range(prompt.shape[1], x.shape[1], block_length):
        for _ in range(block_length):
            logits = model.network.head(model.network.encode(x))[0]
            confidence, token = logits.double().softmax(-1).max(-1)
            outside = torch.ones_like(confidence, dtype=torch.bool)
            outside[begin : begin + block_length] = False
            at = confidence.masked_fill(outside | (x[0] != mask_id), -1).argmax()
            x[0, at] = token[at]
    return x, steps


def generate_with_prefix_cache(model, prompt, steps, gen_length, block_length, mask_id):
    x, steps = generate(model, prompt, steps, gen_length, block_length, mask_id)
    x[0, -2] = 17
    return x, steps


generate_with_dual_cache = generate
"""


CONSTANT = """
import torch


class LLaDAModelLM:
    @classmethod
    def from_pretrained(cls, path, torch_dtype):
        return cls()

    def eval(self):
        return self


class Frame:
    def __init__(self, prompts, generated_tokens):
        self.prompts, self.generated_tokens = prompts, generated_tokens


class PrefixCache:
    def __init__(self, config, use_dual=False):
        pass
"""
D2CACHE = (
    CONSTANT
    + """
def generate(model, input_ids, *, strategy, cache_cls, gen_length, **options):
    return [Frame(input_ids, input_ids), Frame(input_ids, torch.full((len(input_ids), gen_length), 17))]
"""
)
DKV_CACHE = (
    CONSTANT
    + """
def generate(model, tokenizer, prompt, steps, gen_length, block_length, mask_id, cache_reloading_step=1, **options):
    return torch.cat([prompt, torch.full((len(prompt), gen_length), 17)], 1)
"""
)
CHECKOUTS = {
    "fast-dllm": {"llada/model/modeling_llada.py": MODEL, "llada/generate.py": GENERATE},
    "d2cache": {
        "src/generation/__init__.py": D2CACHE,
        "src/generation/utils.py": "",
        "src/cache.py": D2CACHE,
        "src/models/llada/modeling_llada.py": D2CACHE,
    },
    "dkv-cache": {
        f"{place}/{name}_dkv_cache_{kind}.py": DKV_CACHE
        for place, name in (("generation_utils", "llada"), ("models", "modeling_llada"))
        for kind in ("decode", "greedy")
    },
}


def stand_in(folder: Path, files: dict[str, str]) -> Path:
    """A checkout in ``folder`` that has these files only."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def run(folders: dict[str, Path], caches: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("PYTHONPATH", str(Path(bench_peers.__file__).parents[2]))  # a stand-in loads with our loader
    return bench_peers.main([*(f"--{name}={folder}" for name, folder in folders.items()), *SIZES, "--caches", *caches])


def test_equal_tokens_and_other_tokens_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {name: stand_in(tmp_path / name, files) for name, files in CHECKOUTS.items()}
    assert run(folders, ["none", "prefix", "dkv_greedy"], monkeypatch) == 1
    out, errors = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()[3:]]
    found = {(line[0], next(word for word in line if word in folders)): "same" in line for line in lines}
    assert found == {
        ("none", "fast-dllm"): True,
        ("none", "d2cache"): False,
        ("none", "dkv-cache"): False,
        ("prefix", "fast-dllm"): False,
        ("prefix", "d2cache"): False,
        ("dkv_greedy", "dkv-cache"): False,
    }
    assert "DIFFER" in out
    named = errors.splitlines()
    assert len(named) == 5, "one sentence for each that differs"
    assert named[2].startswith(f"--fast-dllm={folders['fast-dllm']} (NVlabs/Fast-dLLM) at commit ")
    assert "under cache=prefix: position 4 of the answer is 17, ours " in named[2]


def test_several_prompts_are_decoded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stand_in(tmp_path / "peer", CHECKOUTS["fast-dllm"])
    monkeypatch.setitem(globals(), "SIZES", [*SIZES, "--batch=3"])
    assert run({"fast-dllm": folder}, ["none"], monkeypatch) == 0
    assert "batch 3, " in (out := capsys.readouterr().out) and "same" in out


def test_a_checkout_that_lacks_a_function_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    less = GENERATE.replace("generate_with_dual_cache = generate", "")
    folder = stand_in(tmp_path / "peer", {**CHECKOUTS["fast-dllm"], "llada/generate.py": less})
    assert run({"fast-dllm": folder}, ["none"], monkeypatch) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"--fast-dllm={folder} (NVlabs/Fast-dLLM) is at commit ")
    assert "generate.generate_with_dual_cache could not be imported" in errors
    assert "24cc59e" in errors
    assert errors.count("\n") == 1


def test_a_wrong_folder_or_interpreter_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_peers.main([f"--d2cache={tmp_path / 'nowhere'}"]) == 1
    assert "nowhere is not a folder. Clone github.com/Kamichanw/d2Cache there." in capsys.readouterr().err
    assert bench_peers.main([f"--d2cache={tmp_path}", "--python=d3cache=python3"]) == 1
    assert "--python=d3cache=python3 must be PATH, or NAME=PATH with one of fast-dllm, " in capsys.readouterr().err


def test_pythons_are_named_for_all_or_for_one() -> None:
    chosen = bench_peers.interpreters(["all", "d2cache=other"])
    assert chosen == {"fast-dllm": "all", "d2cache": "other", "dkv-cache": "all"}
    assert set(bench_peers.interpreters([]).values()) == {sys.executable}


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
    monkeypatch.setattr(forward_kinds, "machine", lambda: forward_kinds.Peaks(1e10, 1e12, 2e12))
    randint = forward_kinds.torch.randint

    def small_ids(low: int, high: int, shape: tuple[int, ...], **options: Any) -> Tensor:
        """Ids that the small vocabulary has. Numbers of another type, which measure processors, stay."""
        return randint(low, high if options else 2, shape, **options)

    monkeypatch.setattr(forward_kinds.torch, "randint", small_ids)
    assert forward_kinds.main(["--layers", "1", "--runs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert [count for count in counts if count.isdigit()] == 2 * ["1", "8", "32", "124", "256"]
    assert "10.0 GB/s read, 1,000 GFLOP/s in bfloat16, 2,000 GOP/s in bytes" in lines[0] and "auto takes" in lines[-1]
    assert forward_kinds.Peaks(1e10, 1e12, 2e12).floor("int8-rows", 256, 10**9, 10**8) == 0.256 + 0.02
    assert config_of("llada-8b", 1)["n_layers"] == 1
