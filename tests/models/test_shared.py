"""A model object of transformers decoded with as it stands: shared weights, in the middle of a training."""

from __future__ import annotations

from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import published
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dllm import Decoder, Model, UserError, load
from dllm.models.weights import placement
from dllm.parts import (
    ROOM,
    ModelConfig,
    Transformer,
    device_map,
    network_of,
    offloaded_words,
    parameter_sources,
    parts_of,
    room_on_gpu,
    write_weights,
)
from tests.support.masked_lms import MASKED_LMS, masked_lm
from tests.support.tiny import EOS, MASK, make_tiny

SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "mask_token_id": MASK,
    "bos_token_id": None,
}


class A2DConfig(Qwen3Config):
    model_type = "a2d-qwen3"


class A2DQwen3LMHeadModel(Qwen3ForCausalLM):
    """As its published class: the stock one under full attention."""

    config_class = A2DConfig

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        seen = torch.zeros(len(tokens), 1, tokens.shape[1], tokens.shape[1], dtype=self.dtype)
        found: torch.Tensor = self(input_ids=tokens, attention_mask=seen).logits
        return found


def made(tied: bool = True) -> A2DQwen3LMHeadModel:
    torch.manual_seed(0)
    return A2DQwen3LMHeadModel(A2DConfig(**SIZES, tie_word_embeddings=tied, initializer_range=0.2))


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_tiny(tmp_path_factory.mktemp("words") / "tiny")
    return PreTrainedTokenizerFast.from_pretrained(folder)


ITEMS = [[number, number + 1, number + 2] for number in range(3, 23)]  # copy three words: twenty of them


def right(decoder: Decoder) -> int:
    """How many of the twenty items are answered by their own words."""
    return sum(row.canvas == item for row, item in zip(decoder(ITEMS), ITEMS, strict=True))


def trained(model: A2DQwen3LMHeadModel, steps: int) -> None:
    """Steps of a masked objective: the answer, all of it masked, is the prompt."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    given = torch.tensor(ITEMS)
    model.train()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(
            model.logits(torch.cat([given, torch.full_like(given, MASK)], 1))[:, 3:].flatten(0, 1), given.flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_in_training_is_evaluated_as_it_stands(tied: bool, words: Any, tmp_path: Path) -> None:
    """Before and after ten steps, twenty items each, with what a folder saved at that time gives. Nothing is copied, so
    the decoder that was made before the first step sees every one."""
    own = made(tied)
    decoder = Decoder(load(own, words), "confidence", eos="none", gen_length=3, batch_size=4)
    scores = []
    for name in ("before", "after"):
        own.save_pretrained(tmp_path / name)
        again = Decoder(load(tmp_path / name), "confidence", eos="none", gen_length=3, batch_size=4)
        found = decoder(ITEMS)
        assert [row.canvas for row in found] == [row.canvas for row in again(ITEMS)]
        scores.append(right(decoder))
        trained(own, 10 if name == "before" else 60)
    assert right(decoder) > scores[0] and own.training
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in own.parameters())


def test_every_parameter_is_the_object_s_own(words: Any) -> None:
    own = made(tied=False)
    network = load(own, words).transformer
    held = dict(own.named_parameters())
    for ours, source in parameter_sources(network).items():
        assert network.get_parameter(ours) is held[source.name]
    assert len({*map(id, network.parameters())}) == len(held)


def test_logits_are_the_object_s(words: Any) -> None:
    """Within the gate of parity; the stock class rotates by tables of float32, whatever its dtype."""
    own = made()
    model = load(own, words)
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        found = model.transformer.head(model.transformer.encode(tokens))
        assert float((found - own.eval().logits(tokens)).abs().max()) < 1e-5


def test_the_tokenizer_of_transformers_becomes_ours(words: Any) -> None:
    model = load(made(), words)
    assert model.tokenizer is not None and model.tokenizer.encode("w5 w7") == [5, 7]
    assert (model.ids.mask, model.ids.eos) == (MASK, EOS) and model.tokenizer.has_chat_template
    assert Decoder(model, gen_length=3)("w5 w7")[0].text


@pytest.mark.parametrize("name", MASKED_LMS)
def test_a_masked_lm_object_is_called_itself(name: str, words: Any) -> None:
    own = masked_lm(name).train()
    model = load(own, words)
    (row,) = Decoder(model, eos="none", gen_length=6)("w5 w7")
    assert own.training  # left as it was; dropout did not run
    assert row.canvas == Decoder(load(own.eval(), words), eos="none", gen_length=6)("w5 w7")[0].canvas
    assert model.transformer.dtype == torch.float32


class Wrapped(nn.Module):
    """What DDP and the like look like."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def narrowed() -> nn.Module:
    own = made()
    own.config.intermediate_size = 95
    return own


