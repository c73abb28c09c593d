"""What is made from a mini model: ``python -m experiments.mini.derive FOLDER`` writes, beside the weights,

filter-b32.safetensors   a Learn2PD filter (``dllm train filter``) of prompts of the training split, on canvases of one
                         block and of several
frequencies.json         how often each token comes up in the answers of training, for sampler=pc
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from dllm import Decoder, Model, load
from dllm.app.commands.filter_training import filter_records, fit_filter
from dllm.parts.blocks.fixed import Fixed
from dllm.parts.samplers.base import Sampler
from dllm.tasks.mini import tasks
from dllm.tasks.mini.items import Sample
from experiments.mini import token_frequencies
from experiments.support.scripts import counted, refusing

BATCH = 52  # rows decoded at once


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
    model = load(folder)
    short = [
        one.messages for task in tasks.SHORT_ANSWERS for one in tasks.generate(task, seed + 1000, 4 * count, "train")
    ]
    of_all = [sample.prompt for sample in corpus(count, seed)]
    found = [
        filter_records(partial(uncached, model, block, gen_length), prompts, block)
        for prompts, gen_length in ((short, block), (of_all, length))
    ]
    confidence, right = (torch.cat(parts) for parts in zip(*found, strict=True))
    weights, lines = fit_filter(confidence, right, epochs, seed)
    save_file(weights, folder / f"filter-b{block}.safetensors", {"model": model.name, "block_length": str(block)})
    print(*lines, sep="\n")


def uncached(model: Model, block: int, gen_length: int, rule: Sampler) -> Decoder:
    return Decoder(model, rule, Fixed(block), eos="none", gen_length=gen_length, batch_size=BATCH)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the checkpoint that training left")
    parser.add_argument("--block", type=int, default=32, help="block length of the filter")
    parser.add_argument("--gen-length", type=int, default=128, help="canvas that its records come from")
    parser.add_argument(
        "--count",
        type=counted,
        default=20,
        help="prompts a task on canvases; 4 times as many on one block, 50 times as many for tokens",
    )
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
