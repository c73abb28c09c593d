"""learn2pd: a filter reads the block's confidences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import DATA
from safetensors.torch import save_file
from torch import Tensor

from dllm import UserError
from dllm.parts import Fixed, Learn2PD, Selection, Setting, read_model_config, refuse_clashes
from tests.samplers.game import Game


def passing(width: int, scale: float = 10.0, bar: float = 0.5) -> dict[str, Tensor]:
    """A filter whose logit is scale (c - bar) at each position (for c >= 0 the ReLU does nothing)."""
    eye = torch.eye(width)
    return {
        "linear1.weight": eye,
        "linear1.bias": torch.zeros(width),
        "linear2.weight": scale * eye,
        "linear2.bias": torch.full((width,), -scale * bar),
    }


def test_what_the_filter_believes_is_committed_with_the_quota() -> None:
    game = Game(Learn2PD(passing(4), threshold=0.9), 4)
    assert game.turn([0.8, 0.6, 0.9, 0.7]) == [0, 2]  # sigmoid(3), sigmoid(1), sigmoid(4), sigmoid(2) = 0.88
    assert game.accepted == [0, 2]
    assert game.turn([0.0, 0.6, 0.0, 0.5]) == [1] and game.accepted == []


def test_the_threshold_is_strict() -> None:
    game = Game(Learn2PD(passing(2), threshold=0.5), 2)
    game.turn([0.5, 0.4])
    assert game.accepted == []
    game = Game(Learn2PD(passing(2), threshold=1.0), 2)
    game.turn([1.0, 1.0])
    assert game.accepted == []


def test_a_short_block_is_padded_with_zeros() -> None:
    weights = passing(6)
    weights["linear2.weight"][0, 2:] = 100.0  # position 0 is believed as soon as any of 2 to 5 shows confidence
    assert Game(Learn2PD(weights), 8, block=6).turn([0.4, 0.4, 0.3, 0.3, 0.3, 0.3, 0.9, 0.9]) == [0]
    game = Game(Learn2PD(weights, threshold=0.6), 8, block=6)
    game.commit(range(6))
    assert game.turn([0.9] * 6 + [0.4, 0.45]) == [6 + 1] and game.accepted == []


def test_it_reads_committed_positions_too() -> None:
    weights = passing(3)
    weights["linear2.weight"][2, 0] = 100.0
    game = Game(Learn2PD(weights), 3)
    game.commit([0])
    assert game.turn([0.5, 0.4, 0.2]) == [1, 2] and game.accepted == [2]


def stored(folder: Path, model: str = "tiny-llada", width: int = 8) -> str:
    save_file(passing(width), folder / "filter.safetensors", {"model": model, "block_length": str(width)})
    return str(folder / "filter.safetensors")


def test_a_filter_for_another_block_length_or_model_is_refused(tmp_path: Path) -> None:
    config = read_model_config(DATA / "models" / "tiny-llada")
    sampler = Learn2PD(stored(tmp_path))
    refuse_clashes(
        Selection(Setting(config, Fixed(8), 32, name="tiny-llada"), sampler), ("sampler", sampler, sampler.clashes)
    )
    with pytest.raises(UserError, match=r"blocks\.block_length=16 is not the 8 .* Set blocks\.block_length=8"):
        refuse_clashes(
            Selection(Setting(config, Fixed(16), 32, name="tiny-llada"), sampler), ("sampler", sampler, sampler.clashes)
        )
    with pytest.raises(UserError, match=r"blocks\.block_length=4 is not the 8 "):
        refuse_clashes(
            Selection(Setting(config, Fixed(4), 32, name="tiny-llada"), sampler), ("sampler", sampler, sampler.clashes)
        )
    with pytest.raises(UserError, match="was trained on tiny-llada, the model is mini-dream.*Train a filter"):
        refuse_clashes(
            Selection(Setting(config, Fixed(8), 32, name="mini-dream"), sampler), ("sampler", sampler, sampler.clashes)
        )


def test_a_file_that_is_no_filter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    for name in ("x.safetensors", "nowhere.safetensors"):
        with pytest.raises(UserError, match=r"sampler\.filter=.* is not a filter file"):
            Learn2PD(str(tmp_path / name))


def test_without_a_filter_the_one_that_comes_with_the_model_is_used() -> None:
    config = read_model_config(DATA / "models" / "tiny-llada")
    sampler = Learn2PD()
    settings = (Setting(config, Fixed(32), 64, name=name) for name in ("mini-llada", "mini-dream"))
    llada, dream = (sampler.resolved(setting) for setting in settings)
    assert [one.trained["model"] for one in (llada, dream)] == ["mini-llada", "mini-dream"]
    assert llada.width == dream.width == 32 and not sampler.weights, "the part itself has not changed"
    with pytest.raises(UserError, match=r"this model \(other\) and block length \(32\)\. Make one with: dllm train"):
        sampler.resolved(Setting(config, Fixed(32), 64, name="other"))
