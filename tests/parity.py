"""Compare our transformer with reference logits: ``python tests/parity.py DIR...``.

Each folder holds config.json, model.safetensors and logits.safetensors (tensors ``<case>.<field>``: input_ids,
optional attention_mask, valid and block_length, and the reference ``logits_f32`` and ``logits_f64``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from dllm.models.transformer import Transformer
from dllm.models.weights import load_model, read_model_config

GATES = {torch.float32: 2e-5, torch.float64: 1e-10}
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


@dataclass(frozen=True)
class Outcome:
    """Largest absolute difference of one case in one dtype, over the rows that count."""

    case: str
    dtype: torch.dtype
    error: float

    @property
    def passed(self) -> bool:
        return self.error <= GATES[self.dtype]


def cases_of(folder: Path) -> dict[str, dict[str, Tensor]]:
    cases: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(folder / "logits.safetensors").items():
        case, field = name.rsplit(".", 1)
        cases.setdefault(case, {})[field] = tensor
    return cases


def model_for(folder: Path, case: dict[str, Tensor], dtype: torch.dtype) -> Transformer:
    """The folder's model; the case's block_length, or its absence, sets the attention pattern of block models."""
    config = read_model_config(folder)
    if config.attention_block is not None:
        block = case.get("block_length")
        config = replace(config, attention_block=None if block is None else int(block))
    return load_model(folder, dtype=dtype, config=config)


def case_error(folder: Path, case: dict[str, Tensor], dtype: torch.dtype) -> float:
    model = model_for(folder, case, dtype)
    mask = case.get("attention_mask")
    with torch.inference_mode():
        own = model.head(model.encode(case["input_ids"], None if mask is None else mask.bool()))
    reference = case[f"logits_{SUFFIX[dtype]}"]
    own = own[:, -reference.shape[1] :]  # cached cases hold the last block only
    error = (own - reference).abs().amax(-1)
    valid = case.get("valid")
    if "shifted_f32" in case and dtype == torch.float32:
        shifted = torch.cat([own[:, :1], own[:, :-1]], 1)
        error = torch.maximum(error, (shifted - case["shifted_f32"]).abs().amax(-1)) if valid is None else error
    return float(error.max() if valid is None else error[valid].max())


def compare(folder: Path) -> list[Outcome]:
    return [
        Outcome(name, dtype, case_error(folder, case, dtype))
        for name, case in cases_of(folder).items()
        for dtype in GATES
    ]


def main(folders: list[str]) -> int:
    failed = 0
    for folder in map(Path, folders):
        if not (folder / "logits.safetensors").is_file():
            print(f"{folder.name}: no logits.safetensors, nothing to compare")
            continue
        for outcome in compare(folder):
            failed += not outcome.passed
            verdict = "ok" if outcome.passed else "FAILED"
            print(
                f"{folder.name:18} {outcome.case:20} {SUFFIX[outcome.dtype]}  max error {outcome.error:.1e}  {verdict}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
