"""Caches at the edges: rows that wait, prompts with fewer tokens than are to be watched, answers with given tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import Combination, forward_of, model, parts_of, requests
from plain_causal import Triangle
from torch import Tensor

from dllm import UserError
from dllm.parts import (
    DKV,
    CacheView,
    Canvas,
    ColumnSession,
    Confidence,
    DKVGreedy,
    Elastic,
    Finished,
    Fixed,
    ForwardPlan,
    FullLength,
    NoCache,
    Order,
    Parts,
    Request,
    Sampling,
    Static,
    Transformer,
    Turn,
    Whole,
    composed,
    configurations,
    denoise,
    options_of_choices,
    part,
    start_rows,
    take_turn,
)

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
            [
                turn.cost.queries[0].tolist()
                for turn in denoise(Canvas.of(rows, 61), forward, replace(parts, eos=FullLength()))
                if 0 in turn.canvas.row_id.tolist()
            ]
            for rows in (batch[:1], batch)
        )
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


CAUSAL = ("tiny-wedlm", "tiny-nbdiff")


def largest_error(network: Transformer, session: ColumnSession, row: int, tokens: Tensor) -> float:
    """Between the keys and values kept of a row's first columns, and those of one causal run over its ``tokens``."""
    causal = Triangle()
    network(tokens[None], torch.arange(len(tokens))[None], causal)
    errors = [0.0]
    for kept, expected in zip(session.stores, causal.layers, strict=True):
        assert kept is not None
        errors += [float((a[row, :, : len(tokens)] - b[0]).abs().max()) for a, b in zip(kept, expected, strict=True)]
    return max(errors)


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("blocks", ["fixed", "whole"])
@pytest.mark.parametrize("sampler", ["confidence", "rcr"])
def test_kept_keys_are_those_of_one_causal_run(name: str, blocks: str, sampler: str) -> None:
    network, parts = model(name), parts_of(Combination(sampler, blocks, "finished", "none", name))
    forward = forward_of(network, parts, Sampling())
    canvas = Canvas.of(requests(), network.config.pad_id or 0)
    most = 0
    with torch.inference_mode():
        rows = start_rows(canvas, forward, parts, None)
        while len(rows):
            session = rows.session
            rows, turn = take_turn(rows, forward, parts)
            assert isinstance(session, ColumnSession)
            for row, flags in enumerate((rows.cache_state["exact"] & turn.canvas.valid).tolist()):
                exact = sum(flags)
                assert all(flags[:exact]) and not bool(turn.canvas.masked[row, :exact].any())
                if exact:
                    assert largest_error(network, session, row, turn.canvas.tokens[row, :exact]) <= 1e-12
                most = max(most, exact - int(turn.canvas.start[row]))
            rows = rows.without(turn.finished)
    assert most >= 6  # columns of an answer


def run(name: str, batch: list[Request], cache: NoCache | Finished, blocks: Fixed) -> list[Turn]:
    network, sampler, eos = model(name), Confidence(0.6), FullLength()
    forward = forward_of(network, Parts(sampler, blocks, cache, eos), Sampling())
    with torch.inference_mode():
        return list(denoise(Canvas.of(batch, network.config.pad_id or 0), forward, Parts(sampler, blocks, cache, eos)))


@pytest.mark.parametrize("name", CAUSAL)
def test_blocks_that_stay_open_when_they_are_full(name: str) -> None:
    """A forward may then have nothing to predict, in one row or in all."""
    for batch in (requests(), requests()[:1]):
        cached, plain = (run(name, batch, cache, Fixed(4, min_forwards=5)) for cache in (Finished(), NoCache()))
        assert [turn.candidates.tokens.tolist() for turn in cached] == [
            turn.candidates.tokens.tolist() for turn in plain
        ]


@pytest.mark.parametrize("name", CAUSAL)
def test_text_given_to_the_right_is_seen_by_rank_and_not_from_another_block(name: str) -> None:
    """WeDLM's masks see given text to their right; NBDiff's see none behind their block. So a token that is given in
    the last block changes the first proposals of the one and not of the other."""
    found = []
    for token in (7, 30):
        request = requests()[0]
        tokens, masked = list(request.tokens), list(request.masked)
        tokens[-2], masked[-2] = token, False
        turns = [
            run(name, [Request(tokens, masked, 0, request.start)], cache, Fixed(8))[0].view.scores
            for cache in (NoCache(), Finished())
        ]
        first, cached = (scores.confidence[scores.committable] for scores in turns)
        torch.testing.assert_close(first, cached, rtol=0, atol=1e-12)
        found.append(first)
    assert torch.equal(*found) == (name == "tiny-nbdiff")


def test_the_forward_that_opens_a_block_is_the_causal_pass_of_the_one_before() -> None:
    """NBDiff, blocks of 8: the prompt, then 8 rows in each forward; the first column of each block is committed by the
    forward that computes the block before."""
    request = requests()[1]
    start = request.answer_start
    turns = run("tiny-nbdiff", [request], Finished(), Fixed(4))
    opens = [turn for turn in turns if bool(turn.view.forced_positions.any())]
    assert [turn.view.forced_positions[0].nonzero().flatten().tolist() for turn in opens] == [[start], [start + 8]]
    assert [int(turn.cost.queries) for turn in turns] == [start] + [8] * (len(turns) - 1)
    assert all(torch.equal(turn.step.commit, turn.view.forced_positions) for turn in opens)


def test_a_window_computes_what_has_become_known_once_more_and_never_again() -> None:
    """WeDLM with the whole answer open: everything first, then what is known and not final, and the masks."""
    request = requests()[1]
    turns, final, queries = run("tiny-wedlm", [request], Finished(), Fixed(64)), 0, []
    for turn in turns:
        queries.append(len(request.tokens) - final)
        final = int(turn.canvas.masked[0].long().argmax())  # what is before the first mask was computed in this turn
    assert [int(turn.cost.queries) for turn in turns] == queries


def test_no_count_of_a_cache_may_be_negative() -> None:
    """Every option that is a whole number, and a forward that is full every 0 turns. ``window_tokens`` is checked
    beside the others, in ``check``."""
    tried = 0
    for name, options in options_of_choices("cache").items():
        for option, value in options.items():
            counts = isinstance(value, int) and not isinstance(value, bool) and option != "window_tokens"
            for wrong in ([-3] if counts else []) + ([0] if option == "refresh_interval" else []):
                tried += 1
                with pytest.raises(UserError, match=f"{option}={wrong}"):
                    part("cache", name, **{option: wrong})
    assert tried > 40
