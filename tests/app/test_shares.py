"""What each rank holds, from a description alone; memory that runs out on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from dllm import Decoder, load
from dllm.app.commands.shares import share_lines
from dllm.common.ranks import Ranks
from dllm.contract import Turn
from dllm.errors import TooLarge, UserError
from dllm.models.footprint import PROCESS
from dllm.models.weights import read_model_config
from tests.support.tiny import MODELS

MINI = load("mini-llada").config


def test_a_rank_holds_its_share_of_all_but_embedding_and_norms() -> None:
    """LLaDA's shapes: of each layer q, k, v, o and three matrices of the MLP are divided, and the head's rows."""
    width, layers = MINI.width, MINI.layers
    cut = layers * (4 * width * width + 3 * width * MINI.mlp_width) / 2 + -(-MINI.vocab // 2) * width * (not MINI.tied)
    whole = MINI.vocab * width + (2 * layers + 1) * width
    line = next(share_lines(MINI, 2, False))
    assert line.startswith(f"model.tp=2 bfloat16: each rank holds {(2 * (cut + whole) + PROCESS) / 1e9:.1f} GB")
    assert f"{2 * layers * width * 2 / 2 / 1e3:.1f} kB of keys and values a token" in line
    assert "2 of 16 GB or more" in line


def test_what_cannot_be_cut_is_refused_with_its_numbers() -> None:
    with pytest.raises(UserError, match=r"model.tp=3 must divide the model's attention heads, and 4 is not"):
        next(share_lines(MINI, 3, False))
    narrow = dict(line.split(": ", 1) for line in share_lines(read_model_config(MODELS / "llada2_moe"), 2, False))
    assert "is not a multiple of" in narrow["model.tp=2 int4"]


def test_memory_that_runs_out_on_a_rank_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("mini-llada")
    decoder = Decoder(model, gen_length=8)

    def full(*given: object) -> Iterator[Turn]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(decoder.runner), "stream", full)
    monkeypatch.setattr(model.transformer, "config", replace(model.config, ranks=Ranks(1, 2)))
    with pytest.raises(TooLarge, match="a batch of 1 does not fit into the memory of rank 1 of 2"):
        decoder("a")
