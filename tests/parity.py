"""Compare our transformer with reference logits: ``python tests/parity.py DIR...``.

Each folder holds config.json, model.safetensors and logits.safetensors (or logits.safetensors.xz): tensors
``<case>.<field>``. Every field of ``FIELDS`` that a case has is used or compared; any other one is a failure, and so is
a folder that is refused.

Models of two passes (DiffusionGemma) have reference_logits.json instead: a list of cases with ``PASSES``.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

sys.path.append(str(Path(__file__).parent / "support"))  # what the tests share

from flattened import load_model, read_model_config

from dllm.parts import FULL, AnswerBlocks, BlockCausal, DiffusionGemma, SeededBlocks, Transformer, UserError

LOGITS = "logits.safetensors"
TWO_PASSES = "reference_logits.json"
MASK = 126  # in the folders whose config.json names no mask
FIELDS = {
    "input_ids": "[B, L], in the order in which the reference ran them",
    "attention_mask": "[B, L]: 1 where a token is real",
    "position_ids": "[B, L]: of the inputs; those of real tokens are 0, 1, 2, ... in some order",
    "valid": "[B, L]: where to compare (absent: everywhere)",
    "block_length": "of attention by blocks (absent: in families with both, the reference ran with full attention)",
    "block_start": "column where the block that is decoded begins, or where the answer begins",
    "cached_length": "inputs whose keys and values the reference had kept; it has logits of the others",
    "logits_f32": "of the published code",
    "logits_f64": "of the same code lifted to float64",
    "shifted_f32": "logits_f32, each row at the position that it predicts",
}
PASSES = {
    "prompt": "ids that the causal pass ran on",
    "canvas": "ids that the denoising pass ran on behind them",
    "self_conditioning_logits": "those that it was given, [C, V], or null",
    "logits": "of the denoising pass, [C, V]",
    "encoder_last_hidden_state": "of the causal pass, [P, D]",
    "encoder_logits": "the head on it, [P, V]",
}
# Logits of these go to 20, and the reference is float32: our float64 is as far from it as our float32.
PASSES_GATE = 1e-4
GATES = {torch.float32: 2e-5, torch.float64: 1e-10}
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


@dataclass(frozen=True)
class Outcome:
    """Largest absolute difference of one case in one dtype, over the rows that count; infinite, and why, for a case
    that cannot be compared whole."""

    case: str
    dtype: torch.dtype
    error: float
    why: str = ""
    gate: float | None = None  # the largest that passes (None: by dtype)

    @property
    def passed(self) -> bool:
        return self.error <= (GATES[self.dtype] if self.gate is None else self.gate)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All reference tensors of a folder; a plain file goes before a compressed one."""
    plain = folder / LOGITS
    return load(plain.read_bytes() if plain.is_file() else lzma.open(f"{plain}.xz").read())


def cases_of(folder: Path) -> dict[str, dict[str, Tensor]]:
    cases: dict[str, dict[str, Tensor]] = {}
    for name, tensor in sorted(tensors_of(folder).items()):
        case, field = name.rsplit(".", 1)
        cases.setdefault(case, {})[field] = tensor
    return cases


def model_for(folder: Path, case: dict[str, Tensor], dtype: torch.dtype) -> Transformer:
    """The folder's model; the case's block_length, or its absence, sets the attention of block-causal models and of
    A2D's. Fast-dLLM v2's seeds are no matter of logits."""
    config = read_model_config(folder)
    block, kind = case.get("block_length"), AnswerBlocks if config.family == "a2d" else BlockCausal
    if config.family == "a2d" or isinstance(config.attention, BlockCausal | SeededBlocks):
        config = replace(config, attention=FULL if block is None else kind(int(block)))
    return load_model(folder, dtype=dtype, config=config)


def by_position(case: dict[str, Tensor], real: Tensor) -> Tensor:
    """The inputs [B, L] by their positions, behind the padding. Our columns are positions, up to the padding that comes
    before them; the reference may have run its inputs in another order."""
    if "position_ids" not in case:
        return torch.arange(real.shape[1]).expand_as(real)
    order = case["position_ids"].masked_fill(~real, -1).sort(dim=1, stable=True)
    expected = real.long().sort(dim=1).values.cumsum(1) - 1
    assert torch.equal(order.values, expected.clamp(min=-1)), "positions of real tokens are not 0, 1, 2, ..."
    return order.indices


