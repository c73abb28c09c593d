"""``python -m dllm.laws``: every part that is wrong on purpose is caught, the honest one passes; it says what ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import wrong_parts

from dllm.laws.__main__ import main
from dllm.laws.trials import PROMPTS, VOCAB
from dllm.parts import (
    LAWS,
    TCCF,
    Broken,
    FlashVerify,
    FullLength,
    Parts,
    Request,
    Sampling,
    Trial,
    TrialCase,
    Trials,
    VerifiedFlashDLLM,
    all_is_decided,
    failing,
    failing_case,
    network,
    smallest,
)

WRONG = [(group, kind) for group, kinds in wrong_parts.WRONG.items() for kind in kinds]


def cases(trials: Trials) -> Iterator[TrialCase]:
    """A few plain combinations around the part."""
    plain = replace(TrialCase("confidence", "fixed", "none", "none", "llada", 0.0), **{trials.group: trials.name})
    yield plain
    if trials.group != "blocks":
        yield replace(plain, blocks="whole")
    if trials.group != "cache":
        yield replace(plain, cache="prefix")


@pytest.mark.program
@pytest.mark.parametrize(("group", "kind"), WRONG, ids=lambda one: getattr(one, "__name__", one))
def test_a_part_that_is_wrong_on_purpose_is_caught(group: str, kind: type) -> None:
    trials = Trials(group, kind())
    accepted = [case for case in cases(trials) if trials.parts_of(case) is not None]
    assert accepted and any(next(failing(trials.trial(case)), None) for case in accepted)


@pytest.mark.program
def test_an_honest_rule_breaks_no_law() -> None:
    trials = Trials("sampler", wrong_parts.Honest())
    assert [found for case in cases(trials) for found in failing(trials.trial(case))] == []


@pytest.mark.parametrize("kind", [wrong_parts.Told, wrong_parts.Copied, wrong_parts.Replaced])
def test_a_part_may_return_another_that_knows_the_model(kind: type[wrong_parts.Told]) -> None:
    mine = kind()
    trials = Trials("sampler", mine)
    for case in cases(trials):
        parts = trials.parts_of(case)
        assert parts is not None and parts.sampler.vocab == VOCAB  # type: ignore[attr-defined]
        with pytest.raises(Broken, match=f"{kind.__name__}.low was written on a part that others use"):
            parts.sampler.low = 0.1  # type: ignore[attr-defined]
    assert mine.vocab == 0 and next(failing_case(trials, next(cases(trials))), None) is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (wrong_parts.TellsItself, "TellsItself.vocab was written on a part that others use: write on a copy, as "),
        (wrong_parts.AfterTelling, "AfterTelling.low was written on a part"),
        (wrong_parts.Mistaken, "AttributeError: 'ModelConfig' object has no attribute 'vocab_size' ("),
    ],
)
def test_a_part_that_is_written_on_breaks_the_first_law_with_a_small_example(kind: type, said: str) -> None:
    trials = Trials("sampler", kind())
    case = next(cases(trials))
    assert trials.takes(case)
    ((name, words),) = failing_case(trials, case)
    assert name == next(iter(LAWS)) and words.startswith(said)
    told, example = smallest(trials, name, [(replace(case, blocks="whole"), words)])
    assert said in told and "blocks=fixed cache=none" in example and "rows of prompt+answer 6+2" in example


@pytest.mark.program
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["wrong_parts.TellsItself"], 1, "smallest: sampler=TellsItself"),
        (["wrong_parts.Honest", "low=0.4"], 0, "sampler=Honest: 6 of"),
        (["wrong_parts.Leaky"], 1, "smallest: sampler=Leaky"),
        (["wrong_parts.Hnoest"], 2, "Hnoest"),
        (["wrong_parts.Honest", "high=1"], 2, "sampler.high=1"),
    ],
    ids=str,
)
def test_the_command_says_what_ran_and_what_broke(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--cases", "6"]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err


def test_forwards_are_bounded_where_drafts_are_verified_and_a_block_is_rolled_back() -> None:
    rule, cache = FlashVerify(threshold=1.0, gamma=1.0), VerifiedFlashDLLM(4, mask_windows=2, track_windows=1)
    parts = Parts(rule, TCCF(8, fine_length=2, marker=4), cache, FullLength(), Sampling().under(rule))
    short = Request.answer(PROMPTS[2], 4, 15, 2)  # ends in its marker: four positions, three of them rolled back
    trial = Trial(network("llada"), parts, (short,), parts.sampling)
    all_is_decided(trial)
    (one,) = trial.together
    assert one.final.trace is not None
    commits = sum(len(found.positions) for record in one.final.trace.turns for found in record.candidates)
    assert commits == 4 + 3 and 2 * 4 < one.final.nfe <= 2 * commits  # a forward that commits it, and one that verifies
    one.result = replace(one.final, nfe=2 * commits + 1)
    with pytest.raises(Broken, match="forwards for"):
        all_is_decided(trial)
