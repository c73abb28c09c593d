"""A sampler that commits when a recorded decode did: random weights then commit as many tokens a turn as a trained
model, and the time of a turn times the recorded tokens per forward is a speed.

The trace is a file beside this one. Record it again: ``python -m experiments.gpu_hour.follow``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.samplers.base import Sampler

FILE = Path(__file__).with_name("trace.json")
LENGTH = 32  # tokens of a recorded block
PROMPTS = 4 * ("latin_square", "words_to_sentence", "latin_square", "sort")  # any four in a row are alike


@cache
def trace() -> dict[str, Any]:
    """of: what was recorded. blocks: for each decode, the turn that fixed each of its positions. useful: how many of
    these tokens are text (the rest follow the end of the text)."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def useful_share() -> float:
    """The part of the recorded tokens that is text."""
    return float(sum(trace()["useful"]) / (LENGTH * len(trace()["useful"])))


def recorded_tpf() -> float:
    """Useful tokens per forward of the recorded decodes."""
    return float(sum(trace()["useful"]) / sum(map(max, trace()["blocks"])))


class Follow(Sampler):
    """Commit every open position whose recorded turn has come, or else the one whose turn is next (a
    cache may hold a position back beyond its turn). Each row strings the recorded blocks together from another one on.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False)

    def __init__(self, block: int = LENGTH) -> None:
        self.block = block

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        due = torch.stack([self._due(canvas, row) for row in range(len(canvas.start))])
        return {"due": due.to(canvas.start.device)}

    def _due(self, canvas: Canvas, row: int) -> torch.Tensor:
        """The turn of each column [L]."""
        blocks, columns = trace()["blocks"], len(canvas.columns)
        out, turn, begin = torch.zeros(columns, dtype=torch.int64), 0, int(canvas.start[row])
        number = int(canvas.param_index[row])
        while begin < columns:
            width = min(self.block, columns - begin)
            turns = torch.tensor(rank_of(blocks[number % len(blocks)][:width]))
            out[begin : begin + width], turn = turns + turn, turn + int(turns.max())
            begin, number = begin + width, number + 1
        return out

    def step(self, view: View, state: State) -> Step:
        due = view.open & (state["due"] <= view.blocks.turn[:, None])
        soonest = argmax_mask(-state["due"].double(), view.open) & ~due.any(1, keepdim=True)
        return view.step(due | soonest)


def record() -> dict[str, Any]:
    """Decode puzzles and lists of the mini suite with mini-llada, 32 tokens each, by the confidence rule."""
    from dllm import Decoder, load
    from dllm.tasks.mini import tasks
    from dllm.tasks.mini.items import Draw

    given = Draw(Random(17))
    items = [tasks.draw(task, given) for task in PROMPTS]
    results = Decoder(load("mini-llada"), "confidence", "fixed", gen_length=LENGTH)([one.messages for one in items])
    of = f"mini-llada, sampler=confidence (0.9), blocks of {LENGTH}, {len(PROMPTS)} prompts of the mini suite"
    blocks = [rank_of(one.turns) for one in results]
    return {"of": of, "blocks": blocks, "useful": [len(one.tokens) for one in results]}


def rank_of(turns: list[int]) -> list[int]:
    """The turns numbered from 1 on, without those in which nothing was committed for good."""
    order = sorted(set(turns))
    return [order.index(turn) + 1 for turn in turns]


if __name__ == "__main__":
    FILE.write_text(json.dumps(record()) + "\n")
