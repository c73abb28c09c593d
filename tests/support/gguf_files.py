"""GGUF files as llama.cpp's converter writes them: names by gguf's maps, q and k of LLaDA and Llama with turned rows.

Blocks of Q4_K, Q5_K and Q6_K, which gguf reads and does not write, are made number by number from their layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from dllm.parts import locate

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
ARCHITECTURES = {
    "LLaDAModelLM": ("llada", gguf.MODEL_ARCH.LLADA),
    "DreamModel": ("dream", gguf.MODEL_ARCH.DREAM),
    "LLaDAMoEModelLM": ("llada-moe", gguf.MODEL_ARCH.LLADA_MOE),
    "LlamaForCausalLM": ("llama", gguf.MODEL_ARCH.LLAMA),
    "Qwen2ForCausalLM": ("qwen2", gguf.MODEL_ARCH.QWEN2),
    "Qwen3ForCausalLM": ("qwen3", gguf.MODEL_ARCH.QWEN3),
    "RND1LM": ("rnd1", gguf.MODEL_ARCH.QWEN3MOE),  # gguf 0.19 has no names of its own for it; its body is Qwen3-MoE's
}


def turned(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """q or k of LLaDA or Llama as the converter has it, by a loop: halves of a head side by side."""
    out, size = np.empty_like(rows), len(rows) // heads
    for head in range(heads):
        for pair in range(size // 2):
            out[head * size + 2 * pair] = rows[head * size + pair]
            out[head * size + 2 * pair + 1] = rows[head * size + size // 2 + pair]
    return out


def six_bits(scale: Bytes, least: Bytes) -> Bytes:
    """Eight scales and eight minima [n, 8] of six bits in twelve bytes."""
    out = np.zeros((len(scale), 12), np.uint8)
    for j in range(4):
        out[:, j] = scale[:, j] | scale[:, j + 4] >> 4 << 6
        out[:, j + 4] = least[:, j] | least[:, j + 4] >> 4 << 6
        out[:, j + 8] = scale[:, j + 4] & 15 | (least[:, j + 4] & 15) << 4
    return out


def halves(numbers: Floats) -> Bytes:
    """Numbers [n] of float16 as two bytes each."""
    return numbers.astype(np.float16).view(np.uint8).reshape(-1, 2)


def k_blocks(values: Floats, bits: int) -> tuple[Bytes, Floats]:
    """Blocks of Q4_K or Q5_K of numbers [n, 256], and what they stand for: w = d s q - d' m."""
    top, groups = 2**bits - 1, values.reshape(-1, 8, 32)
    low = np.minimum(groups.min(2), 0)
    size = (groups.max(2) - low) / top
    d, dmin = (np.float16(np.maximum(one.max(1) / 63, 1e-6)) for one in (size, -low))
    scale = np.clip(np.round(size / d.astype(np.float32)[:, None]), 1, 63).astype(np.uint8)
    least = np.clip(np.round(-low / dmin.astype(np.float32)[:, None]), 0, 63).astype(np.uint8)
    wide = np.zeros_like(values)
    data, high = np.zeros((len(values), 128), np.uint8), np.zeros((len(values), 32), np.uint8)
    for number in range(256):
        group, place = number // 32, number % 32
        step = d.astype(np.float32) * scale[:, group]
        zero = dmin.astype(np.float32) * least[:, group]
        q = np.clip(np.round((values[:, number] + zero) / step), 0, top).astype(np.uint8)
        wide[:, number] = step * q - zero
        data[:, 32 * (group // 2) + place] |= (q & 15) << (4 if group % 2 else 0)
        high[:, place] |= q >> 4 << group
    head = [halves(d), halves(dmin), six_bits(scale, least)]
    return np.concatenate([*head, *([high] if bits == 5 else []), data], 1), wide


def q6_blocks(values: Floats) -> tuple[Bytes, Floats]:
    """Blocks of Q6_K of numbers [n, 256], and what they stand for: w = d s (q - 32)."""
    size = np.abs(values.reshape(-1, 16, 16)).max(2) / 31
    d = np.float16(np.maximum(size.max(1) / 127, 1e-6))
    scale = np.clip(np.round(size / d.astype(np.float32)[:, None]), 1, 127).astype(np.int8)
    wide = np.zeros_like(values)
    low, high = np.zeros((len(values), 128), np.uint8), np.zeros((len(values), 64), np.uint8)
    for number in range(256):
        half, inside = number // 128, number % 128
        step = d.astype(np.float32) * scale[:, number // 16]
        signed = np.clip(np.round(values[:, number] / step), -32, 31).astype(np.int8)
        q = (signed + 32).astype(np.uint8)
        wide[:, number] = step * signed
        low[:, 64 * half + inside % 64] |= (q & 15) << (4 if inside >= 64 else 0)
        high[:, 32 * half + inside % 32] |= q >> 4 << 2 * (inside // 32)
    return np.concatenate([low, high, scale.view(np.uint8), halves(d)], 1), wide


def rounded(values: Floats, kind: Kind) -> tuple[NDArray[Any], Floats]:
    """A tensor in a type, as bytes by rows, and the numbers that it stands for."""
    if kind not in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        data = quants.quantize(values, kind)
        return data, quants.dequantize(data.view(np.uint8), kind).reshape(values.shape)
    parts = values.reshape(-1, 256)
    data, wide = q6_blocks(parts) if kind == Kind.Q6_K else k_blocks(parts, 4 if kind == Kind.Q4_K else 5)
    return data.reshape(*values.shape[:-1], -1), wide.reshape(values.shape)


def back(rows: Floats, heads: int) -> Floats:
    """What ``turned`` was made of."""
    place = turned(np.arange(len(rows)).reshape(-1, 1), heads).flatten()
    out = np.empty_like(rows)
    out[place] = rows
    return out


class Converted:
    """A folder's checkpoint as a GGUF file, and a plain float32 folder of the numbers in it."""

    def __init__(
        self, folder: Path, file: Path, kind: Kind, kinds: Mapping[str, Kind] | None = None, split: int = 0, **more: Any
    ) -> None:
        """kinds: of tensors by the end of their published stem. split: tensors of a part; 0: one file. more: texts and
        booleans of the metadata."""
        self.config = json.loads((folder / "config.json").read_text())
        self.kind, self.kinds, self.more = kind, kinds or {}, more
        self.name, architecture = ARCHITECTURES[self.config["architectures"][0]]
        layers = self.config.get("n_layers") or self.config["num_hidden_layers"]
        self.map = gguf.get_tensor_name_map(architecture, layers)
        self.writer = gguf.GGUFWriter(file, self.name, split_max_tensors=split)
        self.wide: dict[str, Tensor] = {}
        self._describe(layers)
        if (folder / "tokenizer.json").is_file():
            self._vocabulary(folder)
        self._tensors(
            {
                name: tensor.float()
                for one in sorted(folder.glob("model*.safetensors"))
                for name, tensor in load_file(one).items()
            }
        )
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def save_wide(self, folder: Path) -> Path:
        folder.mkdir()
        save_file(self.wide, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def _get(self, *names: str) -> Any:
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)

    def _describe(self, layers: int) -> None:
        writer = self.writer
        writer.add_block_count(layers)
        writer.add_context_length(self._get("max_sequence_length", "max_position_embeddings"))
        writer.add_embedding_length(self._get("d_model", "hidden_size"))
        writer.add_head_count(self._get("n_heads", "num_attention_heads"))
        writer.add_head_count_kv(self._get("n_kv_heads", "num_key_value_heads", "n_heads"))
        writer.add_rope_freq_base(self._get("rope_theta") or self.config["rope_parameters"]["rope_theta"])
        writer.add_layer_norm_rms_eps(self._get("rms_norm_eps"))
        if not self.config["architectures"][0].endswith("ForCausalLM"):
            writer.add_causal_attention(False)
        if (inner := self._get("mlp_hidden_size", "dense_intermediate_size", "intermediate_size")) is not None:
            writer.add_feed_forward_length(inner)
        for name, add in {
            "num_experts": writer.add_expert_count,
            "num_experts_per_tok": writer.add_expert_used_count,
            "expert_intermediate_size": writer.add_expert_feed_forward_length,
            "moe_intermediate_size": writer.add_expert_feed_forward_length,
            "head_dim": writer.add_key_length,
            "mask_token_id": writer.add_mask_token_id,
            "eos_token_id": writer.add_eos_token_id,
            "pad_token_id": writer.add_pad_token_id,
            "bos_token_id": writer.add_bos_token_id,
        }.items():
            if self._get(name) is not None:
                add(self._get(name))
        for name, value in self.more.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_string
            add(name.replace("__", "."), value)

    def _vocabulary(self, folder: Path) -> None:
        """The converter's ``_set_vocab_gpt2``: every id a token, those without one unused."""
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        known = {number: text for text, number in backend.get_vocab().items()}
        added = backend.get_added_tokens_decoder()
        self.writer.add_tokenizer_model("gpt2")
        tokens, kinds = [], []
        for number in range(self._get("vocab_size")):
            tokens.append(known.get(number, f"[PAD{number}]"))
            special = number in added and added[number].special
            kinds.append(5 if number not in known else 3 if special else 4 if number in added else 1)
        self.writer.add_token_list(tokens)
        self.writer.add_token_types(kinds)
        self.writer.add_token_merges(
            [
                " ".join(pair) if isinstance(pair, list) else pair
                for pair in json.loads(backend.to_str())["model"]["merges"]
            ]
        )
        if (folder / "chat_template.jinja").is_file():
            self.writer.add_chat_template((folder / "chat_template.jinja").read_text())

    def _tensors(self, tensors: Mapping[str, Tensor]) -> None:
        experts: dict[str, list[tuple[int, str, Tensor]]] = {}
        for name, tensor in tensors.items():
            stem, _, leaf = name.rpartition(".")
            if ".experts." in stem:
                before, _, behind = stem.partition(".experts.")
                number, _, part = behind.partition(".")
                experts.setdefault(f"{before}.experts.{part}", []).append((int(number), name, tensor))
            else:
                self._add(stem, leaf, [name], tensor.numpy())
        for stem, parts in experts.items():
            ordered = sorted(parts)
            self._add(
                stem, "weight", [name for _, name, _ in ordered], torch.stack([one for *_, one in ordered]).numpy()
            )

    def _add(self, stem: str, leaf: str, names: list[str], values: Floats) -> None:
        kind = (
            Kind.F32
            if values.ndim == 1 or stem.endswith("mlp.gate")
            else next((kind for end, kind in self.kinds.items() if stem.endswith(end)), self.kind)
        )
        queries = self._get("n_heads", "num_attention_heads")
        heads = {"q_proj": queries, "k_proj": self._get("n_kv_heads", "num_key_value_heads") or queries}
        turn = heads.get(stem.rpartition(".")[2]) if self.name in ("llada", "llama") else None
        data, wide = rounded(turned(values, turn) if turn else values, kind)
        wide = back(wide, turn) if turn else wide
        given = self.map.get_name(stem)
        assert given is not None, stem
        shape = None if kind in (Kind.F32, Kind.F16) else data.shape
        self.writer.add_tensor(f"{given}.{leaf}", data, shape, raw_dtype=None if shape is None else kind)
        parts = wide if len(names) > 1 else [wide]
        self.wide |= {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in zip(names, parts, strict=True)}


def mini_gguf(file: Path, kind: Kind = Kind.Q4_0) -> Path:
    """``mini-llada`` as a file with its tokenizer."""
    mini = locate("mini-llada")
    file.parent.mkdir(exist_ok=True)
    Converted(mini, file, kind, tokenizer__huggingface__json=(mini / "tokenizer.json").read_text())
    return file
