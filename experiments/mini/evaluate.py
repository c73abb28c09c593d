"""What a mini model does: ``python -m experiments.mini.evaluate FOLDER`` writes FOLDER/scores.json.

Held-back items, scored by task: by tokens a step (in blocks of 32), by wording and names, by size of the
item, by length of the canvas, and under caches; causal models by ways to decode in place of the last three, and one
token a forward from left to right elsewhere. ``--parts`` measures some of them; what is there already is kept if
it was measured on the same weights. ``experiments.mini.card`` turns the file into the model's card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from dllm import Decoder, Model, load, part
from dllm.parts.blocks.base import Blocks
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.static import Static
from dllm.prompts import Prompt
from dllm.tasks.mini import tasks, wordings
from dllm.tasks.mini.items import Sample
from experiments.mini.decoders import decoder, settings_of
from experiments.support.held_out import answered
from experiments.support.scripts import refusing

TOKENS_PER_STEP = (1, 2, 4, 8, 32)
WORDINGS = ("plain", *wordings.SOURCES)
CANVASES = (32, 64, 128, 256)
BLOCKS = (8, 16, 32)
BY_BLOCK, WHOLE = ("none", "prefix", "dual", "dkv"), ("none", "elastic", "window")  # caches that go by blocks; others
BATCH = 32
ERRORS = Console(stderr=True)
Setting = TypeVar("Setting")
Right = dict[str, list[float]]  # task -> 1 or 0 for each item


@dataclass(frozen=True)
class Asked:
    """What to measure with: the model, items per task, the seed of the items, and items per task with long answers, of
    which one takes ten times as long (0: as many)."""

    model: Model
    count: int
    seed: int
    long: int = 0

    def items(self, task: str, **how: Any) -> list[Sample]:
        count = self.long if self.long and task in tasks.LONG_ANSWERS else self.count
        return tasks.generate(task, self.seed, count, **how)


def answers(model: Model, items: Sequence[Sample], length: int, **parts: Any) -> list[float]:
    """The score of each item, 1 or 0."""
    return answered(Decoder(model, gen_length=length, batch_size=BATCH, **parts), items)[1]


def whole(model: Model, items: Sequence[Sample], per_step: int, length: int) -> list[float]:
    """In one block as long as the answer, the most confident first; causal models the first way of their kind."""
    if model.config.attention.causal:
        return decoded(model, items, next(iter(settings_of(model).values())), length)
    return answers(model, items, length, sampler=Static(per_step=per_step), blocks="whole")


def decoded(model: Model, items: Sequence[Sample], words: Sequence[str], length: int) -> list[float]:
    """The score of each item, decoded as the ``words`` of a command line say."""
    return answered(decoder(model, words, length, BATCH), items)[1]


def scored(
    settings: Iterable[Setting],
    scores: Callable[[Setting, str], list[float]],
    names: Callable[[Setting], Iterable[str]] = lambda _: tasks.TASKS,
    label: Callable[[Setting], str] = str,
) -> dict[str, Right]:
    """By setting and task, with a bar for each setting. names: the tasks of a setting."""
    return {
        label(one): {task: scores(one, task) for task in track(list(names(one)), label(one), console=ERRORS)}
        for one in settings
    }


def by_way(asked: Asked) -> dict[str, Right]:
    """By ways to decode a causal model."""
    ways = settings_of(asked.model)
    return scored(ways, lambda way, task: decoded(asked.model, asked.items(task), ways[way], tasks.longest(task)))


def by_speed(asked: Asked) -> dict[str, Right]:
    """By tokens a step, in blocks of 32 as LLaDA is decoded: short answers are one. At the most tokens long answers
    also in one block."""

    def in_blocks(count: int, task: str) -> list[float]:
        how = {"sampler": Static(per_step=count), "blocks": fixed(32)}
        return answers(asked.model, asked.items(task), tasks.longest(task), **how)

    def at_once(_: str, task: str) -> list[float]:
        return whole(asked.model, asked.items(task), TOKENS_PER_STEP[-1], tasks.longest(task))

    most = f"{TOKENS_PER_STEP[-1]}, one block"
    return scored(TOKENS_PER_STEP, in_blocks) | scored([most], at_once, lambda _: tasks.LONG_ANSWERS)


def by_wording(asked: Asked) -> dict[str, Right]:
    """By wording, known names, one token a step."""
    model = asked.model
    return scored(
        WORDINGS, lambda wording, task: whole(model, asked.items(task, wording=wording), 1, tasks.longest(task))
    )


def by_names(asked: Asked) -> dict[str, Right]:
    """By names, one token a step; a spelt name takes three or four tokens, so that lists of them get twice the canvas,
    and records of them are left out: they would take 256 forwards."""
    tokens = {"known": 1, "new": 1, "spelt": 2, "unseen": 2}
    return scored(
        tokens,
        lambda names, task: whole(asked.model, asked.items(task, names=names), 1, tokens[names] * tasks.longest(task)),
        lambda names: [task for task in tasks.OF_NAMES if tokens[names] == 1 or task not in tasks.LONG_ANSWERS],
    )


def by_size(asked: Asked) -> dict[str, Right]:
    """By how many names, letters, digits, ... an item has; one token a step."""
    found: dict[int, dict[str, list[Sample]]] = {}
    for task in tasks.TASKS:
        drawn = [item for size in range(2, 9) for item in asked.items(task, sizes=(size, size))]
        for item in {item.prompt: item for item in drawn}.values():  # a task without that size gives its nearest again
            found.setdefault(item.size, {}).setdefault(task, []).append(item)
    return scored(
        sorted(found),
        lambda size, task: whole(asked.model, found[size][task], 1, tasks.longest(task)),
        lambda size: found[size],
    )


def by_canvas(asked: Asked) -> dict[str, Right]:
    """By length of the canvas; half of the items, the threshold of sampler=confidence, blocks of 32."""
    how = {"sampler": "confidence", "blocks": fixed(32)}
    return scored(
        CANVASES,
        lambda length, task: answers(asked.model, asked.items(task)[::2], length, **how),
        lambda length: [task for task in tasks.TASKS if length >= tasks.longest(task)],
    )


def by_cache(asked: Asked) -> dict[str, Right]:
    """Under caches, sampler=confidence at 0.9: by blocks of 8, 16, 32 for those that go by blocks, else whole."""
    by_block = [(cache, block) for block in BLOCKS for cache in BY_BLOCK]
    return under(asked, "confidence", [*by_block, *((cache, 0) for cache in WHOLE)])


def by_cache_carefully(asked: Asked) -> dict[str, Right]:
    """Under caches that go by blocks, one token a step, in blocks of 32."""
    return under(asked, Static(), [(cache, 32) for cache in BY_BLOCK])


def under(asked: Asked, sampler: str | Sampler, settings: Sequence[tuple[str, int]]) -> dict[str, Right]:
    """Under caches, each in blocks of its length (0: whole)."""

    def scores(setting: tuple[str, int], task: str) -> list[float]:
        cache, block = setting
        how = {"sampler": sampler, "cache": cache, "blocks": blocks_of(block)}
        return answers(asked.model, asked.items(task), tasks.longest(task), **how)

    return scored(settings, scores, label=label_of)


def label_of(setting: tuple[str, int]) -> str:
    return f"{setting[0]} {setting[1] or 'whole'}"


def savings(asked: Asked) -> dict[str, dict[str, float]]:
    """What caches save on canvases of 128, batch 1: query tokens and seconds a sample, the fewest of three passes.

    One token a step, so that every cache makes the same forwards; every tenth item of the long tasks.
    """
    items = [item for task in tasks.LONG_ANSWERS for item in asked.items(task)[::10]]
    prompts: list[Prompt] = [item.messages for item in items]
    found = {}
    settings = [*((cache, 32) for cache in BY_BLOCK), *((cache, 0) for cache in WHOLE)]
    for cache, block in track(settings, "savings", console=ERRORS):
        decoder = Decoder(asked.model, Static(), blocks_of(block), cache, "none", gen_length=128)
        passes = [decoder(prompts) for _ in range(3)]
        seconds = min(sum(row.seconds for row in rows) for rows in passes) / len(items)
        queries = sum(row.query_tokens for row in passes[0]) / len(items)
        found[label_of((cache, block))] = {"query_tokens": queries, "seconds": seconds}
    return found


def fixed(length: int) -> Blocks:
    return part("blocks", "fixed", block_length=length)


def blocks_of(block: int) -> Blocks:
    """Blocks of this length, or one for the whole answer."""
    return fixed(block) if block else part("blocks", "whole")


PARTS: dict[str, Callable[[Asked], Any]] = {
    "speed": by_speed,
    "wording": by_wording,
    "names": by_names,
    "size": by_size,
    "canvas": by_canvas,
    "cache": by_cache,
    "careful": by_cache_carefully,
    "savings": savings,
    "way": by_way,
}
CAUSAL = ("way", "wording", "names", "size")
SEED = 1
COUNTS = {
    "way": 50,
    "speed": 1000,
    "wording": 50,
    "names": 20,
    "size": 10,
    "canvas": 20,
    "cache": 50,
    "careful": 50,
    "savings": 20,
}
LONG = {"speed": 100, "wording": 20, "careful": 20}  # of tasks with long answers


def parts_of(model: Model) -> list[str]:
    """The parts that are measured of a model, by its attention."""
    return list(CAUSAL) if model.config.attention.causal else [name for name in PARTS if name != "way"]


def weights_digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that training left, or the name of a shipped model")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), help="those of the model's kind by default")
    parser.add_argument("--count", type=int, default=0, help="items per task and setting (0: each part's own number)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the held-out items")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = load(given.model)
    file, weights = model.path / "scores.json", weights_digest(model.path)
    kept = json.loads(file.read_text()) if file.is_file() else {}
    if kept.get("weights") != weights:
        kept = {"weights": weights, "parts": {}}
    for name in given.parts or parts_of(model):
        began, count = time.process_time(), given.count or COUNTS[name]
        long = 0 if given.count else LONG.get(name, 0)
        rows = PARTS[name](Asked(model, count, given.seed, long))
        minutes = (time.process_time() - began) / 60
        asked = {"count": count, "long": long, "seed": given.seed}
        kept["parts"][name] = {**asked, "cpu_minutes": round(minutes, 2), "right": rows}
        file.write_text(json.dumps(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
