"""What each rank holds, from a description alone; memory that runs out on one rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import local
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rank_threads import threads, together

from dllm import Decoder, load
from dllm.loop.runtime import out_of_memory
from dllm.parts import (
    PROCESS,
    Ranks,
    TooLarge,
    TooLargeForRanks,
    Transformer,
    Turn,
    UserError,
    digest_of,
    load_model,
    read_model_config,
    refuse_differences,
    refuse_ranks,
    share_lines,
)
from tests.support.tiny import MODELS

MINI = load("mini-llada").config


def test_a_rank_holds_its_share_of_all_but_embedding_and_norms() -> None:
    """LLaDA's shapes: of each layer q, k, v, o and three matrices of the MLP are divided, and the head's rows."""
    width, layers = MINI.width, MINI.layers
    cut = layers * (4 * width * width + 3 * width * MINI.mlp_width) / 2 + -(-MINI.vocab // 2) * width * (not MINI.tied)
    whole = MINI.vocab * width + (2 * layers + 1) * width
    line = next(share_lines(MINI, 2, False))
    assert line.startswith(f"model.tp=2 bfloat16: each rank holds {(2 * (cut + whole) + PROCESS) / 2**30:.3g} GiB")
    assert f"{1024 * 2 * layers * width * 2 / 2 / 2**30:.3g} of keys and values of 1,024 tokens" in line
    assert "2 of 16 GB or more" in line


def test_what_cannot_be_cut_is_refused_with_its_numbers() -> None:
    with pytest.raises(UserError, match=r"tp=3 must divide the model's attention heads, and 4 is not"):
        next(share_lines(MINI, 3, False))
    narrow = dict(line.split(": ", 1) for line in share_lines(read_model_config(MODELS / "llada2_moe"), 2, False))
    assert "is not a multiple of" in narrow["model.tp=2 int4"]


def test_more_ranks_than_gpus_are_refused_before_any_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="model.tp=2 needs a GPU for each rank, and torch finds 1. Set model.tp=1"):
        refuse_ranks({"device": "cuda", "tp_timeout": 60}, 2, "local")


@pytest.mark.parametrize(("name", "theirs"), [("PyTorch", "2.0.1"), ("dllm", "0.0.9"), ("gen_length", "9")])
def test_the_first_difference_between_ranks_is_named(name: str, theirs: str) -> None:
    settings = {"model": {"path": "mini-llada", "tp": 2}, "gen_length": 8}
    own = digest_of(settings)
    links: Any = SimpleNamespace(leads=True, size=2, links=[None], hear=lambda: (1, {**own, name: theirs}))
    sentence = f"model.tp=2: {name} is {own[name]} on rank 0 and {theirs} on rank 1. Give all ranks the same."
    with pytest.raises(UserError, match=re.escape(sentence)):
        refuse_differences(links, settings)


def test_memory_that_runs_out_on_a_rank_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("mini-llada")
    decoder = Decoder(model, gen_length=8)

    def full(*given: object) -> Iterator[Turn]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(decoder.runner), "_stream", full)
    monkeypatch.setattr(model.transformer, "config", replace(model.config, ranks=Ranks(1, 2)))
    with pytest.raises(TooLarge, match="a batch of 1 does not fit into the memory of rank 1 of 2"):
        decoder("a")


def test_a_gpu_has_what_is_free_and_what_pytorch_keeps_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("mem_get_info", (50, 900)), ("memory_reserved", 30), ("memory_allocated", 10)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert out_of_memory.free_bytes(torch.device("cuda"), 2) == 50 + 30 - 10


def test_ranks_refuse_a_batch_together_where_one_lacks_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least memory counts."""
    folder, ranks = Path("dllm/models/checkpoints/mini-llada"), threads(2)
    networks = together(ranks, lambda rank: load_model(folder, ranks=ranks[rank]))
    free = {ranks[0]: 10**12, ranks[1]: 3 * row_bytes(networks[1])}
    monkeypatch.setattr(out_of_memory, "free_bytes", lambda device, size: free[asking.rank])

    class Asking(local):
        rank: Ranks

    asking, model, said = Asking(), load("mini-llada"), [""] * 2

    def decode(number: int) -> list[list[int]]:
        asking.rank = ranks[number]
        decoder = Decoder(replace(model, transformer=networks[number]), gen_length=24, cache="dual", batch_size=5)
        try:
            decoder([[1] * 8] * 5)
        except TooLargeForRanks as error:
            said[number] = str(error)
        return [one.canvas for one in decoder([[1] * 8] * 2)]

    first, second = together(ranks, decode)
    assert first == second and said[0] == said[1]
    assert "a batch of 5 does not fit" in said[0] and "but 2 of it do. Use batch_size=2." in said[0]


def row_bytes(network: Transformer) -> int:
    """Of keys and values of 32 columns, and a slot for padding, in float32."""
    heads = [network.config.key_heads(layer) for layer in range(network.config.layers)]
    return sum(2 * count * size for count, size in heads) * 33 * 4
