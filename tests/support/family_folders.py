"""A complete checkpoint of each family of 2026, tiny: trained where there is one, else of random weights."""

from __future__ import annotations

import json
from pathlib import Path

from dllm.parts import save_model
from tests.support.random_models import random_model
from tests.support.tiny import MODELS, make_tiny

IDS = {"mask_token_id": 60, "eos_token_id": 61, "pad_token_id": 61, "vocab_size": 64}
TRAINED = {
    "a2d": "tiny-a2d-mdlm",
    "a2d-bd3lm": "tiny-a2d-bd3lm",
    "diffcoder": "tiny-diffcoder",
    "rnd1": "tiny-rnd1",
    "fastdllm_v2": "tiny-fastdllm-v2",
    "nemotron": "tiny-nemotron",
}
RANDOM = ("illada", "dreamreasoner", "sdar_moe", "efficient_dlm")
FAMILIES = (*TRAINED, *RANDOM)
FULL = ("a2d", "rnd1", "illada")  # attention of these; the others have an exact cache


def make_family(name: str, folder: Path) -> Path:
    """``folder`` as a checkpoint of the family, with the tokenizer of ``make_tiny``."""
    if name in TRAINED:
        return make_tiny(folder, MODELS / TRAINED[name])
    make_tiny(folder)
    for file in (folder / "config.json", folder / "model.safetensors"):
        file.unlink()
    published = json.loads((MODELS / name / "config.json").read_text()) | IDS
    save_model(random_model(published), folder)
    return folder
