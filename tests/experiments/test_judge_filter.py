"""The judgement of filters: its shares by hand, and a table of few items."""

from __future__ import annotations

import torch

from experiments.distill.judge_filter import Judgement, main


def test_shares_by_hand() -> None:
    """Three accepted, of which two are right; four are right; six positions."""
    accepted = torch.tensor([True, True, True, False, False, False])
    found = Judgement.of(accepted, torch.tensor([True, True, False, True, True, False]))
    assert found.cells() == ["66.67", "50.0", "50.0"]
    assert Judgement.of(~accepted & accepted, accepted) == Judgement(1.0, 0.0, 0.5)  # nothing accepted, nothing wrong


def test_no_filter_is_no_table() -> None:
    assert main(["mini-llada-distilled", "--count", "1"]) == 2
