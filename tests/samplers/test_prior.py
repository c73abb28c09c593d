"""prior: the confidence, weighed by what is known around."""

from __future__ import annotations

import pytest
from harness import build, model, requests, results

from dllm import UserError
from dllm.parts import (
    BACD,
    KLASS,
    TACG,
    Confidence,
    Credit,
    Dream,
    FreeDave,
    FullLength,
    NoCache,
    Parts,
    Prior,
    Prophet,
    Sampling,
    Setting,
    Static,
    Whole,
    validate,
)
from tests.cache.test_density import summed
from tests.samplers.game import Game


def test_it_ranks_by_confidence_times_density() -> None:
    game, confidence = Game(Prior(Static(), sigma=2.0), 6), [0.5, 0.6, 0.3, 0.9, 0.8, 0.99]
    for _ in range(6):
        masked = game.canvas.masked[0, 2:].tolist()
        weighed = [c * d for c, d in zip(confidence, summed([not one for one in masked], 2.0), strict=True)]
        surest = max((at for at in range(6) if masked[at]), key=lambda at: weighed[at])
        assert game.turn(confidence) == [surest]
        assert game.step.confidence[0, 2:].tolist() == confidence  # a trace tells the model's own
    assert not game.canvas.masked.any()


def test_equal_confidences_are_committed_from_what_is_known_outwards() -> None:
    game = Game(Prior(Static(), sigma=3.0), 6)
    assert [game.turn(0.5) for _ in range(3)] == [[0], [1], [2]]
    game = Game(Prior(Static(), sigma=3.0), 6)
    game.commit([5])  # what lies behind a known end counts as known, too
    assert [game.turn(0.5)[0] for _ in range(5)] == [4, 3, 2, 1, 0]


def test_thresholds_compare_the_product_and_only_if_asked() -> None:
    with pytest.raises(UserError, match="inner=confidence compares it with a threshold.*over_thresholds"):
        Prior(Confidence())
    density = summed([False] * 4, 2.0)
    bar = density[1] * 0.9
    game = Game(Prior(Confidence(bar), sigma=2.0, over_thresholds=True), 4)
    assert game.turn([0.9, 0.91, 0.99, 0.99]) == [0, 1] and density[2] * 0.99 < bar


@pytest.mark.parametrize(
    "inner",
    [Static(score="entropy"), Static(score="random"), Dream(), Credit(Static()), Prophet(Static()),
     FreeDave(Static()), KLASS(), TACG(), build("sampler", "order"), build("sampler", "rcr"), build("sampler", "lopa")],
    ids=lambda rule: type(rule).__name__,
)  # fmt: skip
def test_a_rule_that_reads_other_numbers_is_refused(inner: object) -> None:
    with pytest.raises(UserError, match="changes confidences only.*sampler=credit inner=prior"):
        Prior(inner, over_thresholds=True)  # type: ignore[arg-type]


def test_it_is_told_from_rules_that_keep_state() -> None:
    assert Prior(Static()).traits.stateless and not Prior(BACD(), over_thresholds=True).traits.stateless
    assert Prior(Dream("maskgit_plus")).traits.tempered
    with pytest.raises(UserError, match="eos_last=True ranks"):
        rule, blocks = Prior(Static()), Whole()
        validate(Setting(model("tiny-llada").config, blocks, 8, Sampling(eos_last=True)), rule, NoCache(), FullLength())


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_drafts_are_weighed_anew_and_lose_nothing(name: str) -> None:
    plain, drafted = (
        results(model(name), Parts(rule, Whole(), NoCache(), FullLength()), requests())
        for rule in (Prior(Static()), FreeDave(Prior(Static()), 4))
    )
    assert [row.canvas for row in drafted] == [row.canvas for row in plain]
    assert sum(row.nfe for row in drafted) < 0.8 * sum(row.nfe for row in plain)
