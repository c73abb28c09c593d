"""Files of rollouts by others: each loads as what ``Rollouts`` says of itself, or is refused in a sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dllm import Decoder, load
from dllm.parts import HEADER_KEY, Rollouts, UserError
from tests.rl.test_rollouts import DATA

Held = tuple[dict[str, Tensor], Any]
ODD: list[Any] = [None, True, -1, 2**63, 1e999, float("nan"), "x", "", [], [[1]], ["x"], {}, {"a": 1}, 1.5, [None]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose prompts and answers all have one length, so that nothing but its meaning tells a transposed tensor."""
    file = tmp_path_factory.mktemp("rollouts") / "whole"
    model = load(DATA / "models" / "tiny-llada", dtype="float64", trainable=True)
    decoder = Decoder(model, sampler="static", gen_length=4, eos="none", temperature=1.0)
    decoder.rollouts([[5, 6, 7, 8], [9, 5, 6]], n=2, seed=3, draws=True).save(file)
    return file


def held(file: Path) -> Held:
    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, json.loads(opened.metadata()[HEADER_KEY])  # noqa: SIM118


def loaded(tensors: dict[str, Tensor], told: str, file: Path) -> Rollouts:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {HEADER_KEY: told})
    return Rollouts.load(file)


def test_what_was_saved_is_taken(whole: Path) -> None:
    tensors, told = held(whole)
    assert set(told) >= {"finish", "texts", "results", "sampling", "mask_id"} and len(tensors) >= 16
    Rollouts.load(whole)


def tensor(name: str, change: Callable[[Tensor], Tensor | None]) -> Callable[[Held], None]:
    def changed(what: Held) -> None:
        new = change(what[0].pop(name))
        if new is not None:
            what[0][name] = new

    return changed


def said(place: str, value: Any) -> Callable[[Held], None]:
    *above, last = place.split(".")

    def changed(what: Held) -> None:
        found = what[1]
        for key in above:
            found = found[int(key) if key.isdigit() else key]
        found[last] = value

    return changed


WRONG: dict[str, Callable[[Held], None]] = {
    "mask": said("mask_id", "x"),
    "no mask": said("mask_id", None),
    "mask of 64 bits": said("mask_id", 2**63),
    "pad": said("pad_id", -1),
    "texts": said("texts", -1),
    "fewer texts": said("texts", ["a"]),
    "blocks": said("by_block", [[1]]),
    "ends": said("ends", [1.5]),
    "finish": said("finish", ["eos", "eos", "eos", "?"]),
    "heat": said("sampling.temperature", 1e999),
    "top": said("sampling.top_k", "x"),
    "unknown": said("sampling.nonsense", 1),
    "limits": said("limits", {"x": "y"}),
    "seconds": said("results.0.seconds", float("nan")),
    "tokens": said("results.0.tokens", "abc"),
    "report": said("results.0.constraint", {"kind": 1}),
    "row": said("results", [None] * 4),
    "more": said("strange", 1),
    "tensor in words": said("seeds", [1, 2, 3, 4]),
    "transposed ids": tensor("completion_ids", lambda x: x[:3].T),
    "float ids": tensor("prompt_ids", Tensor.double),
    "half logps": tensor("own_logps", Tensor.half),
    "negative ids": tensor("completion_ids", lambda x: x - 1000),
    "transposed mask": tensor("prompt_mask", lambda x: x.T),
    "mask of twos": tensor("completion_mask", lambda x: x * 2),
    "prompt of twos": tensor("prompt_mask", lambda x: x * 2),
    "turned mask": tensor("prompt_mask", lambda x: x.flip(1)),
    "positive logps": tensor("drawn_logps", lambda x: -x + 1),
    "infinite": tensor("own_logps", lambda x: x + torch.inf),
    "hot": tensor("temperature", lambda x: x + torch.inf),
    "nan": tensor("temperature", lambda x: x * torch.nan),
    "origin": tensor("origin", lambda x: x + 5),
    "steps": tensor("step_map", lambda x: x + 100),
    "forwards": tensor("forwards", lambda x: x + 100),
    "width": tensor("width", lambda x: x + 100),
    "narrow": tensor("width", lambda x: x * 0),
    "rows": tensor("seeds", lambda x: x[:2]),
    "flat": tensor("block", Tensor.flatten),
    "missing": tensor("group", lambda x: None),
    "shape of draws": tensor("draw_ids", lambda x: x.transpose(0, 2)[:, :, :1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_nonsense_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    what = held(whole)
    WRONG[name](what)
    with pytest.raises(UserError, match="holds no rollouts") as refused:
        loaded(what[0], json.dumps(what[1]), tmp_path / "x")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("told", ["null", "5", "[]", "{}", "1e999", "[" * 5000, "{", '{"a": ', "\x00"])
def test_a_header_that_is_none_is_refused(told: str, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rollouts"):
        loaded(held(whole)[0], told, tmp_path / "x")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(UserError, match="holds no rollouts"):
            Rollouts.load(file)


def somewhere(value: Any, dice: random.Random) -> Any:
    """Settings with an odd value in one place."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(sorted(value))
        return {**value, key: somewhere(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        return [*value[:at], somewhere(value[at], dice), *value[at + 1 :]]
    return dice.choice(ODD)


def bent(one: Tensor, dice: random.Random) -> Tensor:
    """A tensor in another kind or shape, or with an odd number in one place."""
    change = dice.randrange(5)
    if change == 0:
        return one.to(dice.choice([torch.int64, torch.int32, torch.int8, torch.float64, torch.bool, torch.bfloat16]))
    if change == 1:
        return one.reshape(dice.choice([[-1], [1, -1], [-1, 1], [*one.shape, 1], [*one.shape[::-1]]]))
    if change == 2:
        return one[: dice.randrange(len(one) + 1)]
    flat = one.clone().flatten()
    odd = [torch.nan, torch.inf] if one.is_floating_point() else []
    flat[dice.randrange(len(flat))] = dice.choice([-1, 1, 5, 100, *odd])
    return flat.reshape(one.shape)


def test_whatever_a_file_holds_it_loads_or_is_refused(whole: Path, tmp_path: Path) -> None:
    dice, tensors, told = random.Random(5), *held(whole)
    taken = 0
    for _ in range(400):
        name = dice.choice(sorted(tensors))
        changed = dice.random() < 0.5
        held_now = {**tensors, name: bent(tensors[name], dice)} if changed else tensors
        try:
            found = loaded(held_now, json.dumps(told if changed else somewhere(told, dice)), tmp_path / "x")
        except UserError as error:
            assert "holds no rollouts" in str(error) and "\n" not in str(error)
            continue
        taken += 1
        found.select([0]), found.advantages([1.0] * len(found)), found.asked, found.given
    assert taken < 200
    data = whole.read_bytes()
    for _ in range(200):
        cut = bytearray(data[: dice.randrange(len(data))] if dice.random() < 0.3 else data)
        for _ in range(dice.randrange(1, 4)):
            if cut:
                cut[dice.randrange(min(len(cut), 6000))] ^= 1 << dice.randrange(8)
        (tmp_path / "y").write_bytes(cut)
        try:
            Rollouts.load(tmp_path / "y")
        except UserError as error:
            assert "holds no rollouts" in str(error)
