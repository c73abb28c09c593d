"""Caches at the edges: rows that wait, prompts with fewer tokens than are to be watched, answers with given tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import forward_of, model

from dllm.blocks.fixed import Fixed
from dllm.blocks.whole import Whole
from dllm.cache.buffer import CacheView
from dllm.cache.dkv import DKV
from dllm.cache.dkv_greedy import DKVGreedy
from dllm.cache.elastic import Elastic
from dllm.compose.fitted import Parts
from dllm.compose.parts import composed, configurations
from dllm.contract import ForwardPlan
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise
from dllm.samplers.confidence import Confidence
from dllm.samplers.order import Order
from dllm.samplers.static import Static

BOTH = ["tiny-llada", "tiny-dream"]


def test_greedy_computes_nothing_for_rows_that_wait() -> None:
    """Two masks, a block of at least six forwards: what they left for the third, nothing until the next refresh."""
    parts = Parts(Order("left_to_right"), Fixed(8, min_forwards=6), DKVGreedy(3, 0), FullLength())
    forward = forward_of(model("tiny-llada"), parts, Sampling())
    with torch.inference_mode():
        loop = denoise(
            Canvas.of([Request.answer([62, 51, 25, 3, 55], 2, 60)], 61), forward, replace(parts, eos=FullLength())
        )
        assert [int(turn.cost.queries) for turn in loop] == [7, 2, 1, 7, 0, 0]


@pytest.mark.parametrize("name", BOTH)
def test_elastic_watches_decided_positions_only(name: str) -> None:
    """A short prompt has fewer of them than are to be watched; beside a longer one it must not make up the rest."""
    prompts = [[62, 51, 55], [62, 51, 25, 3, 4, 34, 6, 23, 37, 55]]
    batch = [Request.answer(prompt, 12, 60) for prompt in prompts]
    parts = Parts(Confidence(0.9), Whole(), Elastic(window_length=1, track_num=6), FullLength())
    forward = forward_of(model(name), parts, Sampling())
    with torch.inference_mode():
        alone, beside = (
            [turn.cost.queries[0].tolist()
             for turn in denoise(Canvas.of(rows, 61), forward, replace(parts, eos=FullLength()))
             if 0 in turn.canvas.row_id.tolist()]
            for rows in (batch[:1], batch)
        )  # fmt: skip
    assert alone == beside
    assert alone[1][0] <= 3 + 1 + 2  # the prompt's three, the window, what was committed and what predicts


def test_elastic_watches_nothing_while_a_full_block_waits() -> None:
    """The window is empty then, and nothing is what it attends to most, whatever stands left of the row."""
    batch = [Request.answer(prompt, 9, 60) for prompt in ([62, 51, 25, 55], [62, 51, 25, 3, 4, 34, 6, 23, 55])]
    parts = Parts(Order("left_to_right"), Fixed(3, min_forwards=5), Elastic(gamma=0.0), FullLength())
    forward = forward_of(model("tiny-llada"), parts, Sampling())
    with torch.inference_mode():
        alone, beside = (
            [
                turn.cost.queries[0].tolist()
                for turn in denoise(Canvas.of(rows, 61), forward, replace(parts, eos=FullLength()))
            ]
            for rows in (batch[:1], batch)
        )
    assert alone == beside and alone[4] == [0] * len(alone[4])


def test_dkv_settles_alike_before_the_first_commit() -> None:
    """``un_right`` asks for a position and the next one, but what is given at the start settles as under ``un``."""
    tokens = [62, 51, 55, 60, 7, 60, 60]
    counts = {}
    for shift_type in ("un", "un_right"):
        request = Request(tokens, [token == 60 for token in tokens], start=3)
        parts = Parts(Static(), Whole(), DKV(8, shift_type), FullLength())
        forward = forward_of(model("tiny-dream"), parts, Sampling())
        with torch.inference_mode():
            loop = denoise(Canvas.of([request], 61), forward, replace(parts, eos=FullLength()))
            counts[shift_type] = [int(turn.cost.queries) for turn in loop]
    assert counts["un"][1] == counts["un_right"][1] == 4


class Watched(DKV):
    """Remembers, for every forward but the full ones, how many masks it did not compute."""

    spared: list[int]

    def plan(self, view: CacheView) -> ForwardPlan:
        plan = super().plan(view)
        if not bool(plan.columns.eq(view.canvas.valid).all()):
            self.spared.append(int((view.canvas.masked & ~plan.columns).sum()))
        return plan


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("options", "spares"), [({}, False), ({"shift_type": "un_right"}, False), ({"shift_type": "un"}, True)]
)
def test_dkv_keeps_nothing_of_a_mask_unless_it_is_told_to(name: str, options: dict[str, str], spares: bool) -> None:
    """What ``un`` keeps for a mask says nothing of the token that takes its place: mini-dream loses a third of its
    answers. LLaDA's masks are computed whatever the option."""
    watched = Watched(8, **options)
    watched.spared = []
    parts = Parts(Static(), Whole(), watched, FullLength())
    forward = forward_of(model(name), parts, Sampling())
    with torch.inference_mode():
        for _ in denoise(
            Canvas.of([Request.answer([62, 51, 55], 12, 60)], 61), forward, replace(parts, eos=FullLength())
        ):
            pass
    assert len(watched.spared) > 6
    assert any(watched.spared) == (spares and name == "tiny-dream")


def test_a_published_table_has_its_own_shift_type() -> None:
    for cache in ("dkv", "dkv_pd"):
        assert configurations("cache", cache)["cache"]["shift_type"] == "un_right"
    for name in ("dkv_dream", "dkv_pd", "dkv_prefill"):
        assert composed([f"experiment=published/{name}"]).cache.shift_type == "un"
    assert composed(["cache=dkv", "cache.shift_type=un"]).cache.shift_type == "un"
