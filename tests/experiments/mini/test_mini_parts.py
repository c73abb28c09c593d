"""What a command trains: a base first where it needs one, none of it repeated, a kill at any moment changes nothing;
and what a run asks for as it goes on."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
import torch

from dllm.parts import UserError, locate
from dllm.tasks.mini import tasks
from experiments.mini import card, data, evaluate, masks, recipe, tokenizer, train
from experiments.mini.recipe import Recipe, recipe_of
from tests.support.killing import killed_after

SMALL = {"width": 16, "head_dim": 8, "mlp_width": 24, "batch": 3, "steps": 6, "hard_share": 0.34}
TINY = Recipe(**SMALL, layers=1)
DREAM = Recipe("mini-dream", **SMALL, layers=2, base="mini-llada", seed=3)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mini-llada that six steps train."""
    torch.set_num_threads(1)
    brief = recipe.USUAL | {"mini-llada": {**SMALL, "layers": 1}}
    monkeypatch.setattr(recipe, "USUAL", brief)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_both_runs_killed_at_any_moment_end_as_if_they_were_not(tmp_path: Path) -> None:
    straight, other = tmp_path / "straight", tmp_path / "killed"
    began = time.monotonic()
    train.train_parts(DREAM, straight, save_every=2)
    whole = time.monotonic() - began
    for share in (0.3, 0.6):
        killed_after(whole * share, train.train_parts, DREAM, other, save_every=2)
    train.train_parts(DREAM, other, save_every=2)
    assert weights(other) == weights(straight) != weights(straight / train.BASE)
    assert weights(other / train.BASE) == weights(straight / train.BASE)
    report = json.loads((straight / train.REPORT).read_text())
    assert report["recipe"]["model"] == "mini-dream" and report["earlier"]["recipe"] == asdict(TINY)


def test_a_base_that_ended_is_not_repeated_and_steps_count_through_both(tmp_path: Path) -> None:
    train.train_parts(DREAM, tmp_path, stop_at=6)
    assert not (tmp_path / train.STATE).exists()
    when = (tmp_path / train.BASE / "model.safetensors").stat().st_mtime_ns
    train.train_parts(DREAM, tmp_path, stop_at=8)
    assert json.loads((tmp_path / train.REPORT).read_text())["step"] == 2
    train.train_parts(DREAM, tmp_path)
    assert json.loads((tmp_path / train.REPORT).read_text())["step"] == 6
    assert (tmp_path / train.BASE / "model.safetensors").stat().st_mtime_ns == when


def test_another_recipe_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    train.train_parts(DREAM, tmp_path)
    with pytest.raises(UserError, match=r"begun with batch=3, not 4; .* or another folder"):
        train.train_parts(replace(DREAM, batch=4), tmp_path)
    (tmp_path / train.BASE / train.STATE).unlink()
    (tmp_path / train.BASE / train.REPORT).unlink()
    with pytest.raises(UserError, match="begun with batch=3, not 4"):
        train.train_parts(replace(DREAM, batch=4), tmp_path)
    assert not (tmp_path / train.BASE / train.STATE).exists()


def test_mini_dreams_command_makes_its_base_unless_it_is_given_one(tmp_path: Path) -> None:
    runs = train.parts_of(recipe_of("mini-dream"), tmp_path)
    assert [(one.model, place.relative_to(tmp_path).as_posix()) for one, place in runs] == [
        ("mini-llada", "base"),
        ("mini-dream", "."),
    ]
    assert runs[0][0] == recipe_of("mini-llada") and runs[1][0].base == str(tmp_path / "base")
    given = recipe_of("mini-dream", base="elsewhere")
    assert train.parts_of(given, tmp_path) == [(given, tmp_path)]
    assert train.parts_of(recipe_of("mini-ar"), tmp_path) == [(recipe_of("mini-ar"), tmp_path)]


def test_a_run_turns_to_all_wordings_and_masks_from_the_start_of_a_block_on() -> None:
    wide = data.MIXES["wide"]
    assert wide.at(data.TURN - 0.01) is wide and wide.at(data.TURN) is wide.at(1.0) is data.HARD
    sources = [data.HARD.source(Random(seed)) for seed in range(400)]
    assert {source: sources.count(source) / 400 for source in ("many", "more", "trained")} == pytest.approx(
        {"many": 0.5, "more": 0.2, "trained": 0.3}, abs=0.06
    )
    vocab = tokenizer.build("mini-llada")
    marks = data.structure(vocab)

    def whole(progress: float) -> dict[bool, float]:
        """The share of short answers that are masked whole, of tasks with many right answers and with one."""
        counts = {True: [0, 0], False: [0, 0]}
        for step in range(30):
            for batch in data.make_batches(vocab, "mini-llada", marks, 40, progress, 0, step, wide):
                for row, task in enumerate(batch.tasks):
                    if task in tasks.SHORT_ANSWERS:
                        count = counts[task in tasks.FREE]
                        count[0] += 1
                        count[1] += bool((batch.masked | ~batch.answer)[row].all())
        return {free: masked / rows for free, (rows, masked) in counts.items()}

    before, after = whole(0.4), whole(0.5)
    assert 0.36 < after[False] < 0.56 and max(before.values()) < 0.2 > after[True]


def test_rows_are_masked_from_the_start_of_a_block_on() -> None:
    """Any block that holds a part of the answer or its end; rows that are not asked for stay as they were."""
    before, starts = torch.zeros(3, 128, dtype=torch.bool), set()
    answers, canvases = [[7] * 70, [7] * 31, [7]], [96, 64, 128]
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        masked = masks.mask_at_once(before, [1.0, 1.0, 0.0], answers, canvases, generator)
        starts.add(int(masked[0].long().argmax()))
        assert not masked[0, 96:].any() and masked[0, :96].sum() == 96 - masked[0].long().argmax()
        assert masked[1, :64].all() and not masked[1, 64:].any() and not masked[2].any()
    assert starts == {0, 32, 64}


def test_the_card_tells_of_the_run_and_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train.train_parts(replace(DREAM, steps=1), tmp_path)
    with monkeypatch.context() as one:
        one.setattr(tasks, "TASKS", {"copy": tasks.TASKS["copy"]})
        assert evaluate.main([str(tmp_path), "--count", "1", "--parts", "careful"]) == 0
    assert card.main([str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "1 steps of 3 conversations" in text and "--steps 1 " in text and "--base" not in text.split("Ended")[0]
    digest = evaluate.weights_digest(tmp_path / train.BASE)
    assert f"base\nmini-llada (weights {digest}, 0 minutes that the command takes first" in text
    assert "70 of 100 requests" in text and "(`many_wordings.txt`, `more_wordings.txt` of `dllm/tasks/mini`" in text
    assert "### Caches, one token a step" in text and "seed 3" in text


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_the_recipe_and_its_data_are_those_that_the_card_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the shipped weights come from the command that the card prints."""
    monkeypatch.undo()
    text, made = (locate(name) / "README.md").read_text(), recipe_of(name)
    assert re.findall(r"Data ([0-9a-f]{16})", text) == [data.digest(made.seed, data.MIXES[made.requests])]
    assert tokenizer.digest(tokenizer.build(name)) in text and f"{made.steps:,} steps" in text
    assert f"\n    python -m experiments.mini.train {name} --out runs/{name}\n" in text
