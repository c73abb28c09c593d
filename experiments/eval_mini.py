"""Score a mini model on held-back items: ``python -m experiments.eval_mini mini-llada --count 100``.

One column per number of tokens committed in each forward, most confident first, in one block of 32.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dllm import Decoder, load
from dllm.analysis.measures import wilson
from dllm.prompts import Prompt
from dllm.samplers.static import Static
from dllm.tasks.parallelbench import mini

ANSWER = 32
TOKENS_PER_STEP = (1, 2, 4, 8, 32)


def accuracy(decoder: Decoder, samples: Sequence[mini.MiniItem]) -> float:
    """How many samples the decoder answers right."""
    prompts: list[Prompt] = [sample.messages for sample in samples]
    results = decoder(prompts)
    return sum(sample.score(result.text)["score"] for sample, result in zip(samples, results, strict=True))


def cell(right: float, count: int) -> str:
    low, high = wilson(right, count)
    return f"{100 * right / count:.0f} ({100 * low:.0f}-{100 * high:.0f})"


def evaluate(name: str, count: int, seed: int) -> dict[str, list[float]]:
    """Right answers per task, one number for each entry of TOKENS_PER_STEP."""
    model = load(name)
    decoders = [
        Decoder(model, Static(steps=ANSWER // k), gen_length=ANSWER, batch_size=min(count, 64)) for k in TOKENS_PER_STEP
    ]
    tasks = track(mini.TASKS, "scoring", console=Console(stderr=True))
    return {
        task: [accuracy(decoder, mini.generate(task, seed, count)) for decoder in decoders] for task in tasks
    }  # fmt: skip


def table(found: dict[str, list[float]], count: int) -> str:
    """A Markdown table of the scores with their intervals, the mean over tasks last."""
    heads = ["task", *(f"{k} a step" for k in TOKENS_PER_STEP)]
    rows = [[task, *(cell(right, count) for right in scores)] for task, scores in found.items()]
    means = [100 * sum(column) / count / len(found) for column in zip(*found.values(), strict=True)]
    rows.append(["mean", *(f"{mean:.0f}" for mean in means)])
    lines = [heads, ["---", *["---:"] * len(TOKENS_PER_STEP)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(markdown: str) -> None:
    """In a terminal a drawn table, else the Markdown itself."""
    lines = [[part.strip() for part in line.strip("| ").split("|")] for line in markdown.splitlines()]
    console = Console()
    if not console.is_terminal:
        print(markdown)
        return
    drawn = Table(*lines[0])
    for line in lines[2:]:
        drawn.add_row(*line)
    console.print(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="mini-llada, mini-dream, or a folder of the same format")
    parser.add_argument("--count", type=int, default=100, help="items per task")
    parser.add_argument("--seed", type=int, default=1, help="seed of the held-back items")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    show(table(evaluate(given.model, given.count, given.seed), given.count))


if __name__ == "__main__":
    main()
