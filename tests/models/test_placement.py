"""``device=auto`` on GPUs that are not there: balanced, with room on each, a line for what lies in the CPU's memory."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from model_folders import published

from dllm.errors import UserError
from dllm.models import placement
from dllm.models.config import ModelConfig
from dllm.models.networks import network_of
from dllm.models.placement import ROOM, device_map, offloaded_words, room_on_gpu
from dllm.models.transformer import Transformer
from dllm.models.weights import parts_of

GIB = 2**30


@pytest.fixture(scope="module")
def flash() -> Transformer:
    """LLaDA2.0-flash in shape, 103 billion numbers, without weights. Its experts are few and wide here."""
    config = published("llada2_moe", hidden_size=4096, num_hidden_layers=32, num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=65536, intermediate_size=9216, vocab_size=157184, num_attention_heads=32,
                       num_key_value_heads=4, head_dim=128, rotary_dim=64, n_group=1, topk_group=1)  # fmt: skip
    with torch.device("meta"):
        return network_of(ModelConfig.from_published(config))


def placed(model: Transformer, gpus: list[int], monkeypatch: pytest.MonkeyPatch, memory: int = 999) -> dict[str, str]:
    monkeypatch.setattr(placement, "free_memory", lambda: ([gib * GIB for gib in gpus], memory * GIB))
    return device_map(model, torch.bfloat16, [name for name, _ in parts_of(model)])


def loads(model: Transformer, found: dict[str, str]) -> dict[str, int]:
    sizes = {name: 2 * sum(one.numel() for one in model.get_submodule(name).parameters()) for name in found}
    return {place: sum(size for name, size in sizes.items() if found[name] == place) for place in {*found.values()}}


@pytest.mark.parametrize(
    ("gpus", "used"), [([79] * 4, 4), ([79] * 8, 8), ([140] * 2, 2), ([300, 300], 1), ([110, 60, 110], 3)]
)
def test_it_lies_on_one_gpu_or_on_all_as_evenly_as_can_be(
    gpus: list[int], used: int, flash: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = flash
    found = placed(model, gpus, monkeypatch)
    taken, room = loads(model, found), room_on_gpu(model, torch.bfloat16)
    assert room == ROOM + 3 * 4 * 4096 * 65536 * 2, "the experts of a layer are in memory twice while they are stacked"
    assert sorted(taken) == [f"cuda:{number}" for number in range(used)]
    for place, count in taken.items():
        assert count <= gpus[int(place[5:])] * GIB - room
    order = [int(place[5:]) for place in found.values()]
    assert order == sorted(order), "neighbours lie together"
    sizes = [2 * sum(one.numel() for one in model.get_submodule(name).parameters()) for name in found]
    best = 10**12
    for cut in combinations(range(1, len(sizes)), used - 1) if used < 8 else ():
        ends = (0, *cut, len(sizes))
        parts = [sum(sizes[begin:end]) for begin, end in zip(ends, ends[1:], strict=False)]
        if all(part <= gpu * GIB - room for part, gpu in zip(parts, gpus, strict=False)):
            best = min(best, max(parts))
    assert max(taken.values()) <= best, "brute force over all ways to cut"


def test_what_no_gpu_holds_is_told_in_gigabytes_and_seconds(
    flash: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = flash
    found = placed(model, [79, 79], monkeypatch)
    count = loads(model, found)["cpu"]
    assert count > 40e9 and [*found.values()].count("cpu") > 5
    said = offloaded_words(model, found, torch.bfloat16)
    assert f"{count / 1e9:.1f} GB" in said and f"about {count / 25e9:.1f} s at 25 GB/s" in said
    assert offloaded_words(model, placed(model, [140, 140], monkeypatch), torch.bfloat16) == ""
    with pytest.raises(UserError, match=r"takes .* GiB in bfloat16, and the 2 GPUs and the CPU have 168\.0 GiB free"):
        placed(model, [79, 79], monkeypatch, memory=10)


def test_a_tied_head_lies_where_the_embedding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = network_of(ModelConfig.from_published(published("llada_gqa_tied")))
    monkeypatch.setattr(placement, "ROOM", 0)
    monkeypatch.setattr(placement, "free_memory", lambda: ([150_000] * 8, 10**9))
    found = device_map(model, torch.float32, [name for name, _ in parts_of(model)])
    assert found["lm_head"] == found["embed"] and len({*found.values()}) > 1