def own_logits(model: Transformer, case: dict[str, Tensor]) -> Tensor:
    """Our logits [B, L, V] of a case's inputs, in their order."""
    tokens = case["input_ids"]
    real = case.get("attention_mask", torch.ones_like(tokens)).bool()
    order = by_position(case, real)
    tokens, real = tokens.gather(1, order), real.gather(1, order)
    masked = tokens == (MASK if model.config.mask_id is None else model.config.mask_id)
    with torch.inference_mode():
        logits = model.head(model.encode(tokens, real, masked, case.get("block_start", 0)))
    return torch.empty_like(logits).scatter(1, order[:, :, None].expand_as(logits), logits)


def case_error(folder: Path, case: dict[str, Tensor], dtype: torch.dtype) -> float:
    """The largest difference. AssertionError for a field that is unknown."""
    assert case.keys() <= FIELDS.keys(), f"unknown fields {sorted(case.keys() - FIELDS.keys())}"
    model, reference = model_for(folder, case, dtype), case[f"logits_{SUFFIX[dtype]}"]
    own = own_logits(model, case)
    own = own[:, int(case.get("cached_length", own.shape[1] - reference.shape[1])) :]
    assert own.shape == reference.shape, f"{list(reference.shape)} logits for {list(own.shape)} inputs"
    error = (own - reference).abs().amax(-1)
    valid = case.get("valid")
    if "shifted_f32" in case and dtype == torch.float32:
        shifted = (torch.cat([own[:, :1], own[:, :-1]], 1) - case["shifted_f32"]).abs().amax(-1)
        # the first real position behind padding is read from a row of padding, which is anything
        told = valid if valid is None else valid & torch.cat([valid[:, :1], valid[:, :-1]], 1)
        return max(worst(error, valid), worst(shifted, told))
    return worst(error, valid)


def worst(error: Tensor, where: Tensor | None) -> float:
    """The largest entry, ``where`` it counts (None: everywhere)."""
    return float(error.max() if where is None else error[where].max())


def passes_errors(folder: Path, case: dict[str, Any], dtype: torch.dtype) -> dict[str, float]:
    """The largest difference of each output of the two passes. AssertionError for a field that is unknown."""
    assert case.keys() == PASSES.keys(), f"fields {sorted(case.keys() ^ PASSES.keys())}"
    model, prompt, canvas = load_model(folder, dtype=dtype), case["prompt"], case["canvas"]
    assert isinstance(model, DiffusionGemma)
    tokens, start = torch.tensor([[*prompt, *canvas]]), len(prompt)
    soft = torch.zeros(*tokens.shape, model.config.width, dtype=dtype)
    with torch.inference_mode():
        if case["self_conditioning_logits"] is not None:
            soft[0, start:] = model.soft(torch.tensor(case["self_conditioning_logits"], dtype=dtype))
        hidden = model.encode(tokens, None, torch.arange(tokens.shape[1])[None] >= start, start, soft)
        causal = model.encode(tokens[:, :start], None, None, start)[0]
        found = {
            "logits": model.logits(hidden[0, start:]),
            "encoder_last_hidden_state": causal,
            "encoder_logits": model.logits(causal),
        }
    return {name: float((value - torch.tensor(case[name])).abs().max()) for name, value in found.items()}


def compare_passes(folder: Path) -> Iterator[Outcome]:
    for number, case in enumerate(json.loads((folder / TWO_PASSES).read_text())):
        for dtype in GATES:
            try:
                found = passes_errors(folder, case, dtype)
                yield from (Outcome(f"{number}.{name}"[:24], dtype, e, "", PASSES_GATE) for name, e in found.items())
            except AssertionError as error:
                yield Outcome(str(number), dtype, inf, f": {error}")


def compare(folder: Path) -> list[Outcome]:
    if (folder / TWO_PASSES).is_file():
        return [*compare_passes(folder)]
    return [outcome(folder, name, case, dtype) for name, case in cases_of(folder).items() for dtype in GATES]


def outcome(folder: Path, name: str, case: dict[str, Tensor], dtype: torch.dtype) -> Outcome:
    try:
        return Outcome(name, dtype, case_error(folder, case, dtype))
    except AssertionError as error:
        return Outcome(name, dtype, inf, f": {error}")


def main(folders: list[str]) -> int:
    failed = 0
    for folder in map(Path, folders):
        try:
            read_model_config(folder)
        except UserError as error:
            failed += 1
            print(f"{folder.name}: refused: {error}")
            continue
        if not any((folder / name).is_file() for name in (LOGITS, f"{LOGITS}.xz", TWO_PASSES)):
            print(f"{folder.name}: no {LOGITS}, nothing to compare")
            continue
        for one in compare(folder):
            failed += not one.passed
            verdict = "ok" if one.passed else f"FAILED{one.why}"
            print(f"{folder.name:18} {one.case:24} {SUFFIX[one.dtype]}  max error {one.error:.1e}  {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
