"""Commit what exceeds the mean confidence so far, and remask the least likely tokens (Saber, arXiv 2510.18165)."""

from __future__ import annotations

import torch

from dllm.canvas import Canvas
from dllm.common.ranking import top
from dllm.contract import Need, State, Step, View
from dllm.errors import in_range
from dllm.samplers.base import Sampler
from dllm.traits import Schedule


class Saber(Sampler):
    """Commit what exceeds the mean confidence of all commits so far (1.0 at the start), and at least ``minimum``
    positions. Then remask the committed tokens of the open blocks that have the least probability now:
    min(ceil(new / ``backtrack``), new - 1) of them, where ``new`` positions were committed."""

    stateless = False
    revocable = True
    by_confidence = False

    def __init__(self, minimum: int = 2, backtrack: int = 8) -> None:
        in_range("sampler.minimum", minimum, 1)
        in_range("sampler.backtrack", backtrack, 1)
        self.minimum, self.backtrack = minimum, backtrack

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True, statistics=frozenset({"current"})),)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        zero = torch.zeros_like(canvas.start)
        return {"sum": zero.double(), "count": zero}

    def step(self, view: View, state: State) -> Step:
        confidence, count = view.scores.confidence, state["count"]
        bar = torch.where(count > 0, state["sum"] / count.clamp(min=1), 1.0)
        accepted = view.open & (confidence > bar[:, None])
        wanted = torch.maximum(accepted.sum(1), torch.full_like(count, self.minimum))
        commit = top(confidence, view.open, wanted)
        new = commit.sum(1)
        undo = torch.minimum(-(-new // self.backtrack), new - 1).clamp(min=0)
        committed = view.scores.scored & view.canvas.revisable & view.blocks.in_open
        remask = top(-view.scores.stat("current"), committed, undo)
        changed = {"sum": state["sum"] + (confidence * commit).sum(1), "count": count + new}
        return view.step(commit, accepted=accepted, remask=remask, state=changed)
