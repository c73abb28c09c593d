"""A 0.6B model on a CPU, in seconds: ``python -m experiments.bench.laptop``.

Random weights of Tiny-A2D's shape (Qwen3-0.6B), so no text means anything, and no score is told: how many tokens a
forward commits is prescribed, 1 in one decode and 4 in another. Every way decodes the same prompt, batch 1. Seconds are
those of the CPU, which a neighbour changes less than the wall's. Prints a Markdown table with the memory of the process
and the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from dllm import Decoder, Model, part
from dllm.models.config import ModelConfig
from dllm.models.network.activations import round_activations
from dllm.models.network.attention_order import FULL
from dllm.models.network.fused import fuse_products
from dllm.models.network.visibility import AnswerBlocks
from dllm.models.weights.quantize import quantize_part
from experiments.bench.step import as_loaded, bundled, prompt_of, random_model
from experiments.support import markdown
from experiments.support.scripts import refusing

BLOCK, PER_STEP = 32, 4
PROMPT, ANSWER = 32, 64  # tokens
HEADS = (
    "weights",
    "attention",
    "cache",
    "CPU s a forward",
    "CPU s a token",
    f"CPU s a token at {PER_STEP} a forward",
    "memory, GB",
)
KINDS = ("float32", "bfloat16", "int8", "int4", "int8-rows", "int4-rows")  # rows: ``model.activations=int8``


def tiny_a2d() -> ModelConfig:
    """Qwen3-0.6B's shape."""
    return ModelConfig(
        family="a2d", width=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp_width=3072, vocab=151936,
        max_length=40960, eps=1e-6, theta=1e6, mask_id=151669, eos_id=151645, pad_id=151643, rotary_dim=128,
        qk_norm=True, tied=True, attention=FULL,
    )  # fmt: skip


def network(config: ModelConfig, weights: str) -> Model:
    """Random weights, kept as ``dllm.load`` keeps them. weights: one of ``KINDS``."""
    found = random_model(config, torch.device("cpu"), torch.float32 if weights == "float32" else torch.bfloat16)
    fuse_products(found)
    kind, _, rows = weights.partition("-")
    if kind in ("int8", "int4"):
        for layer in found.layers:
            quantize_part(layer, kind, False)
        if rows:
            round_activations(found, invariant=False)
        return bundled(found)
    return bundled(as_loaded(found))


def timed(model: Model, cache: str, prompt: int, answer: int, per_step: int) -> tuple[int, float]:
    """Forwards of one answer, and seconds of all threads, after one forward that does not count."""
    rule = part("sampler", "static", per_step=per_step)
    decoder = Decoder(model, rule, part("blocks", "fixed", block_length=BLOCK), cache, "none", gen_length=answer)
    ids = prompt_of(prompt, 0, min(50_000, model.config.vocab - 2))
    with torch.inference_mode():
        model.transformer.encode(torch.tensor([ids]))
    begin = time.process_time()
    (result,) = decoder([ids])
    return result.nfe, time.process_time() - begin


def rows(config: ModelConfig, weights: str, prompt: int, answer: int) -> list[list[str]]:
    """What a kind of weights takes under both kinds of attention."""
    model, found = network(config, weights), []
    for cache, kind in (("none", FULL), ("dual", FULL), ("finished", AnswerBlocks(BLOCK))):
        model.transformer.config = own = replace(config, attention=kind)
        way = replace(model, config=own), cache, prompt, answer
        (forwards, one), (_, several) = timed(*way, 1), timed(*way, PER_STEP)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        seconds = one / forwards, one / answer, several / answer
        found.append([weights, kind.name, cache, *(f"{each:.2f}" for each in seconds), f"{memory:.1f}"])
    return found


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", default=["float32"], choices=KINDS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    title = f"Random weights of 0.6B, prompt {PROMPT}, answer {ANSWER}"
    print(f"{title}, one thread, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n", flush=True)
    table = [row for weights in options.weights for row in rows(tiny_a2d(), weights, PROMPT, ANSWER)]
    print(markdown.table(HEADS, table))
    print(f"\nload {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
