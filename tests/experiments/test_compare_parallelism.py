"""AUP of every sampler: its curves by hand, and that every sampler has one."""

from __future__ import annotations

import pytest
import torch
from harness import of_noise

from dllm import part
from dllm.compose.parts import choices
from dllm.samplers.confidence import Confidence
from dllm.samplers.credit import Credit
from experiments.compare.parallelism import KNOBS, Curve, Setting, areas_of, line

ONCE = torch.ones(1, 4, dtype=torch.float64)


def setting(right: list[float], forwards: int) -> Setting:
    """Four items of 8 tokens."""
    counts = torch.tensor([[8.0] * 4, [float(forwards)] * 4], dtype=torch.float64)
    return Setting(torch.tensor(right, dtype=torch.float64), *counts)


def test_a_curve_begins_at_one_token_and_ends_before_it_falls() -> None:
    """One token a forward up to the first point, then a trapezium; a bold setting that fails does not count."""
    one, two, bold = setting([1, 1, 1, 1], 8), setting([1, 1, 1, 1], 4), setting([0, 1, 1, 1], 2)
    curve = Curve("a", "it", [one, bold, two])
    assert curve.points(ONCE) == [[(1.0, 100.0), (4.0, 75.0), (2.0, 100.0)]]
    assert areas_of([curve, Curve("b", "it", [one])], ONCE) == [[pytest.approx(200)], [pytest.approx(100)]]
    assert line(curve, [200.0, 180.0, 220.0])[1:5] == ["200 (181-219)", "100.0", "2.00", "1 of 2"]


def test_what_another_sampler_scores_more_weighs_on_all() -> None:
    """The first point counts whole, as in the leaderboard; the others by exp(-3 x their distance from the best)."""
    half, all_ = setting([1, 1, 0, 0], 8), setting([1, 1, 1, 1], 8)
    found = areas_of([Curve("a", "it", [half, setting([1, 1, 0, 0], 4)]), Curve("b", "it", [all_])], ONCE)
    assert found[0] == [pytest.approx(50 + 50 * torch.tensor(-1.5).exp().item(), rel=1e-6)]


def test_every_sampler_has_a_curve_of_settings_that_there_are() -> None:
    assert set(KNOBS) == set(choices("sampler")) - {"oracle"} - of_noise()
    assert all(len([*knob.settings()]) == len(knob.values) > 2 for knob in KNOBS.values())
    rule = part("sampler", "credit", **[*KNOBS["credit"].settings()][1])
    assert isinstance(rule, Credit) and isinstance(rule.inner, Confidence) and rule.inner.threshold == 0.9
    assert str(KNOBS["credit"]) == "`inner.threshold` 0.95 to 0.6, over `confidence`"
    assert [*KNOBS["prior"].settings()][0] == {"inner": {"name": "static", "per_step": 2}}
