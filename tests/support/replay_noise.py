"""Recorded decodes of models of noise: every canvas, argmax, entropy, acceptance and commit.

What the recorded program drew is laid in: its first canvases, its draws, and its fresh noise. All else is decoded, in
``WAYS``. Rows of a batch decode together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from replay_causal import WAYS, Way, model_of
from replay_parts import Case, CaseParts
from torch import Tensor

from dllm.parts import (
    Canvas,
    FillAfterBlock,
    Fixed,
    Forward,
    Ids,
    Noise,
    Renoise,
    Request,
    Sampling,
    Turn,
    View,
    denoise,
)

OF_CASE = {"name", "model", "torch_seed", "eos", "pad", "params", "own_canvas", "rows", "margins"}
OF_ROW = {"prompt", "answer", "canvases", "forwards", "tokens_per_forward"}
OF_BLOCK = {"steps", "committed", "early"}
OF_STEP = {"step", "canvas", "argmax", "entropy", "accepted", "draws", "renoise"}
# nats: the recorded ones are float32 and 1.2e-4 from ours in float64; in float32 2.2e-4 to 3.1e-4 by processor
ENTROPY = {torch.float64: 2e-4, torch.float32: 1e-3}


@dataclass(frozen=True)
class Laid:
    """The recorded canvases as first noise."""

    rows: Sequence[Case]  # of the case

    def fill(self, canvas: Canvas) -> Canvas:
        first = [[block["steps"][0]["canvas"] for block in row["canvases"]] for row in self.rows]
        return canvas.show(canvas.masked, laid(canvas, [sum(blocks, []) for blocks in first], 0))


class Drawn(Renoise):
    """Draws and noise as they were recorded."""

    rows: Sequence[Case]

    def draws(self, view: View) -> Tensor:
        return self.recorded(view, "draws")

    def noise(self, view: View) -> Tensor:
        return self.recorded(view, "renoise")

    def recorded(self, view: View, name: str) -> Tensor:
        blocks, each = view.blocks, zip(view.canvas.row_id.tolist(), view.blocks.index.tolist(), strict=True)
        steps = [self.rows[row]["canvases"][block]["steps"] for row, block in each]
        values = [some[at - 1][name] for some, at in zip(steps, blocks.forwards.tolist(), strict=True)]
        return laid(view.canvas, values, blocks.begin - view.canvas.start)


def laid(canvas: Canvas, values: Sequence[Sequence[int]], at: Tensor | int) -> Tensor:
    """Values of each row from its column ``start + at`` on, and 0 elsewhere [B, L]."""
    out, begin = torch.zeros_like(canvas.tokens), (canvas.start + at).tolist()
    for row, (some, first) in enumerate(zip(values, begin, strict=True)):
        out[row, first : first + len(some)] = torch.tensor(some)
    return out


@dataclass
class Row:
    """What a decode did in one row: each turn's canvas, argmax, entropies, accepted positions, and block, and what each
    block was committed to."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)

    def observe(self, turn: Turn, row: int) -> None:
        view, step = turn.view, turn.step
        begin, end, start = (int(one[row]) for one in (view.blocks.begin, view.blocks.end, view.canvas.start))
        here, scores = slice(begin, end), view.scores
        assert step.accepted is not None
        self.turns.append(
            {
                "block": int(view.blocks.index[row]),
                "canvas": turn.tried.tokens[row, here].tolist(),
                "argmax": scores.statistic("likeliest")[row, here].tolist(),
                "entropy": scores.statistic("entropy")[row, here].tolist(),
                "accepted": step.accepted[row, here].nonzero()[:, 0].tolist(),
            }
        )
        if bool(step.commit[row].any()):
            self.committed.append(step.tokens[row, here].tolist())
        self.answer = turn.candidates.tokens[row, start : int(turn.candidates.end[row])].tolist()


