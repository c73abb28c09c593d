"""Time a forward on the CPU with its products fused and apart: ``python -m experiments.bench.fused``.

Dense: 6 layers of width 768, MLP 2,304, with q, k, v and gate, up in one product each, or in three and two. Experts: 2
layers of width 1,024 with 64 experts of 512, 8 of them chosen: all experts in one tensor, or each by itself and
packed for oneDNN (``dllm.kernels.packed`` does not pack stacked ones). Prints medians of milliseconds of the processor,
which other jobs lengthen least, and the largest difference of the hidden rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from dllm.kernels.packed import can_pack, pack_weights
from dllm.models.config import ModelConfig
from dllm.models.fused import fuse_products
from dllm.models.moe import MoEConfig
from dllm.models.transformer import Transformer
from experiments.bench.step import SMALL

DENSE = replace(SMALL, layers=6, vocab=1000, mask_id=998, eos_id=999, pad_id=999)
EXPERTS = MoEConfig(experts=64, top_k=8, width=512, router="softmax", sparse_layers=(0, 1))
CASES = {"dense": DENSE, "experts": replace(DENSE, layers=2, width=1024, heads=16, kv_heads=16, moe=EXPERTS)}


def built(config: ModelConfig, fused: bool) -> Transformer:
    """A model with seeded random weights, packed where this machine can."""
    torch.manual_seed(0)
    model = Transformer(config).eval().requires_grad_(False)
    if fused:
        fuse_products(model)
    if can_pack(model.device, model.dtype):
        pack_weights(model)
    return model


@torch.inference_mode()
def forward(model: Transformer, tokens: Tensor) -> tuple[Tensor, float]:
    """Hidden rows, and the processor's milliseconds."""
    began = time.process_time()
    return model.encode(tokens), 1000 * (time.process_time() - began)


def compare(config: ModelConfig, rows: int, repeats: int) -> str:
    """Both ways in turn, ``repeats`` times, after one forward of each to warm up."""
    models, tokens = [built(config, fused) for fused in (False, True)], torch.arange(rows)[None] % config.vocab
    results = [[forward(model, tokens) for model in models] for _ in range(repeats + 1)]
    apart, fused = (median(each[way][1] for each in results[1:]) for way in (0, 1))
    difference = float((results[0][0][0] - results[0][1][0]).abs().max())
    return f"{rows:5} {apart:9.1f} {fused:9.1f} {apart / fused:7.2f}x {difference:9.0e}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 160])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for name, config in CASES.items():
        print(f"{name}, threads {options.threads}, load {os.getloadavg()[0]:.1f}\n"
              " rows  apart ms  fused ms          difference")  # fmt: skip
        for rows in options.rows:
            print(compare(config, rows, options.repeats), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
