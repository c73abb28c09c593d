"""Estimators: the recorded numbers of published trainers, an exact sum, and the masks that are drawn."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import rollouts as script
import torch
from enumerated import closed_form
from harness import DATA, PROMPTS
from made_rollouts import made_rollouts
from rollouts import main, model_of, replay_rollouts

from dllm.parts import (
    Model,
    Rollouts,
    ScoredCanvases,
    UserError,
    coupled,
    elbo,
    estimate,
    one_step,
    prediction,
    sandwich,
)

GOLDEN = DATA / "goldens" / "rl_logprobs.json"


def tiny() -> Model:
    return model_of(script.MODELS / "tiny-llada")


def answers() -> Rollouts:
    """Two answers of six columns, the second of which ends early."""
    ids = torch.tensor([[3, 54, 25, 54, 3, 7], [9, 54, 7, 61, 61, 61]])
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    steps = torch.tensor([[1, 2, 3, 4, 5, 6]] * 2)
    return made_rollouts(tiny(), PROMPTS[1], ids, steps, completion_mask=mask)


def test_recorded_numbers_are_found_again() -> None:
    assert replay_rollouts(GOLDEN, sample=1) == [""]


@pytest.mark.program
def test_the_command_replays_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(GOLDEN)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "16 of 16 cases equal"


def test_the_sum_over_committed_draws_is_exact_where_the_rule_does_not_look_at_them() -> None:
    order, ranked = (closed_form(tiny(), [62, 51, 7, 13, 30, 55], 2, rule) for rule in ("order", "confidence"))
    for one in (order, ranked):
        assert one.paths == 27 and sum(one.probability.values()) == pytest.approx(1)
    torch.testing.assert_close(order.commit, order.true)
    assert float((ranked.commit - ranked.true).norm()) > 1e-3 * float(ranked.true.norm())


def test_a_changed_number_and_an_unknown_field_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = json.loads(GOLDEN.read_text())["cases"][9]
    case["coupled"]["logps"][0][0] += 1e-6
    (tmp_path / "file.json").write_text(json.dumps({"method": "rl_logprobs", "cases": [{**case, "later": {}}]}))
    assert main([str(tmp_path / "file.json")]) == 1
    told = capsys.readouterr()
    assert told.out == "0 of 1 cases equal\n" and "later cannot be compared" in told.err and "logps" in told.err


def test_all_masks_of_the_bound_average_to_its_exact_value() -> None:
    found, tokens = answers(), 3
    found = made_rollouts(tiny(), PROMPTS[1], found.completion_ids[:1, :tokens], found.step_map[:1, :tokens])
    every = torch.tensor([mask for mask in product([0, 1], repeat=tokens) if any(mask)])
    with torch.no_grad():
        each = [elbo(tiny(), found, coupled=False, masks=mask.view(1, 1, -1)).values for mask in every]
        alone = [one_step(tiny(), found, p=0.0).values[0]]
    # The average over canvases with one number of masks, then over the numbers, is the bound; that over all-masked
    # canvases is the sum of the columns by themselves.
    by_count = [torch.stack([v for v, m in zip(each, every, strict=True) if m.sum() == k]).mean() for k in (1, 2, 3)]
    torch.testing.assert_close(by_count[2], alone[0].sum())
    assert float(torch.stack(by_count).mean()) < 0


@pytest.mark.parametrize("kind", ["all", "random", "block_all", "block_random"])
def test_masks_of_the_sandwich_hide_the_tail_and_count_the_text(kind: str) -> None:
    found, plus = answers(), torch.tensor([1.0, -1.0])
    with torch.no_grad():
        one = sandwich(tiny(), found, plus, kind=kind, block_length=2, p=0.5, seed=3)
        again = sandwich(tiny(), found, plus, kind=kind, block_length=2, p=0.5, masks=one.masks)
        other = sandwich(tiny(), found, plus, kind=kind, block_length=2, p=0.5, seed=4)
    torch.testing.assert_close(one.values, again.values)
    assert not torch.equal(one.masks, other.masks)
    longest = len(PROMPTS[1])
    assert bool(one.masks[1, :, longest + 4 :].all()) and bool(one.masks[:, :, longest:].any(2).all())
    assert bool((one.values < 0).all()) and tuple(one.masks.shape) == (2, 2, longest + 6)


def test_drawn_masks_are_by_row_and_returned() -> None:
    found = answers()
    with torch.no_grad():
        half = coupled(tiny(), found, seed=1)
        assert half.share is not None and 0.2 <= half.share <= 0.8 and not torch.equal(half.masks[0], half.masks[1])
        same = coupled(tiny(), found, masks=half.masks, share=half.share)
        bound = elbo(tiny(), found, 3, seed=1)
        prompt = one_step(tiny(), found, p=0.5, seed=1)
    torch.testing.assert_close(half.values, same.values)
    assert tuple(bound.masks.shape) == (2, 3, 6) and len(set(bound.masks.sum(2).flatten().tolist())) > 1
    assert 0 < int(prompt.masks.sum()) < prompt.masks.numel()


def test_a_forward_over_masks_alone_scores_each_column_by_itself() -> None:
    """The first canvas has a mask at every column, as the estimate of one step has at p = 0."""
    found = answers()
    with torch.no_grad():
        first = prediction(tiny(), found, 1, tokens=found.completion_ids)
        alone = one_step(tiny(), found, p=0.0)
    torch.testing.assert_close(first.values, alone.values, check_dtype=False)
    assert torch.equal(first.masks, found.asked)


def test_what_is_no_estimator_or_no_mask_is_refused() -> None:
    found = answers()
    with torch.no_grad():
        with pytest.raises(UserError, match="estimator='elbow' must be one of .* Did you mean 'elbo'"):
            estimate("elbow", tiny(), found)
        with pytest.raises(UserError, match=r"masks have the shape \[2, 5\], and must have \[2, 6\]"):
            coupled(tiny(), found, masks=torch.ones(2, 5), share=0.5)
        with pytest.raises(UserError, match="give both, or neither"):
            coupled(tiny(), found, share=0.5)
        with pytest.raises(UserError, match="kind='blocks' must be one of"):
            sandwich(tiny(), found, torch.ones(2), kind="blocks")
        with pytest.raises(UserError, match=r"Decode with rollouts\(..., draws=True\)"):
            prediction(tiny(), found, 1)


def test_canvases_that_differ_in_masks_or_given_columns_alone_are_two() -> None:
    tokens, width = torch.full((4, 3), 7), torch.full((4,), 3)
    masked = torch.tensor([[True, False, False], [False] * 3, [False] * 3, [True, False, False]])
    given = torch.tensor([[False] * 3, [True, False, False], [False] * 3, [False] * 3])
    unique, which = ScoredCanvases(tokens, masked, given, width, torch.ones(4, dtype=torch.long)).distinct()
    assert len(unique.tokens) == 3 and len({*which.tolist()}) == 3 and which[0] == which[3]
