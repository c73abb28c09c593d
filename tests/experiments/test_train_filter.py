"""The filter trainer: its records by hand, and a short run from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from dllm import Decoder, UserError, load
from dllm.parts import Fixed, Learn2PD
from experiments.distill.filter import Options, Records, Replay, main
from tests.samplers.game import PROMPT, Game


def test_what_equals_the_reference_is_committed_and_a_stuck_block_is_filled() -> None:
    game = Game(Replay([[5, 6, 7, 8]]), 4, block=2)
    assert game.turn(0.5, token=[5, 1, 7, 8]) == [0]
    assert game.turn(0.5, token=[5, 2, 7, 8]) == []  # nothing right, another guess than before
    assert game.turn(0.5, token=[5, 2, 7, 8]) == [1]  # the same again: it will not get there
    assert game.turn(0.5, token=[5, 2, 7, 8]) == [2, 3]
    assert game.canvas.tokens[0, PROMPT:].tolist() == [5, 6, 7, 8]


def test_records_hold_whole_blocks(tiny: Path) -> None:
    model, prompts = load(tiny), ["w1 w2", "w3"]
    plain = Decoder(model, "static", eos="none", gen_length=16)(list(prompts))
    reference = [row.canvas for row in plain]
    records = Records(reference, 8)
    decoder = Decoder(model, Replay(reference), Fixed(8), eos="none", gen_length=16, batch_size=2)
    found = decoder(list(prompts), observe=records)
    assert [row.canvas for row in found] == reference
    assert len(records.right) == sum(row.nfe for row in found)
    assert all(row.shape == (8,) for row in (*records.confidence, *records.right))
    assert all(float(confidence.min()) > 0 for confidence in records.confidence)  # committed positions count too


def test_a_run_leaves_a_filter_that_the_sampler_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "filter.safetensors"
    assert main(["model=mini-llada", "block_length=16", "count=1", "epochs=3", f"out={out}"]) == 0
    assert "test: loss" in capsys.readouterr().out
    with safe_open(out, framework="pt") as stored:
        assert stored.metadata() == {"model": "mini-llada", "block_length": "16"}
    assert Learn2PD(str(out)).width == 16


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("modell=x", "'modell=x' is not an option"),
        ("count=many", "count='many' must be a number"),
        ("gen_length=33", "gen_length=33 must be a multiple of block_length=32"),
    ],
)
def test_mistakes_are_named(argument: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Options.of([argument])
    assert main([argument]) == 2
