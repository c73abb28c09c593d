"""The table of rules before and after their authors' code: its kept column is whole, and its differences are paired."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dllm import UserError
from dllm.tasks.mini import tasks as mini
from experiments.compare.changed_rules import COUNT, KEPT, SEED, Cell, line, of, recalled, then
from experiments.compare.defaults import Scores

ITEMS = COUNT * len(mini.SHORT_ANSWERS)
COLUMN = {
    (one.model, one.words): one for one in (Scores(**json.loads(words)) for words in KEPT.read_text().splitlines())
}


@pytest.mark.parametrize("model", ["mini-llada", "mini-dream"])
def test_the_kept_column_has_every_setting_on_all_items(model: str) -> None:
    for words in map(then, of(model)):
        found = COLUMN[model, words]
        assert (found.seed, len(found.right), len(found.nfe)) == (SEED, ITEMS, ITEMS)


def test_a_row_has_the_mean_of_paired_differences() -> None:
    before = Scores("m", "sampler=x", SEED, [0.0, 1.0] * (ITEMS // 2), [4] * ITEMS)
    now = replace(before, right=[1.0] * ITEMS, nfe=[2] * ITEMS)
    cells = line(Cell("sampler=x", "sampler=y"), before, now).split(" | ")
    assert cells[0] == "| `sampler=x`; before: `sampler=y`"
    assert (cells[2], cells[4]) == ("4.0", "2.0") and cells[5].startswith("+50 (+")


def test_a_setting_that_was_not_kept_is_refused() -> None:
    class Empty:
        class model:  # noqa: N801  as an attribute of a bench
            name = "mini-llada"

        known: dict[object, Scores] = {}

    with pytest.raises(UserError, match="--before FOLDER"):
        recalled(Empty(), "sampler=x")  # type: ignore[arg-type]
