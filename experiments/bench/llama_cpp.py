"""llama.cpp on the same shape, for what a forward costs beside ours: see ``experiments.bench.forward_kinds``.

Its own benchmark program measures (``cmake --build BUILD --target llama-bench``, in llama.cpp's sources or those inside
llama-cpp-python's source package). The files hold LLaDA-8B's shape with random weights of a few layers, and no
vocabulary, which the program does not need. llama.cpp computes the logits of all rows for this architecture, and keeps
no keys and values of it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from experiments.bench.random_checkpoint import config_of

KINDS = ("BF16", "Q8_0", "Q4_0")
FEW, MORE = 2, 6  # layers; their difference tells what a layer takes, and what the rest
GROUP = 32  # weights that share a scale in Q8_0 and Q4_0


def blocks_of(kind: str, rows: int, columns: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Bytes [rows, bytes of a row] of random weights of about 0.02, as a GGUF file holds them.

    Q8_0, Q4_0: of each group a float16 scale, then 8 or 4 bits a weight. Any bits are a weight, so these are drawn as
    bytes: what a product takes does not depend on them.
    """
    if kind == "BF16":
        numbers = random.standard_normal((rows, columns), np.float32) * np.float32(0.02)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    payload = GROUP if kind == "Q8_0" else GROUP // 2
    out = np.empty((rows, columns // GROUP, 2 + payload), np.uint8)
    out[:, :, 2:] = random.integers(0, 256, (rows, columns // GROUP, payload), np.uint8)
    scale = np.float16(0.02 / 73 if kind == "Q8_0" else 0.02 / 4.6)  # by the deviation of the integers
    out[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return out.reshape(rows, -1)


def write(file: Path, kind: str, layers: int, spelt: bool = False) -> None:
    """A GGUF file of LLaDA-8B's shape with ``layers`` layers and weights of ``kind``. spelt: with a vocabulary, in
    which a byte is a token. Raises UserError where the gguf package is not installed."""
    try:
        from gguf import GGMLQuantizationType, GGUFWriter
    except ImportError:
        raise not_installed("experiments.bench.llama_cpp", "gguf", "gguf", "leave --llama-bench out") from None
    config, random = config_of("llada-8b", layers), np.random.default_rng(0)
    width, wide, vocab = config["d_model"], config["mlp_hidden_size"], config["vocab_size"]
    writer = GGUFWriter(file, "llada", use_temp_file=True)
    writer.add_block_count(layers)
    writer.add_context_length(config["max_sequence_length"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(config["n_heads"])
    writer.add_head_count_kv(config["n_kv_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(width // config["n_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    writer.add_causal_attention(False)
    if spelt:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([*"abcdefghijklmnopqrstuvwxyz", *(f"<{at}>" for at in range(26, vocab))])
        writer.add_token_types([1] * vocab)
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(config["eos_token_id"])
        writer.add_mask_token_id(config["mask_token_id"])
        writer.add_add_bos_token(False)
    else:
        writer.add_tokenizer_model("no_vocab")
    products = {
        "attn_q": (width, width),
        "attn_k": (width, width),
        "attn_v": (width, width),
        "attn_output": (width, width),
        "ffn_gate": (wide, width),
        "ffn_up": (wide, width),
        "ffn_down": (width, wide),
    }
    shapes = {"token_embd.weight": (vocab, width), "output.weight": (vocab, width)}
    shapes |= {f"blk.{at}.{name}.weight": shape for at in range(layers) for name, shape in products.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, blocks_of(kind, *shape, random), raw_dtype=GGMLQuantizationType[kind])
    for name in ("output_norm", *(f"blk.{at}.{norm}_norm" for at in range(layers) for norm in ("attn", "ffn"))):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(program: Path, file: Path, row_counts: Sequence[int], runs: int, threads: int) -> list[float]:
    """Seconds of a forward over each number of rows, the least of several runs. Raises UserError where the program
    fails."""
    words = [str(program), "-m", str(file), "-n", "0", "-p", ",".join(map(str, row_counts)), "-r", str(runs),
             "-t", str(threads), "-ngl", "0", "-o", "json"]  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{program} does not run ({error.strerror}). Give --llama-bench a built llama-bench.") from None
    if done.returncode:
        raise UserError(f"{program} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    by_rows = {one["n_prompt"]: min(one["samples_ns"]) / 1e9 for one in json.loads(done.stdout)}
    return [by_rows[count] for count in row_counts]


def forward_seconds(
    program: Path, row_counts: Sequence[int], all_layers: int, runs: int, threads: int
) -> Mapping[str, list[float]]:
    """By kind: seconds of a forward of ``all_layers`` layers and the head over each number of rows."""
    found = {}
    for kind in KINDS:
        by_layers = []
        for layers in (FEW, MORE):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "model.gguf"
                write(file, kind, layers)
                by_layers.append(seconds(program, file, row_counts, runs, threads))
        few, more = by_layers
        found[kind] = [a + (b - a) * (all_layers - FEW) / (MORE - FEW) for a, b in zip(few, more, strict=True)]
    return found
