"""Replay recorded decodes of published implementations: ``python tests/replay.py FILE... [--models DIR]``.

This file holds the whole mapping from each reference's parameter names to the parts of this project. Every field of a
case that exists is compared: tokens, nfe, forward_tokens, committed, layer_tokens, first_refreshed_layer,
block_lengths, nfe_per_block, exit_step, static_nfe, and a file's sampler_cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dllm.blocks.base import Blocks
from dllm.blocks.fixed import Fixed
from dllm.blocks.whole import Whole
from dllm.cache.base import Cache
from dllm.cache.none import NoCache
from dllm.canvas import Canvas, Request
from dllm.denoise import Turn, denoise
from dllm.eos.base import EndOfText, Keep
from dllm.forward import Forward
from dllm.models.transformer import Transformer
from dllm.models.weights import load_model
from dllm.samplers.base import Sampler
from dllm.samplers.confidence import Confidence
from dllm.samplers.dream import Dream
from dllm.samplers.factor import Factor
from dllm.samplers.static import Static
from dllm.scores import Ids, Propose, Sampling

Case = Mapping[str, Any]
MODELS = Path(__file__).parent / "data" / "models"


@dataclass(frozen=True)
class Parts:
    """What a case decodes with, in this project's words."""

    sampler: Sampler
    blocks: Blocks = field(default_factory=Whole)
    cache: Cache = field(default_factory=NoCache)
    eos: EndOfText = field(default_factory=Keep)
    sampling: Sampling = field(default_factory=lambda: Sampling(suppress_mask=False))
    given: Mapping[int, int] = field(default_factory=dict)


def llada_generate(params: Case) -> Parts:
    """static: LLaDA's generate; threshold and factor: Fast-dLLM's, without cache."""
    blocks = Fixed(params["block_length"])
    if params["sampler"] == "static":
        return Parts(Static(params["steps"]), Fixed(params["block_length"], min_forwards=steps_of_a_block(params)))
    if params["sampler"] == "threshold":
        return Parts(Confidence(params["threshold"]), blocks)
    return Parts(Factor(params["factor"]), blocks)


def steps_of_a_block(params: Case) -> int:
    """LLaDA's loop always runs this many forwards on a block."""
    return int(params["steps"] // (params["gen_length"] // params["block_length"]))


def dream_generate(params: Case) -> Parts:
    """Dream's diffusion_generate: the whole answer, always all steps."""
    sampler = Dream(params["alg"], params["steps"], params["eps"], params["alg_temp"] or 0.0)
    sampling = Sampling(top_p=params["top_p"], top_k=params["top_k"], suppress_mask=False, tempered=True)
    return Parts(sampler, Whole(min_forwards=params["steps"]), sampling=sampling)


METHODS: dict[str, Callable[[Case], Parts]] = {
    "llada_generate": llada_generate,
    "dream_generate": dream_generate,
}


@dataclass
class Record:
    """What a decode did, in the terms of the golden files."""

    tokens: list[int] = field(default_factory=list)
    forward_tokens: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)

    def observe(self, turn: Turn, start: int) -> None:
        self.forward_tokens.append(int(turn.queries.sum(0).max()))
        changed = turn.canvas.masked[0] & ~turn.candidates.masked[0]
        self.committed.append((changed.nonzero()[:, 0] - start).tolist())
        canvas = turn.candidates
        self.tokens = canvas.tokens[0][canvas.valid[0]].tolist()

    @property
    def nfe(self) -> int:
        return len(self.forward_tokens)


@cache
def model_of(folder: Path) -> Transformer:
    return load_model(folder)


def decode(model: Transformer, prompt: list[int], parts: Parts, gen_length: int) -> Record:
    config = model.config
    assert config.mask_id is not None and config.eos_id is not None and config.pad_id is not None
    propose = Propose(parts.sampling, Ids(config.mask_id, config.eos_id, ()), wanted(parts))
    needs = (*parts.sampler.needs(), *parts.blocks.needs(), *parts.eos.needs())
    forward = Forward(model, parts.cache, propose, needs, parts.eos.shrinks)
    canvas = Canvas.of([Request.answer(prompt, gen_length, config.mask_id)], config.pad_id)
    record = Record()
    with torch.inference_mode():
        for turn in denoise(canvas, forward, parts.sampler, parts.blocks, parts.eos):
            record.observe(turn, len(prompt))
    return record


def wanted(parts: Parts) -> frozenset[str]:
    needs = (*parts.sampler.needs(), *parts.blocks.needs(), *parts.eos.needs())
    return frozenset().union(*(need.statistics for need in needs))


def differences(case: Case, record: Record) -> list[str]:
    """Names of the recorded fields that this project does not reproduce."""
    return [
        name for name in ("tokens", "nfe", "forward_tokens", "committed")
        if name in case and case[name] != getattr(record, name)
    ]  # fmt: skip


def replay(file: Path, models: Path) -> tuple[str, list[list[str]]]:
    """The file's method and, for every case, the fields that differ."""
    data = json.loads(file.read_text())
    build = METHODS[data["method"]]
    outcome = []
    for case in data["cases"]:
        parts = build(case["params"])
        record = decode(model_of(models / case["model"]), case["prompt"], parts, case["params"]["gen_length"])
        outcome.append(differences(case, record))
    return data["method"], outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--models", type=Path, default=MODELS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    failed = False
    for file in options.files:
        method, outcome = replay(file, options.models)
        print(f"{method}: {sum(not fields for fields in outcome)} of {len(outcome)} cases equal")
        for number, fields in enumerate(outcome):
            if fields:
                failed = True
                print(f"  case {number}: {', '.join(fields)} differ")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
