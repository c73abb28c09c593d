"""A LoRA for drafts alone: they are the adapted model's, and the text is the base's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dllm import Decoder, Model, UserError, load, part
from dllm.parts import ALL, Adapter, Exchanged, KeyValues, Memory, Projected, Transformer, load_model
from tests.support.adapters import DATA, adapted
from tests.support.plain_causal import Triangle
from tests.support.tiny import make_tiny

MASK, SOURCE = 60, DATA / "tiny-nemotron"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On the output of attention, as published, and strong enough to change what is drafted."""
    folder = tmp_path_factory.mktemp("lora")
    adapted(SOURCE, folder, target_modules=r".*o_proj", lora_alpha=40)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("base") / "nemotron", SOURCE)


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(MASK) for _ in range(draw.randint(2, 9))] for _ in range(count)]


def decoder(model: Model, batch_size: int = 1) -> Decoder:
    return Decoder(
        model,
        "linear_spec",
        "sliding",
        part("cache", "linear_spec", window_length=6),
        "stop_front",
        gen_length=14,
        batch_size=batch_size,
    )


def test_the_text_is_the_base_s_and_forwards_are_others(base: Path, lora: Path) -> None:
    """In a batch whose rows draft and judge in the same forward, too."""
    plain, adaptive = load(base, dtype="float64"), load(base, dtype="float64", draft_adapter=lora)
    wanted, found = decoder(plain)(prompts(20)), decoder(adaptive, 4)(prompts(20))
    assert [row.tokens for row in found] == [row.tokens for row in wanted]
    assert [row.nfe for row in found] != [row.nfe for row in wanted]
    assert adaptive.draft_adapter == lora and "draft" not in dict(adaptive.transformer.named_parameters())


class Behind(Memory):
    """Rows that see keys and values of before, and all of one another."""

    def __init__(self, before: list[KeyValues]) -> None:
        self.before = before

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        query, *own = fresh.rotated()
        keys, values = (torch.cat([old, new], 2) for old, new in zip(self.before[layer], own, strict=True))
        return query, keys, values, ALL


def drafted(base: Transformer, merged: Transformer, tokens: list[int], width: int) -> list[int]:
    """What the adapted network drafts behind a causal context of the base's."""
    memory, length = Triangle(), len(tokens) - 1 + width
    positions = torch.arange(length)[None]
    with torch.inference_mode():
        base(torch.tensor([tokens[:-1]]), positions[:, : len(tokens) - 1], memory)
        window = torch.tensor([[tokens[-1], *[MASK] * (width - 1)]])
        rows = merged(window, positions, Behind(memory.layers), positions[:, len(tokens) - 1 :])[0]
        logits = merged.head(rows)[0, 1:]
        return logits.index_fill(1, torch.tensor([MASK]), -torch.inf).argmax(-1).tolist()


def test_drafts_are_the_adapted_model_s_behind_the_base_s_context(base: Path, lora: Path) -> None:
    network = load_model(base, dtype=torch.float64)
    merged, others = load_model(base, dtype=torch.float64, adapter=Adapter.read(lora)), 0
    own = decoder(load(base, dtype="float64", draft_adapter=lora))
    for prompt in prompts(6):
        _, turn, *_ = own.turns(prompt)
        scored = turn.view.scores.scored[0]
        tokens = [*prompt, int(turn.canvas.tokens[0, len(prompt)])]
        found = turn.view.scores.token[0, scored].tolist()
        assert found == drafted(network, merged, tokens, 6)
        others += found != drafted(network, network, tokens, 6)
    assert others > 2


def test_what_drafts_cannot_be_adapted_by_is_refused(base: Path, lora: Path, tmp_path: Path) -> None:
    adapted(SOURCE, tmp_path / "all")
    with pytest.raises(UserError, match=r"draft_adapter=.* adapts .*, and drafts are adapted at the output of att"):
        load(base, draft_adapter=tmp_path / "all")
    with pytest.raises(UserError, match="no causal row judges drafts where, as in LLaDAModelLM, attention is full"):
        load(make_tiny(tmp_path / "llada"), draft_adapter=lora)
    with pytest.raises(UserError, match="draft_adapter='.*' holds no adapter_config.json"):
        load(base, draft_adapter=tmp_path)
