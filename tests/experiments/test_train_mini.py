"""The training script: resuming changes nothing, masks are what they should be, mini-dream starts from mini-llada."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dllm.models.fused import apart
from dllm.models.weights import load_model
from experiments import mini_data, mini_tokenizer
from experiments.train_mini import Recipe, build_model, fixed_ratio_batch, gate, train

TINY = {"width": 16, "head_dim": 8, "layers": 1, "mlp_width": 24, "batch": 3, "steps": 5}


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_resuming_gives_the_same_weights(tmp_path: Path) -> None:
    recipe = Recipe(**TINY)
    straight = weights(train(recipe, tmp_path / "straight"))
    train(recipe, tmp_path / "parts", stop_at=2)
    resumed = weights(train(recipe, tmp_path / "parts", resume=True))
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    shipped = dict(apart(load_model(tmp_path / "straight")))
    assert all(torch.equal(straight[name], shipped[name]) for name in straight)


def test_mini_dream_takes_over_what_it_shares(tmp_path: Path) -> None:
    llada = train(Recipe(**TINY | {"steps": 1}), tmp_path)
    dream = build_model(Recipe(model="mini-dream", init_from=str(tmp_path), **TINY), llada.config.vocab)
    assert dream.config.prediction_shift == 1
    assert torch.equal(dream.layers[0].attn.q.weight, llada.layers[0].attn.q.weight)
    assert not dream.layers[0].attn.q.bias.any()


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.5])
def test_batches_mask_answers_only(progress: float) -> None:
    tokenizer = mini_tokenizer.build("mini-llada")
    structure = mini_data.punctuation(tokenizer)
    for step in range(5):
        batch = mini_data.make_batch(tokenizer, "mini-llada", structure, 7, progress, 0, step)
        assert batch.masked.any(1).all() and not (batch.masked & ~batch.valid).any()
        assert (batch.tokens[batch.masked] == mini_tokenizer.MASK).all()
        assert torch.equal(batch.tokens[~batch.masked], batch.target[~batch.masked])
        assert (batch.target != mini_tokenizer.MASK).all()


def test_gate_masks_content_and_reports_every_task() -> None:
    tokenizer = mini_tokenizer.build("mini-llada")
    batch = fixed_ratio_batch(tokenizer, "mini-llada", "copy", 1.0, 3)
    decoded = tokenizer.decode(batch.tokens[0].tolist(), skip_special_tokens=False)
    assert decoded.count("<|mdm_mask|>") in (3, 4, 5)
    model = build_model(Recipe(**TINY), tokenizer.get_vocab_size()).eval()
    assert set(gate(model, tokenizer, "mini-llada", 2)) == set(mini_data.SHARES)
