"""A reply's trace says what decoded it, so that a replay builds the same parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dllm.parts import OFFERED_GROUPS, ApiError, Defaults, Parts, Sampling, Trace, offers, part, trace_file
from tests.serve.bodies import GROUPS, SAME, alike, chat, plan_of

EMPTY = Trace([], [], 0, 0, 0, 0, [], {})
MOVED: dict[str, Callable[[Any], Any]] = {
    "boolean": lambda value: not value,
    "number": lambda value: (value or 0) * 0.9 + 0.05,
}


def recorded_parts(mini: Defaults, diffusion: dict[str, Any]) -> Parts:
    """The parts that the trace of a request describes, after a way through JSON."""
    (job,) = chat(mini, diffusion={**diffusion, "trace": True}).jobs
    file = json.dumps(trace_file("a", job, EMPTY, {"model": {}}), allow_nan=False)
    return Parts.of(json.loads(file)["config"], Sampling())


@pytest.mark.parametrize(("diffusion", "overrides"), SAME, ids=lambda entry: "-".join(entry) if entry else "none")
def test_a_trace_describes_the_parts_of_the_command_line(
    diffusion: dict[str, Any], overrides: list[str], mini: Defaults
) -> None:
    found, expected = recorded_parts(mini, diffusion), Parts.of(plan_of(*overrides).config, Sampling())
    for group in GROUPS:
        assert alike(getattr(found, group), getattr(expected, group)), group


def test_no_part_loses_an_option_in_a_trace(mini: Defaults) -> None:
    """Every part that can be asked for alone, with every number and switch of its own moved a little."""
    told = 0
    for group in OFFERED_GROUPS:
        for name, offer in offers(group).items():
            for key, option in offer.options.items():
                if option.kind not in MOVED:
                    continue
                value = MOVED[option.kind](option.default)
                try:
                    found = recorded_parts(mini, {group: {"name": name, key: value}})
                except ApiError:  # it does not fit the other parts
                    continue
                assert alike(getattr(found, group), part(group, name, **{key: value})), (name, key)
                told += 1
    assert told > 30
