"""Tiny BERT and ModernBERT of transformers' own classes, with random weights and a tokenizer of one word per id."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from tests.support.tiny import make_tiny, make_written

SIZES = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 96,
    "pad_token_id": 61,
}
MASKED_LMS = ("bert", "modernbert")


def masked_lm(name: str, seed: int = 0) -> nn.Module:
    """A network with weights large enough to be sure of some positions."""
    torch.manual_seed(seed)
    if name == "bert":
        made: nn.Module = BertForMaskedLM(BertConfig(**SIZES))
    else:
        ids = {"bos_token_id": 62, "cls_token_id": 62, "eos_token_id": 61, "sep_token_id": 61}
        # every second layer sees 8 columns to each side
        made = ModernBertForMaskedLM(ModernBertConfig(**SIZES, **ids, local_attention=16, global_attn_every_n_layers=2))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
    return made.eval()


def make_masked_lm(name: str, folder: Path, written: bool = False) -> Path:
    """``folder`` as a checkpoint of it. written: with a byte-level tokenizer, which constraints need."""
    (make_written if written else make_tiny)(folder)
    for file in ("config.json", "model.safetensors"):
        (folder / file).unlink()
    masked_lm(name).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "sep_token": settings.pop("eos_token")}))
    return folder
