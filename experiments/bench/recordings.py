"""How many turns of a new text find a recording, and how many columns they run for those that they need.

A CPU counts: turns run as they are, the widths of their calls are those of a GPU, and what a recorded turn would do is
looked up as ``runtime=cudagraph`` does. Answers of 256 to prompts of 768 tokens, a block of 32 in some ten turns.

    python -m experiments.bench.recordings
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import torch

from dllm.cache.calls import ROWS_PER_STREAMED
from dllm.common.ranking import argmax_mask
from dllm.common.terminal import say
from dllm.compose.fitted import Parts
from dllm.contract import State, Step, Turn, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.loop.denoise import take_turn
from dllm.loop.forward import Forward
from dllm.loop.recorded import RecordedTurns, widths_of
from dllm.loop.rows import Rows
from dllm.models.transformer import Transformer
from dllm.samplers.base import Sampler
from experiments.bench.step import SMALL, Workload, decode, named, random_model

TINY = replace(SMALL, width=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_width=16, vocab=300, mask_id=298,
               eos_id=299, pad_id=299, rotary_dim=16)  # fmt: skip


# Of 16 blocks that mini-llada decoded by the confidence rule, the turn that fixed each of their 32 positions.
TURNS = json.loads(Path(__file__).with_name("commit_turns.json").read_text())["blocks"]


class Follow(Sampler):
    """Commits every open position whose recorded turn has come, or else the one whose turn is next. Each row strings
    the recorded blocks together from another one on."""

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=False)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        rows = zip(canvas.start.tolist(), canvas.param_index.tolist(), strict=True)
        return {"due": torch.stack([self._due(begin, number, len(canvas.columns)) for begin, number in rows])}

    def _due(self, begin: int, number: int, length: int) -> torch.Tensor:
        """The turn of each column [L] of a row."""
        due, last = [0] * begin, 0
        while len(due) < length:
            turns = TURNS[number % len(TURNS)]
            due, last, number = [*due, *(last + turn for turn in turns)], last + max(turns), number + 1
        return torch.tensor(due[:length])

    def step(self, view: View, state: State) -> Step:
        due = view.open & (state["due"] <= view.blocks.turn[:, None])
        soonest = argmax_mask(-state["due"].double(), view.open) & ~due.any(1, keepdim=True)
        return view.step(due | soonest)


@dataclass
class Lookups:
    """Takes turns, and counts those that a recording would replay."""

    turns: RecordedTurns  # what would record them
    replayed: list[bool] = field(default_factory=list)  # of each turn, whether a recording serves it
    needed: int = 0  # columns that the turns but the first need
    run: int = 0  # columns that they run

    def __call__(self, rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        rows = rows.bounded()
        _, widths = widths_of(rows)
        kind = self.turns.kind_of(rows, forward, 0)
        known, met = self.turns.lookup(kind, widths)
        if met and known is not None:
            self.turns.recorded.setdefault((kind, known), None)  # type: ignore[arg-type]  # made in this turn
        after, turn = take_turn(rows, forward, parts)
        if not met:
            self.turns.meet(kind, widths, rows, after)
        if self.replayed:
            self.needed += int(turn.cost.queries[:, 0].sum())
            self.run += sum((known or widths)[: len(rows)])
        self.replayed.append(known is not None)
        return after, turn


def lookups(cache: str, batch: int, model: Transformer) -> Lookups:
    """The turns of one decode after none like it."""
    found, lag = Lookups(RecordedTurns(model, lambda: None)), int(named("cache", cache).traits.bounds_late)  # type: ignore
    with patch.dict(ROWS_PER_STREAMED, cpu=ROWS_PER_STREAMED["cuda"]):
        for _ in decode(model, cache, Workload(batch, 768, 256, 32, 1), lag, (model, found), Follow()):
            pass
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", nargs="+", default=["dual", "prefix", "window"])
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 16])
    chosen = parser.parse_args(arguments)
    model = random_model(TINY, torch.device("cpu"), torch.float32)
    say("| cache | batch | turns | replayed | columns run / needed |\n|---|---:|---:|---:|---:|")
    for cache in chosen.caches:
        for batch in chosen.batches:
            found = lookups(cache, batch, model)
            share = sum(found.replayed) / len(found.replayed)
            say(f"| {cache} | {batch} | {len(found.replayed)} | {share:.0%} | {found.run / found.needed:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
