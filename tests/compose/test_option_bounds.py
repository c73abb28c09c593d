"""What each option of a part takes: a number's bounds and none beyond them, a word of its choices and no other."""

from __future__ import annotations

from math import inf, nextafter
from pathlib import Path

import pytest

from dllm import UserError, part
from dllm.parts import choices, options_of_choices

# GROUP=CHOICE: OPTION LOW..HIGH, ...
TABLE = Path(__file__).parents[1] / "data" / "option_bounds.txt"
ROWS = [
    (*choice.split("="), option, *bounds.split(".."))
    for choice, _, rows in (line.partition(": ") for line in TABLE.read_text().splitlines())
    for option, bounds in (row.split() for row in rows.split(", "))
]
# Numbers that are checked by rules of their own, and their sentences by tests of those parts.
OTHERWISE = {
    "sampler=ete explore_min_commit",
    "blocks=adablock delimiter_threshold",
    "cache=sparsed select",
    "cache=window window_tokens",
    "eos=eotp minimum",
}


def refused(group: str, choice: str, option: str, value: float) -> bool:
    try:
        part(group, choice, **{option: value})
    except UserError as error:
        return str(error).startswith(
            (f"{group}.{option}={value} must be at least", f"{group}.{option}={value} must lie")
        )
    return False


@pytest.mark.parametrize(("group", "choice", "option", "low", "high"), ROWS, ids=lambda value: value)
def test_a_number_beyond_its_bound_is_refused(group: str, choice: str, option: str, low: str, high: str) -> None:
    kind = int if (low or high).removeprefix("-").isdigit() else float
    for bound, outwards in ((low, -inf), (high, inf)):
        if bound:
            value = kind(float(bound))
            beyond = value + (1 if outwards > 0 else -1) if kind is int else nextafter(value, outwards)
            assert not refused(group, choice, option, value), f"{option}={value} is a bound, which is taken"
            assert refused(group, choice, option, beyond), f"{option}={beyond} is taken"


def test_every_number_has_its_bounds_here() -> None:
    listed = {f"{group}={choice} {option}" for group, choice, option, *_ in ROWS}
    numbers = {
        f"{group}={choice} {option}"
        for group in ("sampler", "blocks", "cache", "eos", "length")
        for choice in choices(group)
        for option, value in options_of_choices(group)[choice].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert numbers - listed == OTHERWISE


WORDS = [
    (group, choice, option)
    for group in ("sampler", "blocks", "cache", "eos", "length")
    for choice in choices(group)
    for option, value in options_of_choices(group)[choice].items()
    if isinstance(value, str) and not option.startswith("_") and option != "marker"  # a text of the model's
]


@pytest.mark.parametrize(("group", "choice", "option"), WORDS)
def test_a_word_that_is_no_choice_is_refused(group: str, choice: str, option: str) -> None:
    with pytest.raises(UserError, match=f"^{group}.{option}='flying' must be "):
        part(group, choice, **{option: "flying"})
