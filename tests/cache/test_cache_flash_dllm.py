"""Flash-Cache: what it computes, what it ranks by, and the end of text that it was published with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Combination, model, requests, turns
from test_cache_choosing import run
from test_caches import Windowed, canvases

from dllm import UserError
from dllm.parts import (
    NOTHING_SHARED,
    Canvas,
    Confidence,
    Fixed,
    FlashDLLM,
    NoCacheMemory,
    Owner,
    Projected,
    Request,
    Scores,
    StopAtEos,
    StopAtLastEos,
    View,
    Visible,
    Whole,
    window_products,
)

BOTH = ["tiny-llada", "tiny-dream"]


@pytest.mark.parametrize("name", BOTH)
def test_full_forwards_are_no_cache_over_the_same_window(name: str) -> None:
    for blocks in (Whole(), Fixed(8)):
        expected = canvases(name, Confidence(), blocks, Windowed())
        assert canvases(name, Confidence(), blocks, FlashDLLM(5, track_windows=-1)) == expected
        assert canvases(name, Confidence(), blocks, FlashDLLM(5, 1, 1)) != expected


@pytest.mark.parametrize(("name", "shift"), [("tiny-llada", 0), ("tiny-dream", 1)])
def test_masks_commits_and_the_budget_are_computed(name: str, shift: int) -> None:
    """11 + 24 columns, two tokens a forward, windows of 4: 8 masks, what predicts them, and 8 decided columns, of which
    the last commits are two."""
    committed: list[int] = []
    for number, (turn, columns) in enumerate(run(name, FlashDLLM(4, 2, 2), requests()[0])):
        masks = turn.canvas.masked[0].nonzero()[:, 0].tolist()
        if number == 0:
            assert columns == list(range(35))
        else:
            near = {at - back for at in masks[:8] for back in {0, shift}}
            assert near | set(committed) <= set(columns)
            decided = set(columns) - set(masks)
            assert 8 <= len(decided) <= 8 + len({at for at in near if at not in masks})
            assert set(columns) & set(masks) == set(masks[:8])
        committed = turn.step.commit[0].nonzero()[:, 0].tolist()
        assert set(committed) <= set(masks[:4])


def test_positions_rank_by_raw_products_of_queries_and_keys() -> None:
    noise = torch.Generator().manual_seed(0)
    query = torch.randn(2, 5, 4, 6, generator=noise, dtype=torch.float64)
    keys = torch.randn(2, 2, 7, 6, generator=noise, dtype=torch.float64)
    window = torch.tensor([[True, False, True, False, False], [False] * 5])
    found = window_products(query, keys, window)
    for column in range(7):
        expected = sum(float(query[0, row, head] @ keys[0, head // 2, column]) for row in (0, 2) for head in range(4))
        assert abs(float(found[0, column]) - expected) < 1e-12
    assert bool(found[1].eq(0).all())


def test_the_most_attended_columns_are_computed_once_more() -> None:
    """One forward later, against the attention of an ordinary run of the network."""
    request, network = requests()[0], model("tiny-llada")
    (first, _), (_, columns), *_ = run("tiny-llada", FlashDLLM(4, 1, 1), request)
    totals = torch.zeros(35, dtype=torch.float64)

    class Watching(NoCacheMemory):
        def attend(self, layer: int, fresh: Projected, columns: torch.Tensor | None) -> torch.Tensor:
            query, keys, _ = fresh.rotated()
            if layer >= 2:
                heads = keys.repeat_interleave(query.shape[2] // keys.shape[1], 1)[0]
                totals.add_(torch.einsum("nhd,hsd->s", query[0, 11:15], heads))
            return super().attend(layer, fresh, columns)

    tokens = torch.tensor([request.tokens])
    with torch.inference_mode():
        network(tokens, torch.arange(35)[None], Watching(Visible()))
    new = first.step.commit[0].nonzero()[:, 0].tolist()
    known = [column for column in range(11) if column not in new]
    strongest = sorted(known, key=lambda column: -float(totals[column]))[: 4 - len(new)]
    masks = [column for column in range(11, 35) if column not in new][:4]
    assert columns == sorted({*strongest, *new, *masks})


def view_of(canvas: Canvas) -> View:
    blocks = Whole().start(canvas)
    nothing = torch.zeros_like(canvas.tokens)
    scores = Scores(canvas.masked, nothing, nothing.double(), canvas.masked)
    owner = Owner.single(len(canvas.row_id), canvas.start.device)
    return View.of(canvas, scores, blocks, canvas.no_positions, owner, NOTHING_SHARED)


def test_the_first_turn_with_an_end_cuts_behind_its_last_one() -> None:
    """61 ends a text. Two ends in one turn: ``stop_at_eos`` goes by the first of them. A later one changes nothing."""
    canvas = Canvas.of([Request.answer([62, 55], 8, 60), Request.answer([62, 61, 55], 6, 60)], 61)
    view = view_of(canvas)
    commit = canvas.no_positions.clone()
    commit[0, [3, 5, 7]] = True
    tokens = torch.zeros_like(canvas.tokens).index_fill(1, torch.tensor([3, 5]), 61)
    step, after = view.step(commit, tokens=tokens), canvas.commit(commit, tokens)
    cut = StopAtLastEos().cut(after, view, step, (61,), commit.any(1))
    assert cut.end.tolist() == [6, 9] and cut.shortened.tolist() == [True, False]
    assert bool(cut.valid.eq(canvas.valid).all()) and cut.undecided[0].nonzero()[:, 0].tolist() == [2, 4]
    assert StopAtEos().cut(after, view, step, (61,), commit.any(1)).end.tolist() == [4, 9]
    again = commit & False
    again[0, 4] = again[1, 8] = True
    ends = torch.full_like(tokens, 61)
    later = StopAtLastEos().cut(cut.commit(again, ends), view, view.step(again, tokens=ends), (61,), commit.any(1))
    assert later.end.tolist() == [6, 9] and later.shortened.tolist() == [True, True]


def test_an_end_in_a_gap_does_not_end_what_is_given_behind() -> None:
    tokens = [62, 60, 60, 7, 60, 60]
    canvas = Canvas.of([Request(tokens, [token == 60 for token in tokens])], 61)
    view, commit = view_of(canvas), canvas.no_positions.clone()
    commit[0, 2] = True
    ends = torch.full_like(canvas.tokens, 61)
    cut = StopAtLastEos().cut(canvas.commit(commit, ends), view, view.step(commit, tokens=ends), (61,), commit.any(1))
    assert not cut.shortened.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"track_windows": 0}, "track_windows=0 leaves no room"),
        ({"track_windows": -2}, "-1 means no cache"),
        ({"window_length": 0}, "window_length=0"),
        ({"mask_windows": 0}, "mask_windows=0 must be at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FlashDLLM(**options)


@pytest.mark.parametrize(("sampler", "message"), [("wino", "no room for the extra"), ("ete", "several candidates")])
def test_what_cannot_work_is_refused(sampler: str, message: str) -> None:
    with pytest.raises(UserError, match=f"cache=flash_dllm .*{message}"):
        list(turns(Combination(sampler, "fixed", "flash_dllm"), requests()[:1]))