def renamed() -> nn.Module:
    own = made()
    own.model.layers[0].mlp.gate = own.model.layers[0].mlp.gate_proj
    del own.model.layers[0].mlp.gate_proj
    return own


def mixed() -> nn.Module:
    own = made()
    own.model.layers[1].mlp.half()
    return own


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Wrapped(made()), r"Wrapped is not a model object of transformers: it has no config.*DDP: .module"),
        (lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)), "has mask_token_id=60 under Qwen3ForCausalLM, which predicts"),
        (narrowed, r"A2DQwen3LMHeadModel: model.layers.0.mlp.gate_proj.weight has the shape \[96, 48\]"),
        (renamed, r"has no plain tensor model.layers.0.mlp.gate_proj.weight.*save_pretrained"),
        (mixed, r"weights of several kinds \(torch.float16 on cpu, torch.float32 on cpu\)"),
    ],
)
def test_an_object_that_cannot_be_shared_says_why(model: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(model())


def adapted(**options: Any) -> Any:
    peft = pytest.importorskip("peft")
    found = peft.get_peft_model(made(tied=False), peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.5, **options))
    torch.manual_seed(1)
    for name, one in found.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(one, std=0.2)
    return found.train()


def test_adapters_of_peft_decode_and_learn() -> None:
    """Against what merge_and_unload gives; switched off, against the model below. Without dropout, in training too."""
    own = adapted(target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"])
    model, tokens = load(own), torch.arange(2, 26).view(2, 12)

    def logits(of: Any) -> torch.Tensor:
        return of.transformer.logits(of.transformer.encode(tokens))

    with torch.no_grad():
        assert torch.allclose(logits(model), logits(load(deepcopy(own).merge_and_unload())), atol=1e-5)
        assert not torch.allclose(logits(model), logits(load(made(tied=False))), atol=1e-2)
        with own.disable_adapter():
            assert torch.equal(logits(model), logits(load(made(tied=False))))
    assert own.training and own.get_base_model().model.layers[0].self_attn.q_proj.training
    logits(model).square().mean().backward()
    learnt = [name for name, one in own.named_parameters() if one.grad is not None and bool(one.grad.any())]
    assert sorted(learnt) == sorted(name for name, one in own.named_parameters() if one.requires_grad)
    with pytest.raises(UserError, match="peft's adapters are on the object that it shares"):
        write_weights(model, [])


def test_adapters_elsewhere_are_refused() -> None:
    peft = pytest.importorskip("peft")
    for options, layer in (
        ({"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["norm"]}, "norm"),
    ):
        with pytest.raises(UserError, match=rf"{layer} has an adapter and is no Linear here. Put adapters on"):
            load(adapted(**options))
    virtual = peft.get_peft_model(made(), peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    with pytest.raises(UserError, match="adapter 'default' of Peft.* is a PromptTuningConfig, which puts tokens"):
        load(virtual)


def test_a_device_in_the_place_of_the_tokenizer_is_told(tiny: Path) -> None:
    with pytest.raises(UserError, match=r"A device is named: load\(path, device='cuda'\)"):
        load(tiny, "cuda")
    with pytest.raises(UserError, match="tokenizer goes with a model object"):
        load(tiny, load(tiny).tokenizer)


def test_a_stock_object_trained_for_a_family_is_named_by_its_config(words: Any) -> None:
    own = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    own.config.architectures = ["A2DQwen3LMHeadModel"]
    found: Model = load(own, words, attention_block=4)
    assert found.config.attention.name == "answer-blocks"


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
