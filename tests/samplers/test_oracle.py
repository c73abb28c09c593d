"""oracle: what is right already, else the reference itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import DATA, refuse_rule

from dllm import Decoder, UserError, load
from dllm.parts import Fixed, Oracle, Setting, read_model_config
from tests.samplers.game import PROMPT, Game


def test_right_proposals_are_committed_whatever_their_confidence() -> None:
    game = Game(Oracle([[5, 6, 7, 8]]), 4)
    assert game.turn([0.1, 0.9, 0.2, 0.8], token=[5, 1, 7, 1]) == [0, 2]
    assert game.accepted == [0, 2]


def test_otherwise_the_reference_is_forced_at_the_most_confident_position() -> None:
    game = Game(Oracle([[5, 6, 7]]), 3)
    assert game.turn([0.1, 0.9, 0.2], token=1) == [1] and game.accepted == []
    assert game.canvas.tokens[0, PROMPT:].tolist() == [60, 6, 60]


def test_each_request_has_its_own_reference_and_a_short_one_ends_early() -> None:
    game = Game(Oracle([[5, 6], [1, 6]]), 3, rows=2)
    assert game.play(0.5, token=1) == [[2], [0, 2]]


def test_the_reference_comes_out_and_takes_no_more_forwards(tiny: Path, tmp_path: Path) -> None:
    model, prompts = load(tiny), ["w1 w2", "w3 w9 w4", "w5"]
    plain = Decoder(model, "static", eos="none", gen_length=24)(list(prompts))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row.to_json()) + "\n" for row in reversed(plain)))
    for reference in ([row.canvas for row in plain], str(tmp_path)):
        found = Decoder(model, Oracle(reference), eos="none", gen_length=24, batch_size=2)(list(prompts))
        assert [row.canvas for row in found] == [row.canvas for row in plain]
        assert all(one.nfe <= other.nfe for one, other in zip(found, plain, strict=True))
        assert sum(row.nfe for row in found) < sum(row.nfe for row in plain)
    with pytest.raises(UserError, match="holds no answer to prompt number 1"):
        Decoder(model, Oracle(str(tmp_path)), eos="none", gen_length=24)("w7 w7")
    with pytest.raises(UserError, match="holds 1 answers, and there is a prompt number 2"):
        Decoder(model, Oracle([plain[0].canvas]), eos="none", gen_length=24, batch_size=2)(list(prompts))


def test_without_a_reference_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs sampler\.reference.*Make one with"):
        Oracle(None)
    with pytest.raises(UserError, match="is not a folder of a run"):
        Oracle(str(tmp_path))
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no answers"):
        Oracle(str(tmp_path))


def test_a_reference_of_another_length_is_refused() -> None:
    setting = Setting(read_model_config(DATA / "models" / "tiny-llada"), Fixed(8), 32)
    with pytest.raises(UserError, match="holds an answer of other than the 32 tokens of gen_length"):
        sampler = Oracle([[1, 2, 3]])
        refuse_rule(setting, sampler)
