"""WeDLM's parallel decoding against left to right, in seconds: ``python -m experiments.bench.wedlm``.

First the mini models on held-out items: ``mini-ar`` from left to right with the exact cache, and ``mini-wedlm``, which
was adapted from it, with windows of one and of 16 columns. Then random weights of a real shape, Qwen2.5-0.5B's, where
the tokens of a forward are prescribed: what a forward of the window costs beside one of a single token, and so how many
tokens it must bring.

All ways decode an item before the next one comes, another way first each time, so that other work on the machine slows
all alike. Batch 1, one thread. Prints Markdown tables of wall and CPU time, and the load of the machine.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from rich.console import Console
from rich.progress import track

from dllm import Decoder, Model, Result, load, part
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.network.visibility import CausalByRank, ContextCausal
from dllm.parts.blocks.base import Blocks
from dllm.tasks.mini import tasks as mini
from experiments.bench.step import as_loaded, bundled, prompt_of, random_model
from experiments.mini.decoders import LEFT_TO_RIGHT, WEDLM, decoder
from experiments.support import markdown
from experiments.support.markdown import percent
from experiments.support.scripts import counted, refusing

(AUTOREGRESSIVE,) = LEFT_TO_RIGHT.values()
ONE_BY_ONE = WEDLM["left to right"]
MINIS: Mapping[str, tuple[str, Sequence[str]]] = {
    "mini-ar, left to right": ("mini-ar", AUTOREGRESSIVE),
    "mini-wedlm, left to right, window 1": ("mini-wedlm", (*ONE_BY_ONE, "blocks.block_length=1")),
    "mini-wedlm, left to right, window 16": ("mini-wedlm", ONE_BY_ONE),
    **{f"mini-wedlm, {at}, window 16": ("mini-wedlm", WEDLM[at]) for at in ("threshold 0.1", "threshold 0.4")},
}
HEADS = (
    "model, decoding",
    "score",
    "TPF",
    "rows a forward",
    "ms a forward",
    "ms a token",
    "CPU ms a token",
    "times as fast",
)
WINDOW, PER_FORWARD = 16, (2, 4, 8)


def qwen() -> ModelConfig:
    """Qwen2.5-0.5B's shape."""
    return ModelConfig(
        family="wedlm", width=896, layers=24, heads=14, kv_heads=2, head_dim=64, mlp_width=4864, vocab=151936,
        max_length=4096, eps=1e-6, theta=1e6, mask_id=151665, eos_id=151643, pad_id=151643, rotary_dim=64,
        qkv_bias=True, tied=True, attention=CausalByRank(),
    )  # fmt: skip


@dataclass
class Way:
    """One way to decode. decode: of an item, by its number. wall, cpu: seconds of all answers."""

    label: str
    decode: Callable[[int], Result]
    rows: list[Result] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0

    def __call__(self, number: int) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.rows.append(self.decode(number))
        self.wall, self.cpu = self.wall + time.perf_counter() - wall, self.cpu + time.process_time() - cpu

    @property
    def tokens(self) -> int:
        """Of the answers, without their ends."""
        return sum(row.useful_tokens for row in self.rows)

    def cells(self, first: Way, score: str = "") -> list[str]:
        """A row of the table. first: what it is measured against."""
        forwards, queries = sum(row.nfe for row in self.rows), sum(row.query_tokens for row in self.rows)
        return [
            self.label,
            score,
            f"{self.tokens / forwards:.2f}",
            f"{queries / forwards:.1f}",
            f"{1000 * self.wall / forwards:.2f}",
            f"{1000 * self.wall / self.tokens:.2f}",
            f"{1000 * self.cpu / self.tokens:.2f}",
            f"{first.wall / first.tokens / (self.wall / self.tokens):.2f}",
        ]


def in_turn(ways: Sequence[Way], count: int, words: str) -> None:
    """Every way on each item, another one first each time."""
    for number in track(range(count), words, console=Console(stderr=True)):
        for place in range(len(ways)):
            ways[(number + place) % len(ways)](number)


def mini_table(count: int) -> str:
    """The mini models on held-out items."""
    models = {name: load(name) for name, _ in MINIS.values()}
    items = [item for task in mini.TASKS for item in mini.generate(task, 1, count)]

    def way(label: str, model: Model, words: Sequence[str]) -> Way:
        by_length = {length: decoder(model, words, length, 1) for length in set(map(mini.longest, mini.TASKS))}
        return Way(label, lambda number: by_length[mini.longest(items[number].task)](items[number].messages)[0])

    ways = [way(label, models[name], words) for label, (name, words) in MINIS.items()]
    for one in ways:
        one.decode(0)  # first-time costs do not count
    in_turn(ways, len(items), "mini models")
    scores = [
        percent([mini.score(item, row.text)["score"] for item, row in zip(items, one.rows, strict=True)])
        for one in ways
    ]
    table = markdown.table(HEADS, [one.cells(ways[0], score) for one, score in zip(ways, scores, strict=True)])
    return f"### Mini models, {len(items)} items\n\n{table}"


def random_table(config: ModelConfig, prompt: int, answer: int, repeats: int) -> str:
    """Random weights, with a number of tokens a forward."""
    wedlm = as_loaded(random_model(config, torch.device("cpu"), torch.float32))
    causal = copy.copy(wedlm)  # the same weights, read as an autoregressive model
    causal.config = replace(config, family="nbdiff", prediction_shift=1, attention=ContextCausal(1))

    def way(label: str, network: Transformer, blocks: Blocks, per_forward: int) -> Way:
        rule = part("sampler", "order", positions="left_to_right", per_step=per_forward)
        one = Decoder(bundled(network), rule, blocks, "finished", "none", gen_length=answer)
        return Way(label, lambda number: one([prompt_of(prompt, number, min(50_000, config.vocab - 2))])[0])

    window = part("blocks", "sliding", block_length=WINDOW, max_block_length=WINDOW)
    ways = [way("left to right", causal, part("blocks", "whole"), 1)]
    ways += [way(f"window {WINDOW}, {many} a forward", wedlm, window, many) for many in PER_FORWARD]
    in_turn(ways, repeats, "random weights")
    title = f"### Random weights, width {config.width}, prompt {prompt}, answer {answer}, {repeats} answers"
    return f"{title}\n\n{markdown.table(HEADS, [one.cells(ways[0]) for one in ways])}"


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=counted, default=4, help="items per task; there are 15 tasks")
    count = parser.parse_args(arguments).count
    torch.set_num_threads(1)
    print(f"One thread, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n")
    print(mini_table(count), end="\n\n", flush=True)
    print(random_table(qwen(), 128, 64, 2), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
