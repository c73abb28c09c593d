"""Files of rollouts, which may be somebody else's: what they hold has the kinds and shapes of ``Rollouts``.

A trainer learns from these numbers, so one that is nonsense is found here, not far away in its loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from dllm.contract.constrained import ConstraintReport
from dllm.contract.setting import Sampling
from dllm.record.results import Result

REAL = (torch.float32, torch.float64)
# Each tensor's shape in the letters of ``rollouts``, its dtypes, and the range of its numbers
# (None: no limit).
TENSORS: dict[str, tuple[str, tuple[torch.dtype, ...], tuple[float | None, float | None]]] = {
    "prompt_ids": ("RL", (torch.int64,), (0, None)),
    "prompt_mask": ("RL", (torch.int64,), (0, 1)),
    "completion_ids": ("RG", (torch.int64,), (0, None)),
    "completion_mask": ("RG", (torch.int64,), (0, 1)),
    "step_map": ("RG", (torch.int32,), (0, None)),
    "origin": ("RG", (torch.int8,), (0, 4)),
    "own_logps": ("RG", REAL, (None, 1e-3)),
    "drawn_logps": ("RG", REAL, (None, 1e-3)),  # above 0 by rounding alone
    "block": ("RG", (torch.int32,), (0, None)),
    "width": ("RT", (torch.int32,), (0, None)),
    "forwards": ("R", (torch.int64,), (0, None)),
    "seeds": ("R", (torch.int64,), (0, None)),
    "group": ("R", (torch.int64,), (0, None)),
    "temperature": ("R", (torch.float64,), (0, 1e9)),
    "bent": ("R", (torch.bool,), (0, 1)),
    "draw_ids": ("RTG", (torch.int32,), (-1, None)),
    "canvas_ids": ("RTG", (torch.int32,), (0, None)),
}
MAY_LACK = ("draw_ids", "canvas_ids")
WITH_NAN = ("own_logps", "drawn_logps")
FINISH = ("eos", "stop_string", "length")
LIMITS = ("slices", "drawn", "draws")


def check_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError, which names it, for a tensor that is missing, unknown, of another shape or kind, or out of its
    range, and for tensors that contradict each other."""
    if unlike := set(tensors) ^ set(TENSORS) - {name for name in MAY_LACK if name not in tensors}:
        name = min(unlike)
        raise ValueError(f"{name} is {'unknown' if name in tensors else 'missing'}")
    sizes = dict[str, int]()
    for name, tensor in tensors.items():
        letters, kinds, (low, high) = TENSORS[name]
        if tensor.dtype not in kinds:
            raise ValueError(f"{name} is {tensor.dtype}, not {kinds[0]}")
        if tensor.dim() != len(letters) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(letters, tensor.shape, strict=True)
        ):
            raise ValueError(f"{name} has the shape {list(tensor.shape)}, which does not fit the others")
        numbers = tensor[~tensor.isnan()] if name in WITH_NAN else tensor
        if not bool(((numbers >= (low if low is not None else -torch.inf)) & (numbers <= (high or torch.inf))).all()):
            raise ValueError(f"{name} holds numbers that it cannot have")
    _check_sense(tensors, sizes)


def _check_sense(tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
    width, forwards, prompt_mask = tensors["width"].long(), tensors["forwards"], tensors["prompt_mask"]
    lengths = width[:, :1] - prompt_mask.sum(1, keepdim=True)  # answer columns
    for name, wrong in {
        "prompt_mask": prompt_mask.diff(dim=1) < 0,
        "completion_mask": tensors["completion_mask"].diff(dim=1) > 0,
        "step_map": tensors["step_map"] > forwards[:, None],
        "forwards": forwards > sizes["T"],
        "width": (width > sizes["L"] + sizes["G"]).any() | (lengths < 0).any() | (lengths > sizes["G"]).any(),
    }.items():
        if bool(wrong.any()):
            raise ValueError(f"{name} contradicts the other tensors")


def check_header(header: Mapping[str, Any], rows: int) -> None:
    """Raise ValueError, which names it, for an entry of the header that does not fit ``Rollouts``. rows: R."""
    for name, kind in {
        "finish": "list[str]",
        "texts": "list[str]",
        "notes": "list[str]",
        "results": "list",
        "mask_id": "int",
        "pad_id": "int",
        "ends": "list[int]",
        "sampling": "dict",
        "limits": "dict",
        "by_block": "bool",
        **dict.fromkeys(MAY_LACK, "None"),
    }.items():
        if name in header and not fits(header[name], kind):
            raise ValueError(f"{name} is no {kind}")
        if name in ("finish", "texts", "results") and len(header[name]) != rows:
            raise ValueError(f"{name} has {len(header[name])} entries for {rows} rows")
    if any(number < 0 for number in (header["mask_id"], header["pad_id"], *header["ends"])):
        raise ValueError("mask_id, pad_id and ends must be ids")
    if not set(header["finish"]) <= set(FINISH):
        raise ValueError(f"finish must be of {', '.join(FINISH)}")
    if not all(name in LIMITS and isinstance(sentence, str) for name, sentence in header.get("limits", {}).items()):
        raise ValueError("limits must say sentences")
    check_fields("sampling", header["sampling"], Sampling)
    for number, row in enumerate(header["results"]):
        if not isinstance(row, dict):
            raise ValueError(f"results[{number}] is no dict")
        check_fields(f"results[{number}]", {key: row[key] for key in row if key not in ("constraint", "trace")}, Result)
        if row.get("constraint") is not None:
            check_fields(f"results[{number}].constraint", row["constraint"], ConstraintReport)


def check_fields(name: str, values: Any, kind: type) -> None:
    """Raise ValueError for a value that is of another kind than the field of a dataclass."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} is no dict")
    for entry in fields(kind):
        if entry.name in values and not fits(values[entry.name], str(entry.type)):
            raise ValueError(f"{name}.{entry.name} is no {entry.type}")


def fits(value: Any, kind: str) -> bool:
    """Whether a value of JSON is of a kind as an annotation writes it. A float is finite."""
    return any(_fits(value, word.strip()) for word in kind.split("|"))


def _fits(value: Any, word: str) -> bool:
    match word:
        case "None":
            return value is None
        case "int":
            return type(value) is int and abs(value) < 2**63
        case "float":
            return type(value) in (int, float) and isfinite(value)
        case "PerRequest":
            return all(_fits(entry, "float") for entry in (value if isinstance(value, list) else [value]))
        case "list[int]" | "list[str]":
            return isinstance(value, list) and all(_fits(entry, word[5:-1]) for entry in value)
    return isinstance(value, {"str": str, "bool": bool, "list": list, "dict": dict}[word])
