"""Malformed packed folders by the hundred: each loads, or is refused in one sentence, and the check says the same.

``DLLM_FUZZ=5000`` runs that many (100 by default); a failing case is run alone by its number.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_broken_checkpoints import CASES, bounded
from test_packed_folders import LLADA
from torch import Tensor

from dllm.parts import UserError, inspect_checkpoint, load_model
from tests.support.packed_weights import packed_folder
from tests.support.scaled_weights import FORMS, write_pair

GROUPED: dict[str, dict[str, Any]] = {
    "gptq": {},
    "gptq-8": {"bits": 8},
    "gptq-ordered": {"ordered": True},
    "awq": {"method": "awq"},
}
VALUES = (None, -1, 0, 1, 2, 7, 2**40, 2**63, 1.5, -0.0, float("nan"), True, False, "x", "", "../../x", "re:(",
          "a" * 10**4, [], {}, [[]], [None], {"a": []}, [0, 0], [-1, -1], [2**40, 1], "0x0", "float",
          "Linear")  # fmt: skip
Change = Callable[[Tensor], Tensor | None]
CHANGES: dict[str, Change] = {
    "dropped": lambda held: None,
    "without rows": lambda held: held[:0] if held.dim() else held[None][:0],
    "without columns": lambda held: held[..., :0] if held.dim() else held[None][:0],
    "a number": lambda held: held.reshape(-1)[:1].clone().reshape(()),
    "flat": lambda held: held.reshape(-1),
    "doubled": lambda held: torch.cat([held, held]) if held.dim() else held.repeat(2),
    "cut": lambda held: held[:-1] if held.dim() else held,
    "narrower": lambda held: held[..., :-1] if held.dim() else held,
    "deeper": lambda held: held[None],
    "transposed": lambda held: held.t() if held.dim() == 2 else held,
    "bytes": lambda held: held.reshape(-1).view(torch.uint8),
    "wider kind": lambda held: held.to(torch.int64) if not held.is_floating_point() else held.to(torch.float64),
    "truths": lambda held: held != held,
    "inverted": lambda held: held.reshape(-1).view(torch.uint8).bitwise_not().view(held.dtype).reshape(held.shape),
    "zeros": lambda held: torch.zeros_like(held),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The sound folder of a form, written when it is first asked for."""
    root = tmp_path_factory.mktemp("packed")

    def folder(form: str) -> Path:
        place = root / form
        if not place.exists():
            if form in GROUPED:
                write_pair(FORMS["int8"], LLADA, root / "unused", root / "plain")
                packed_folder(root / "plain", place, root / "again", **GROUPED[form])
            else:
                write_pair(FORMS[form], LLADA, place, root / "wide")
        return place

    return folder


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in parsed JSON."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*before, key)
        yield from paths(one, (*before, key))


def spoil(folder: Path, chance: random.Random) -> str:
    """Change a value of config.json's words about packed weights, or a tensor, and say what."""
    config = json.loads((folder / "config.json").read_text())
    key = next(key for key in config if "quant" in key)
    if chance.random() < 0.5:
        *inner, last = (key, *chance.choice([(), *paths(config[key])]))
        place: Any = config
        for one in inner:
            place = place[one]
        place[last] = value = chance.choice(VALUES)
        (folder / "config.json").write_text(json.dumps(config))
        return f"{'.'.join(map(str, (*inner, last)))}={str(value)[:30]}"
    tensors = load_file(folder / "model.safetensors")
    packed = [name for name in tensors if ".blocks." in name and "norm" not in name]
    name, how = chance.choice(sorted(packed)), chance.choice(sorted(CHANGES))
    changed = CHANGES[how](tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous().clone()
    if chance.random() < 0.1:
        tensors[f"{name.rpartition('.')[0]}.{chance.choice(['weight_scale_2', 'scales', 'qzeros', 'SCB'])}"] = (
            torch.ones(3)
        )
    save_file(tensors, folder / "model.safetensors")
    return f"{name} {how}"


@pytest.mark.parametrize("number", range(CASES))
def test_a_malformed_packed_folder_is_refused_or_loads(
    number: int, sound: Callable[[str], Path], tmp_path: Path
) -> None:
    chance = random.Random(f"packed {number}")
    form = chance.choice([*FORMS, *GROUPED])
    folder = shutil.copytree(sound(form), tmp_path / "case")
    what = [f"{form}: {spoil(folder, chance)}"]
    if chance.random() < 0.2:
        what.append(spoil(folder, chance))
    with bounded():
        report = inspect_checkpoint(folder)
        try:
            load_model(folder)
        except UserError as error:
            assert str(error).endswith(".") and len(str(error)) < 1000, what
            assert not report.usable or "is not a number" in str(error), what  # headers do not show it
        else:
            assert report.usable, (what, report.problems)


@pytest.mark.parametrize("value", [None, [], 1.5, "true", 2**40])
def test_a_flag_is_true_or_false(value: Any, sound: Callable[[str], Path], tmp_path: Path) -> None:
    """Its truth would read the zeros, or drop them, without a word."""
    for form, inside in (("int8-zeros", "symmetric"), ("nf4", "load_in_4bit")):
        folder = shutil.copytree(sound(form), tmp_path / form)
        config = json.loads((folder / "config.json").read_text())
        said = config["quantization_config"]
        (said["config_groups"]["group_0"]["weights"] if form == "int8-zeros" else said)[inside] = value
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=f"{inside}.*true or false"):
            load_model(folder)
