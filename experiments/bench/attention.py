"""Measure what attention weights as a statistic cost a forward: ``python -m experiments.bench.attention``.

The model is that of ``bench_cache`` (142 M parameters, 12 layers, float32, random), the prompt has 512 tokens, the
answer 256 in blocks of 32, and every forward commits one. One decode for each line of the table goes beside one without
weights, a forward of each in turn, so all are slowed alike by other work. Times are of the CPU. Prints the median of a
forward and of what the weights add to it, in milliseconds, and this over that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from dllm import part
from dllm.compose.fitted import Parts
from dllm.contract import Need
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import AttentionMap
from dllm.laws.decodes import ids_of
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.models.network.transformer import Transformer
from dllm.parts.eos.none import FullLength
from dllm.parts.samplers.static import Static
from experiments.bench.cache import BLOCK, CONFIG, random_model, request
from experiments.support import markdown
from experiments.support.scripts import counted, refusing

ANSWER = 256
ASKED = {
    "a quarter of the layers (adas)": AttentionMap(),
    "half of them": AttentionMap(6),
    "all": AttentionMap(12),
    "a quarter, and what every column gets (dawn)": AttentionMap(received=True),
}
HEADS = ("cache", "weights of", "forward", "added", "share")


class Asking(Static):
    """One token per forward, and attention weights that are not used."""

    def __init__(self, asked: AttentionMap | None) -> None:
        super().__init__()
        self.asked = asked

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), Need(reads=() if self.asked is None else (self.asked,)))


def forwards(model: Transformer, cache: str, asked: AttentionMap | None, answer: int) -> Iterator[float]:
    """Milliseconds of CPU time of each forward of the middle block, the first left out: it fills the cache."""
    sampler, blocks, memory = Asking(asked), part("blocks", "fixed", block_length=BLOCK), part("cache", cache)
    ids, parts = ids_of(model.config), Parts(sampler, blocks, memory, FullLength())
    canvas = Canvas.of([request(answer, answer // 2 // BLOCK * BLOCK, model.config.vocab)], ids.eos)
    loop = denoise(canvas, Forward.of(model, ids, parts), parts)
    with torch.inference_mode():
        next(loop)
        while True:
            began = time.process_time()
            if next(loop, None) is None:
                return
            yield 1000 * (time.process_time() - began)


def line(model: Transformer, cache: str, words: str, count: int, answer: int = ANSWER) -> str:
    pair = zip(forwards(model, cache, None, answer), forwards(model, cache, ASKED[words], answer), strict=False)
    times = [*islice(pair, count)]
    plain, added = statistics.median(one for one, _ in times), statistics.median(other - one for one, other in times)
    return markdown.line((cache, words, f"{plain:.1f}", f"{added:.1f}", f"{100 * added / plain:.1f} %"))


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=counted, default=25, help="forwards of each line")
    count = parser.parse_args(arguments).count
    torch.set_num_threads(1)
    model = random_model(CONFIG)
    print(f"One thread, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}\n")
    print(markdown.head(HEADS, words=2))
    for cache in ("none", "dual"):
        for words in ASKED:
            print(line(model, cache, words, count), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
