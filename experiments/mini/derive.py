"""What is made from a mini model: ``python -m experiments.mini.derive FOLDER`` writes, beside the weights,

filter-b32.safetensors   a Learn2PD filter (experiments.distill.filter) of prompts of the training split, on canvases of
                         one block and of several
frequencies.json         how often each token comes up in the answers of training, for sampler=pc
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dllm import load
from dllm.tasks.mini import tasks
from dllm.tasks.mini.items import Sample
from experiments.distill.filter import Options, fit, record
from experiments.mini import token_frequencies
from experiments.support.scripts import counted, refusing


def corpus(count: int, seed: int) -> Iterator[Sample]:
    """Items of every task as training draws them."""
    for task in tasks.TASKS:
        yield from tasks.generate(task, seed + 1000, count, "train", names="mixed")


def frequencies(folder: Path, count: int, seed: int) -> dict[int, float]:
    """Relative frequencies of the tokens of answers, each task as often as the others."""
    found = token_frequencies.counts("\n".join(sample.answer for sample in corpus(count, seed)), str(folder))
    return {token: times / found.total() for token, times in sorted(found.items())}


def write_filter(folder: Path, block: int, length: int, count: int, epochs: int, seed: int) -> None:
    """Train the filter on short answers that are one block, and on all answers on canvases of ``length``: without the
    former learn2pd lost 14 points of earlier weights' 94 on them; without the latter no block is empty."""
    model, prompts = load(folder), folder / "filter-prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": sample.prompt}) + "\n" for sample in corpus(count, seed)))
    one = Options(str(folder), block, block, count=4 * count, epochs=epochs, seed=seed,
                  out=str(folder / f"filter-b{block}.safetensors"))  # fmt: skip
    found = [record(model, options) for options in (one, replace(one, gen_length=length, prompts=str(prompts)))]
    confidence, right = (torch.cat(parts) for parts in zip(*found, strict=True))
    order = torch.randperm(len(right), generator=torch.Generator().manual_seed(seed))
    fit(model, confidence[order], right[order], one)
    prompts.unlink()


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the checkpoint that training left")
    parser.add_argument("--block", type=int, default=32, help="block length of the filter")
    parser.add_argument("--gen-length", type=int, default=128, help="canvas that its records come from")
    parser.add_argument("--count", type=counted, default=20, help="prompts a task on canvases; 4 times as many on one "
                        "block, 50 times as many for tokens")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    table = frequencies(given.folder, 50 * given.count, given.seed)
    (given.folder / "frequencies.json").write_text(json.dumps(table))
    torch.set_num_threads(1)
    write_filter(given.folder, given.block, given.gen_length, given.count, given.epochs, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
