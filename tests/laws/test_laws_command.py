"""``python -m dllm.laws``: every part that is wrong on purpose is caught, the honest one passes; it says what ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import wrong_parts

from dllm.laws.__main__ import failing, main
from dllm.laws.trials import TrialCase, Trials

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


@pytest.mark.program
@pytest.mark.parametrize(("words", "code", "said"), [
    (["wrong_parts.Honest", "low=0.4"], 0, "sampler=Honest: 6 of"),
    (["wrong_parts.Leaky"], 1, "smallest: sampler=Leaky"),
    (["wrong_parts.Hnoest"], 2, "Hnoest"),
    (["wrong_parts.Honest", "high=1"], 2, "sampler.high=1"),
], ids=str)  # fmt: skip
def test_the_command_says_what_ran_and_what_broke(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--cases", "6"]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