def decoded(case: Case, models: Path, way: Way) -> list[Row]:
    params, rows = case["params"], case["rows"]
    model = model_of(models / case["model"], way[1], None)
    block = model.config.attention.block
    assert block is not None
    rule = Drawn(
        params["steps"], params["bound"], params["t_min"], params["t_max"], params["stability"], params["confidence"]
    )
    rule.rows = rows
    parts = CaseParts(rule, Fixed(block), way[0](), FillAfterBlock("any"), Sampling().under(rule))
    ids = Ids(None, case["eos"][0], tuple(case["eos"]))
    forward = Forward.of(model, ids, parts)
    laid = [Noise(Laid(rows)) if isinstance(one, Noise) else one for one in forward.extras]
    forward = replace(forward, extras=tuple(laid))
    length = -(-params["new"] // block) * block  # rounded up
    asked = [Request.answer(row["prompt"], length, ids.placeholder) for row in rows]
    out = [Row() for _ in rows]
    with torch.inference_mode():
        for turn in denoise(Canvas.of(asked, case["pad"]), forward, parts):
            for row, name in enumerate(turn.canvas.row_id.tolist()):
                out[name].observe(turn, row)
    return out


def outcomes(data: Case, models: Path, sample: bool = False) -> Iterator[str | None]:
    """What is wrong with each case (None: all is equal). sample: every second case, in one of the ways, by turns."""
    for number, case in enumerate(data["cases"]):
        ways = WAYS[number // 2 % len(WAYS) :][: number % 2] if sample else WAYS
        yield "; ".join(dict.fromkeys(fault for way in ways for fault in differing(case, models, way))) or None


def differing(case: Case, models: Path, way: Way) -> Iterator[str]:
    """Which fields differ in one way of decoding, or are unknown here."""
    yield from (f"{name} cannot be compared here" for name in sorted(case.keys() - OF_CASE))
    for row, found in zip(case["rows"], decoded(case, models, way), strict=True):
        yield from (f"{name} cannot be compared here" for name in sorted(row.keys() - OF_ROW))
        steps = [(number, step) for number, block in enumerate(row["canvases"]) for step in block["steps"]]
        if len(steps) != len(found.turns):
            yield "steps differ"
        for (number, step), turn in zip(steps, found.turns, strict=False):
            yield from (f"{name} cannot be compared here" for name in sorted(step.keys() - OF_STEP))
            if number != turn["block"]:
                yield "block differ"
            yield from (f"{name} differ" for name in ("canvas", "argmax", "accepted") if step[name] != turn[name])
            if max(abs(a - b) for a, b in zip(step["entropy"], turn["entropy"], strict=True)) > ENTROPY[way[1]]:
                yield "entropy differ"
        for number, block in enumerate(row["canvases"]):
            yield from (f"{name} cannot be compared here" for name in sorted(block.keys() - OF_BLOCK))
            if [block["committed"]] != found.committed[number : number + 1]:
                yield "committed differ"
            if block["early"] != is_calm(case["params"], [turn for turn in found.turns if turn["block"] == number]):
                yield "early differ"
        yield from whole(case, row, found)


def is_calm(params: Case, turns: Sequence[dict[str, Any]]) -> bool:
    """Whether a block's last forward met what ends it early."""
    last, same = turns[-1], turns[-1 - params["stability"] : -1]
    steady = len(same) == params["stability"] and all(turn["argmax"] == last["argmax"] for turn in same)
    return steady and sum(last["entropy"]) / len(last["entropy"]) < params["confidence"]


def whole(case: Case, row: Case, found: Row) -> Iterator[str]:
    """What differs in the answer, which the recorded program pads behind its first end of text, and in its counts."""
    ends = [at for at, token in enumerate(found.answer) if token in case["eos"]]
    kept = found.answer[: ends[0] + 1] if ends else found.answer
    padded = kept + [case["pad"]] * (len(row["answer"]) - len(kept))
    if row["answer"] != padded:
        yield "answer differ"
    if row.get("forwards", len(found.turns)) != len(found.turns):
        yield "forwards differ"
    tokens = len([token for token in padded if token != case["pad"]])
    if abs(row.get("tokens_per_forward", (speed := tokens / len(found.turns))) - speed) > 1e-6:
        yield "tokens_per_forward differ"


METHODS = {"diffusion_gemma": outcomes}
