"""Held-out items of the mini suite: the options of a comparison on them, and what a decoder answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from dllm import Decoder, Result
from dllm.prompts import Prompt
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.support.scripts import counted

Answers = tuple[list[Result], list[float]]  # and the score of each


def comparison(
    doc: str | None, count: int, of: str, models: Sequence[str] = ("mini-llada", "mini-dream")
) -> argparse.ArgumentParser:
    """The options of a comparison, which runs on one thread. of: what ``--count`` counts."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(models), help="names or folders")
    parser.add_argument("--count", type=counted, default=count, help=of)
    parser.add_argument("--seed", type=int, default=1, help="seed of the held-out items")
    return parser


def answered(decoder: Decoder, items: Sequence[Sample], **asked: Any) -> Answers:
    """What a decoder answers. asked: what else it is called with."""
    prompts: list[Prompt] = [item.messages for item in items]
    rows = list(decoder(prompts, **asked))
    return rows, [float(mini.score(item, row.text)["score"]) for item, row in zip(items, rows, strict=True)]
