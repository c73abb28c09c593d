"""Random test models are drawn from their seeds, bit for bit those on which the published code was recorded."""

from __future__ import annotations

import hashlib
import lzma

import pytest

from tests.support.drawn_models import MODELS, RECIPES, SINGLE, drawn


@pytest.mark.parametrize("name", RECIPES)
def test_drawn_weights_are_those_of_the_recorded_logits(name: str) -> None:
    made = {file: hashlib.sha256(data).hexdigest() for file, data in drawn(name).items()}
    assert made == RECIPES[name]["sha256"], "this CPU's PyTorch draws other normal numbers (recorded with AVX2)"


def test_every_test_model_has_its_plain_weights() -> None:
    assert all([*folder.glob("model*.safetensors")] for folder in MODELS.iterdir())
    for name, recipe in RECIPES.items():
        for file, digest in recipe["sha256"].items():
            assert hashlib.sha256((MODELS / name / file).read_bytes()).hexdigest() == digest
    for packed in MODELS.glob(f"*/{SINGLE}.xz"):
        assert packed.with_suffix("").read_bytes() == lzma.decompress(packed.read_bytes())
