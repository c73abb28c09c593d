"""Flash-Verify: which drafts are confirmed, what their forward sees and keeps, and when it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Combination, forward_of, model, requests, results, turns
from replay_caches import InPairs, VerifiesAlways

from dllm import UserError
from dllm.parts import (
    Beside,
    Canvas,
    Confidence,
    FlashDLLM,
    FlashVerify,
    FullLength,
    Parts,
    Request,
    Sampling,
    StopAtLastEos,
    VerifiedFlashDLLM,
    Whole,
    denoise,
    run_of,
)

OURS = Combination("flash_verify", "whole", "flash_verify")


def test_the_longest_run_whose_product_reaches_gamma_is_confirmed() -> None:
    """0.9, 0.9 x 0.8 = 0.72 and 0.72 x 0.5 = 0.36, in the order of the numbers, not of the columns."""
    likely = torch.tensor([[0.5, 0.0, 0.9, 0.8, 1.0]], dtype=torch.float64)
    number = torch.tensor([[3, 0, 1, 2, 0]])
    for gamma, expected in ((0.95, []), (0.9, [2]), (0.72, [2, 3]), (0.37, [2, 3]), (0.36, [0, 2, 3])):
        found = run_of(likely, number, torch.tensor([gamma], dtype=torch.float64))
        assert found[0].nonzero()[:, 0].tolist() == expected


def test_rows_see_each_position_once() -> None:
    """Columns 5 and 3 are drafted in this order; of the four decided ones three fit into 7 rows: those placed last."""
    decided, drafts = torch.tensor([[4, 3, 1, 0, 2, 0]]), torch.tensor([[0, 0, 0, 2, 0, 1]])
    rows = Beside.of(decided, drafts, 7)
    assert rows.columns.tolist() == [[4, 1, 0, 5, 3, 5, 3]] and rows.mask.long().tolist() == [[0] * 5 + [1] * 2]
    known = [1, 1, 1]
    assert rows.sees[0].long().tolist() == [
        *[[*known, 0, 0, 1, 1]] * 3,
        [*known, 1, 0, 0, 1],
        [*known, 1, 1, 0, 0],  # the drafts
        [*known, 0, 0, 1, 1],
        [*known, 1, 0, 0, 1],  # their masks
    ]
    short = Beside.of(decided, drafts, 10)
    assert short.columns.tolist() == [[6, 6, 2, 4, 1, 0, 5, 3, 5, 3]] and not bool(short.sees[0, :, :2].any())


@pytest.mark.parametrize("eos", [FullLength(), StopAtLastEos()])
def test_nothing_certain_is_the_rule_without_drafts(eos: Any) -> None:
    """At gamma 1 nothing is confirmed. The rest is the same where every decided column is computed in each step."""
    for tracked in (-1, 12):
        plain = results(model("tiny-llada"), Parts(Confidence(0.8), Whole(), FlashDLLM(4, 2, tracked), eos), requests())
        drafted = Parts(FlashVerify(0.8, 1.0), Whole(), VerifiedFlashDLLM(4, 2, tracked), eos)
        found = results(model("tiny-llada"), drafted, requests())
        assert [row.canvas for row in found] == [row.canvas for row in plain]
        assert all(row.nfe > other.nfe for row, other in zip(found, plain, strict=True))


@pytest.mark.parametrize("eos", [FullLength(), StopAtLastEos()])
def test_forwards_without_drafts_change_nothing(eos: Any) -> None:
    """The published loop has them."""
    rule, saved = FlashVerify(0.6, 0.02), 0
    for request in requests():
        (found,) = results(model("tiny-llada"), Parts(rule, Whole(), VerifiedFlashDLLM(5, 2, 1), eos), [request])
        (published,) = results(model("tiny-llada"), Parts(rule, InPairs(), VerifiesAlways(5, 2, 1), eos), [request])
        assert found.canvas == published.canvas and found.nfe <= published.nfe
        saved += published.nfe - found.nfe
    assert saved > 0


def test_a_forward_that_verifies_leaves_no_trace_and_commits_drafts_alone() -> None:
    """Keys and values, and what the cache ranks by, are the same before and after it."""
    verified, confirmed = 0, 0
    sessions: list[Any] = []
    start = VerifiedFlashDLLM.start

    def noted(self: Any, *given: Any) -> Any:
        session: Any = start(self, *given)
        keep = session.keep

        def remembering(*given: Any) -> Any:
            session.remembered = keep(*given)
            return session.remembered

        session.keep = remembering
        sessions.append(session)
        return session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VerifiedFlashDLLM, "start", noted)
        before: list[Any] = []
        for turn in turns(OURS, requests()[:1]):
            (session,), drafts = sessions, turn.view.scores.drafts
            size = len(turn.canvas.columns)
            kept = (one[:, :, :size].clone() for kv in session.stores for one in kv)
            now = [session.remembered["importance"].clone(), *kept]
            if drafts is not None:
                verified += 1
                confirmed += int(turn.step.commit.sum())
                assert 0 < int((drafts > 0).sum()) <= 2 and not bool((turn.step.commit & (drafts == 0)).any())
                assert int(turn.cost.queries) == 8
                assert all(torch.equal(one, other) for one, other in zip(now, before, strict=True))
            before = now
    assert verified > 2 and confirmed > 2


@pytest.mark.parametrize(("prompt", "drafted"), [([62, 0, 14, 55], True), ([62, 34, 21, 7, 33, 15, 10, 55], False)])
def test_an_end_of_text_is_found_in_either_forward(prompt: list[int], drafted: bool) -> None:
    parts = Parts(FlashVerify(1.0, 1e-9), Whole(), VerifiedFlashDLLM(6, 2, 2), StopAtLastEos())
    forward = forward_of(model("tiny-llada"), parts, Sampling())
    canvas = Canvas.of([Request.answer(prompt, 24, 60)], 61)
    with torch.inference_mode():
        taken = list(denoise(canvas, forward, parts))
    (found,) = [turn for turn in taken if bool(turn.candidates.shortened[0]) and not bool(turn.canvas.shortened[0])]
    ends = (found.step.commit & (found.candidates.tokens == 61))[0].nonzero()[:, 0]
    assert (found.view.scores.drafts is not None) == drafted and int(found.candidates.end[0]) == int(ends.max()) + 1


def test_a_prompt_shorter_than_the_rows_is_decoded() -> None:
    request = Request.answer([55], 9, 60)
    (row,) = results(
        model("tiny-llada"), Parts(FlashVerify(0.8, 0.02), Whole(), VerifiedFlashDLLM(16), FullLength()), [request]
    )
    assert 60 not in row.canvas and len(row.canvas) == 9


def test_no_draft_is_made_of_what_comes_last() -> None:
    """Under ``eos_last`` an end of text may not overtake what is undecided."""
    for turn in turns(OURS, requests(), Sampling(eos_last=True)):
        drafted = turn.step.next_positions > 0
        assert not bool((drafted & (turn.view.scores.token == 61)).any())


@pytest.mark.parametrize(("options", "words"), [({"gamma": 0.0}, "gamma=0.0 must lie in"), ({"threshold": 2}, "=2")])
def test_options_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        FlashVerify(**options)
