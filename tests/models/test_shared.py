"""A model object of transformers decoded with as it stands: shared weights, in the middle of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dllm import Decoder, Model, UserError, load
from dllm.models.names import parameter_sources
from tests.support.masked_lms import MASKED_LMS, masked_lm
from tests.support.tiny import EOS, MASK, make_tiny

SIZES = {
    "vocab_size": 64, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "eos_token_id": EOS, "pad_token_id": EOS,
    "mask_token_id": MASK, "bos_token_id": None,
}  # fmt: skip


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


@pytest.mark.parametrize(("model", "message"), [
    (lambda: Wrapped(made()), r"Wrapped is no model object of transformers: it has no config.*DDP: .module"),
    (lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)), r"names architectures=\['Qwen3ForCausalLM'\]"),
    (narrowed, r"A2DQwen3LMHeadModel: model.layers.0.mlp.gate_proj.weight has the shape \[96, 48\]"),
    (renamed, r"has no plain tensor model.layers.0.mlp.gate_proj.weight.*save_pretrained"),
    (mixed, r"weights of several kinds \(torch.float16 on cpu, torch.float32 on cpu\)"),
])  # fmt: skip
def test_an_object_that_cannot_be_shared_says_why(model: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(model())


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
