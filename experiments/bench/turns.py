"""Turns of a small model beside the same turns written by hand: ``python -m experiments.bench.turns``.

mini-llada on one thread of a CPU, one row, one token a turn, eager. The decode by hand (``experiments.bench.by_hand``)
has the same weights and gives the same tokens, which is asserted. It is what a framework can cost at least without
leaving PyTorch's operations. Decodes alternate, so that a busy machine slows both. Operations are those of
PyTorch but views; calls are those of Python's functions and built-in ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from dllm import Decoder, Model, load, part
from dllm.contract import Turn
from dllm.record.environment import processor_name
from experiments.bench.by_hand import BY_HAND, decoded
from experiments.bench.operations import Launches
from experiments.support import markdown
from experiments.support.scripts import counted, refusing

ANSWER, BLOCK = 64, 32
WARM, COUNTED = 4, 8  # turns that are not counted, then those whose operations and calls are
HEADS = (
    "cache",
    "ours, ms",
    "median",
    "by hand, ms",
    "median",
    "ours / by hand",
    "operations",
    "by hand",
    "calls",
    "by hand",
)


@dataclass
class Calls:
    """How many Python functions and built-in ones are called while it is entered."""

    count: int = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self.count += event in ("call", "c_call")


def decoder(model: Model, cache: str) -> Decoder:
    """Ours, with the blocks of the cache's paper."""
    blocks = part("blocks", "whole") if cache in ("elastic", "window") else part("blocks", "fixed", block_length=BLOCK)
    rule = part("sampler", "static", steps=ANSWER)
    return Decoder(model, rule, blocks, cache, "none", gen_length=ANSWER)


def seconds(turns: Iterable[Any]) -> list[float]:
    """CPU time of each turn."""
    found, began = list[float](), time.process_time()
    for _ in turns:
        found.append(time.process_time() - began)
        began = time.process_time()
    return found


def per_turn(turns: Iterable[Any], counter: Launches | Calls) -> float:
    """Operations or calls of a usual turn."""
    running = iter(turns)
    for _ in islice(running, WARM):
        pass
    with counter:
        for _ in islice(running, COUNTED):
            pass
    for _ in running:
        pass
    return counter.count / COUNTED


def milliseconds(decodes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Of a turn: the mean of each turn's least, and the median of all."""
    least = statistics.mean(min(turn) for turn in zip(*decodes, strict=True))
    return 1000 * least, 1000 * statistics.median(one for decode in decodes for one in decode)


@torch.inference_mode()
def measured(model: Model, plain: Model, ids: list[int], cache: str, repeats: int) -> list[str]:
    """A line of the table. plain: the same model, whose weights are not packed."""
    decoding = decoder(model, cache)

    def ours() -> Iterable[Turn]:
        return decoding.turns(ids)

    def by_hand() -> Iterable[None]:
        return decoded(plain.transformer, ids, ANSWER, BLOCK, cache)[1]

    *_, last = ours()
    tokens, turns = decoded(plain.transformer, ids, ANSWER, BLOCK, cache)
    assert len(list(turns)) == ANSWER
    assert torch.equal(last.candidates.tokens[0], tokens), f"cache={cache}: the decode by hand gives other tokens"
    times = [(seconds(ours()), seconds(by_hand())) for _ in range(repeats)]
    (least, usual), (best, middle) = (milliseconds(one) for one in zip(*times, strict=True))
    counts = [per_turn(turns(), counter()) for counter in (Launches, Calls) for turns in (ours, by_hand)]
    return [
        cache,
        *(f"{one:.2f}" for one in (least, usual, best, middle, least / best)),
        *(f"{one:.0f}" for one in counts),
    ]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", nargs="+", default=list(BY_HAND), choices=list(BY_HAND))
    parser.add_argument("--repeats", type=counted, default=15, help="decodes of each kind")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, plain = (load("mini-llada", pack=pack) for pack in (True, False))
    ids = decoder(model, "none").encode("Latin square:\nA,B,C,D")
    print(
        f"{processor_name()}; torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.1f}. mini-llada, prompt "
        f"{len(ids)}, answer {ANSWER}, blocks of {BLOCK}, one token a turn; CPU ms a turn: each turn's "
        f"least of {options.repeats} decodes, and the median of all:\n",
        flush=True,
    )
    rows = [measured(model, plain, ids, cache, options.repeats) for cache in options.caches]
    print(markdown.table(HEADS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
