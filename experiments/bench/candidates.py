"""Candidates along the sequence beside candidates in rows: ``python -m experiments.bench.candidates``.

Of rules that try several candidates, under caches that keep what stands before. Sequence is what a decode does: the
candidates of a row lie side by side in it. In rows each is a row of its own with a copy of what is kept, which defines
what the other way computes. The model is LLaDA-shaped with seeded random weights (width 384, 6 layers, MLP
1152, 8,192 tokens, float32; under cache=finished it attends by blocks), so its drafts seldom come true: the table
compares ways, not rules. Both ways run in turn. Seconds are the least of several decodes, of the CPU; memory is the
peak of the process above what it held before the decode, the least as well (Linux, glibc).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllm import part
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import replaced
from dllm.laws.decodes import ids_of
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.models.network.transformer import Transformer
from dllm.models.network.visibility import AnswerBlocks
from dllm.parts.cache.base import Cache
from dllm.parts.cache.candidates import CandidateCalls
from dllm.parts.eos.none import FullLength
from experiments.bench.cache import CONFIG, clock, random_model, status
from experiments.bench.step import prompt_of
from experiments.support import markdown
from experiments.support.scripts import refusing

SMALL = replace(
    CONFIG, width=384, layers=6, heads=6, kv_heads=6, mlp_width=1152, vocab=8192, mask_id=8191, eos_id=8190, pad_id=8190
)
BLOCK = 32
RULES: dict[str, dict[str, Any]] = {
    "freedave": {"draft_steps": 8},
    "scout": {"candidates": 8},
    "lopa": {"branching_factor": 4},
    "ete": {"explore_mass": 0.0},
}
CELLS = ("freedave+dual", "freedave+prefix", "freedave+finished", "scout+dual", "lopa+dual", "ete+dual")
HEADS = (
    "sampler",
    "cache",
    "batch",
    "forwards",
    "candidates",
    "same tokens",
    "CPU s, rows",
    "CPU s, sequence",
    "MiB, rows",
    "MiB, sequence",
)


@dataclass(frozen=True)
class Work:
    """How much a decode does: rows, tokens of a prompt and an answer, and forwards at most."""

    batch: int
    prompt: int = 512
    answer: int = 64
    turns: int = 6


@dataclass(frozen=True)
class Measured:
    """Of one decode."""

    tokens: Tensor  # [B, L] of the canvas after its last turn
    forwards: int
    candidates: int  # of all forwards
    seconds: float  # of the CPU, with one thread
    mebibytes: float  # peak above what was held before


def decode(model: Transformer, rule: str, cache: Cache, work: Work) -> Measured:
    """The first turns of a decode."""
    config, ids = model.config, ids_of(model.config)
    parts = Parts(
        part("sampler", rule, **RULES[rule]), part("blocks", "fixed", block_length=BLOCK), cache, FullLength()
    )
    prompts = [prompt_of(work.prompt, row, config.vocab - 2) for row in range(work.batch)]
    canvas = Canvas.of([Request.answer(one, work.answer, ids.placeholder) for one in prompts], ids.eos)
    ctypes.CDLL(None).malloc_trim(0)  # else a decode takes what the one before has left
    Path("/proc/self/clear_refs").write_text("5")
    held, begin, count = status("VmRSS"), clock(), 0
    with torch.inference_mode():
        for turn in islice(denoise(canvas, Forward.of(model, ids, parts), parts), work.turns):
            count += len(turn.tried.row_id)
            forwards, tokens = int(turn.view.blocks.turn.max()), turn.candidates.tokens
    return Measured(tokens, forwards, count, clock() - begin, (status("VmHWM") - held) / 2**20)


def row(model: Transformer, rule: str, name: str, work: Work, repeats: int = 2) -> list[str]:
    """A line of the table: both ways, one after the other, several times."""
    found: dict[str, list[Measured]] = {"rows": [], "sequence": []}
    cache = part("cache", name)
    ways = {"rows": replaced(cache, shared_call=CandidateCalls.in_rows), "sequence": cache}
    for _ in range(repeats):
        for way, own in ways.items():
            found[way].append(decode(model, rule, own, work))
    (one, *_), (other, *_) = found.values()
    same = torch.equal(one.tokens, other.tokens) and one.forwards == other.forwards
    seconds, memory = (
        [f"{min(getattr(each, what) for each in some):.{digits}f}" for some in found.values()]
        for what, digits in (("seconds", 2), ("mebibytes", 0))
    )
    counts = [work.batch, other.forwards, other.candidates]
    return [rule, name, *map(str, counts), "yes" if same else "no", *seconds, *memory]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    usual = Work(1)
    torch.set_num_threads(1)
    print(
        f"Prompt {usual.prompt}, answer {usual.answer}, {usual.turns} forwards at most, one thread, torch "
        f"{torch.__version__}, load {os.getloadavg()[0]:.1f}\n",
        flush=True,
    )
    print(markdown.head(HEADS, 2), flush=True)
    model = random_model(SMALL)
    for cell in CELLS:
        rule, name = cell.split("+")
        model.config = replace(SMALL, attention=AnswerBlocks(BLOCK)) if name == "finished" else SMALL
        for work in (usual, Work(4)):
            decode(model, rule, part("cache", name), replace(work, turns=1))  # what comes first takes longer
            print(markdown.line(row(model, rule, name, work)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
