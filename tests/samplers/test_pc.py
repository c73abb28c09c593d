"""pc: position times informativeness."""

from __future__ import annotations

import json
from contextlib import nullcontext
from math import log
from pathlib import Path

import pytest
from harness import model, refuse_rule

from dllm import UserError
from dllm.parts import PC, Frequencies, Selection, Setting, Whole, refuse_clashes
from tests.samplers.game import Game


def test_early_positions_win_unless_the_model_is_much_surer() -> None:
    # exp(-0.25 i): 1, 0.78, 0.61, 0.47
    assert Game(PC(0.25), 4).turn([0.5, 0.6, 0.7, 0.9]) == [0]
    assert Game(PC(0.25), 4).turn([0.3, 0.6, 0.7, 0.9]) == [1]
    assert Game(PC(0.0), 4).turn([0.5, 0.6, 0.7, 0.9]) == [3]


def test_frequent_tokens_count_less_and_unknown_ones_as_the_rarest(tmp_path: Path) -> None:
    file = tmp_path / "frequencies.json"
    file.write_text(json.dumps({"1": 0.9, "2": 0.01}))
    # -p ln f: 0.9 * 0.105 = 0.095, 0.5 * 4.6 = 2.3, 0.6 * 4.6 = 2.76
    assert Game(PC(0.0, frequencies=str(file)), 3).turn([0.9, 0.5, 0.6], token=[1, 2, 50]) == [2]
    assert Game(PC(0.0, cap=2.0, frequencies=str(file)), 3).turn([0.9, 0.5, 0.6], token=[1, 2, 50]) == [1]
    assert -0.5 * log(0.01) > 2.0  # both reach the cap: the lower position


def test_the_published_format_counts_and_an_absent_token_occurs_once(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"num_token": 1000, "p_baseline_dict": {"1": 900, "2": 10}}))
    assert Game(PC(0.0, 100, str(file)), 3).turn([0.9, 0.5, 0.6], token=[1, 2, 50]) == [2]
    surprise = Frequencies.read(file).surprise()
    assert surprise.tolist() == pytest.approx([-log(f + 1e-9) for f in (1e-3, 0.9, 0.01, 1e-3)])
    assert Frequencies.read(file, absent=0.5).surprise()[-1] == pytest.approx(-log(0.5 + 1e-9))


def test_a_table_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"num_token": 10, "p_baseline_dict": {"126463": 3}}))
    with pytest.raises(UserError, match=r"counts token 126463, but the vocabulary of this model ends at \d+"):
        sampler = PC(frequencies=str(file))
        refuse_clashes(
            Selection(Setting(model("tiny-llada").config, Whole(), 8), sampler), ("sampler", sampler, sampler.clashes)
        )


def test_as_many_as_the_schedule_says() -> None:
    game = Game(PC(0.25, steps=2), 4)
    assert [game.turn([0.9, 0.9, 0.9, 0.9]), game.turn([0.9, 0.9, 0.9, 0.9])] == [[0, 1], [2, 3]]


NO_TABLES = (
    "[1]",
    "{}",
    '{"num_token": 0, "p_baseline_dict": {"1": 1}}',
    '{"p_baseline_dict": {"1": 1}}',
    '{"1": 0}',
    '{"x": 0.5}',
    '{"1": 1.5}',
    '{"-3": 0.5}',
)


@pytest.mark.parametrize("text", NO_TABLES)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "frequencies.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"sampler\.frequencies="):
        PC(frequencies=str(file))
    with pytest.raises(UserError, match=r"sampler\.frequencies="):
        PC(frequencies=str(tmp_path / "nowhere.json"))


def test_the_last_token_of_the_vocabulary_is_in_it(tmp_path: Path) -> None:
    config = model("tiny-llada").config
    for token, fits in ((config.vocab - 1, True), (config.vocab, False)):
        file = tmp_path / f"{token}.json"
        file.write_text(json.dumps({"num_token": 10, "p_baseline_dict": {str(token): 3}}))
        with nullcontext() if fits else pytest.raises(UserError, match=f"counts token {token}, but the vocabulary"):
            sampler = PC(frequencies=str(file))
            refuse_rule(Setting(config, Whole(), 8), sampler)
