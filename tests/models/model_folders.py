"""Checkpoint folders in miniature, shared by the tests of this folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from dllm.parts import Transformer, save_model
from tests.support.adapters import stored
from tests.support.random_models import random_model

DATA = Path(__file__).parents[1] / "data" / "models"
PARITY = sorted(folder for folder in DATA.iterdir() if (folder / "logits.safetensors.xz").is_file())
IMSTYLE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# LLaDA's published template: the assistant header comes whether or not it is asked for.
HEADERS = (
    "{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' "
    "+ m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}"
    "{{ c }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)


def published(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of one of the data folders, changed."""
    return {**json.loads((DATA / name / "config.json").read_text()), **changes}


def random_folder(folder: Path, config: Mapping[str, Any]) -> Transformer:
    """A checkpoint with random weights; returns the model it holds."""
    model = random_model(config)
    save_model(model, folder)
    return model


def wide_folder(name: str, folder: Path, **changes: Any) -> Path:
    """Random weights of a data folder's family in widths of 128, which int4 takes. Returns the folder."""
    llada = "d_model" in published(name)
    sizes: dict[str, Any] = (
        {"d_model": 128, "mlp_hidden_size": 256} if llada else {"hidden_size": 128, "intermediate_size": 256}
    )
    heads = {"n_heads": 4, "n_kv_heads": 4} if llada else {"num_attention_heads": 4, "num_key_value_heads": 2}
    features = {"head_dim": 32} if published(name).get("head_dim") else {}
    widths = ("expert_intermediate_size", "dense_intermediate_size", "moe_intermediate_size")
    sizes |= {key: 128 for key in widths if published(name).get(key)} | (
        {"rotary_dim": 16} if name == "llada2_moe" else {}
    )
    random_folder(folder, published(name, **sizes, **heads, **features, eos_token_id=61, **changes))
    return folder


def copy_of(name: str, folder: Path) -> Path:
    """A writable copy of a data folder, its weights in a single file."""
    target = folder / name
    shutil.copytree(DATA / name, target, ignore=shutil.ignore_patterns("model*"))
    save_file(stored(DATA / name), target / "model.safetensors")
    return target


def edit_weights(folder: Path, **changes: Tensor | None) -> None:
    """Replace, add or (None) delete tensors; ``__`` in a keyword stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def shard(folder: Path) -> list[str]:
    """Split model.safetensors into two files with an index; returns the tensor names of the second."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return names[1::2]


def logits(model: Transformer, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
    with torch.inference_mode():
        return model.head(model.encode(tokens, valid))


def byte_tokenizer(special: Mapping[str, bool], merges: tuple[tuple[str, str], ...] = ()) -> Tokenizer:
    """Byte-level BPE over 256 bytes plus merges; ``special`` maps added tokens to their flag, ids from 256 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    for text, flag in special.items():
        backend.add_tokens([AddedToken(text, special=flag, normalized=False)])
    return backend


def write_tokenizer(folder: Path, backend: Tokenizer, **settings: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def llada_tokenizer(folder: Path, chat: bool = True) -> None:
    special = [
        "<|startoftext|>",
        "<|endoftext|>",
        "<|mdm_mask|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    template = {"chat_template": HEADERS} if chat else {}
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write_tokenizer(folder, byte_tokenizer(dict.fromkeys(special, True)), **names, **template)


def sdar_tokenizer(folder: Path) -> None:
    flags = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<think>": False, "<|MASK|>": False}
    write_tokenizer(
        folder, byte_tokenizer(flags), mask_token="<|MASK|>", eos_token={"content": "<|endoftext|>"}, pad_token=None
    )
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": "<MASK>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    (folder / "chat_template.jinja").write_text(IMSTYLE)


def dream_tokenizer(folder: Path) -> None:
    """vocab.json, merges.txt and a remote-code class in the config, as published; no tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = (("h", "e"), ("Ġ", "t"))
    vocabulary = byte_tokenizer({}, merges).get_vocab()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n")
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<|beginoftext|>", "<|mask|>"]
    decoder = {str(258 + i): {"content": text, "special": text != "<tool_call>"} for i, text in enumerate(added)}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
                "tokenizer_class": "DreamTokenizer",
                "added_tokens_decoder": decoder,
                "eos_token": "<|endoftext|>",
                "mask_token": "<|mask|>",
                "chat_template": IMSTYLE,
            }
        )
    )
    (folder / "tokenization_dream.py").write_text("raise SystemExit('remote code was run')\n")
