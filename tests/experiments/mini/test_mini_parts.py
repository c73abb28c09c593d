"""Training in two parts: one command, none of it repeated, and a kill at any moment changes nothing."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
import torch

from dllm.errors import UserError
from dllm.models.bundle import locate
from dllm.tasks.mini import tasks
from experiments.mini import card, data, evaluate, recipe, tokenizer, train
from experiments.mini.recipe import Recipe, finishing, recipe_of
from tests.killing import killed_after

TINY = Recipe(width=16, head_dim=8, layers=1, mlp_width=24, batch=3, steps=6, hard_share=0.34, products="float32")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finishing parts of six steps, at rates that show in bfloat16."""
    torch.set_num_threads(1)
    fast = {"steps": 6, "muon_rate": 0.5, "adam_rate": 0.5}
    brief = {name: {**changed, **fast} for name, changed in recipe.FINISHING.items()}
    monkeypatch.setattr(recipe, "FINISHING", brief)
    monkeypatch.setattr(train, "FINISHING", brief)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_both_parts_killed_at_any_moment_end_as_if_they_were_not(tmp_path: Path) -> None:
    straight, other = tmp_path / "straight", tmp_path / "killed"
    began = time.monotonic()
    train.train_parts(TINY, straight, save_every=2)
    whole = time.monotonic() - began
    for share in (0.3, 0.6):
        killed_after(whole * share, train.train_parts, TINY, other, save_every=2)
    train.train_parts(TINY, other, save_every=2)
    assert weights(other) == weights(straight) != weights(straight / train.FIRST)
    assert weights(other / train.FIRST) == weights(straight / train.FIRST)
    report = json.loads((straight / train.REPORT).read_text())
    assert report["recipe"]["requests"] == "latest" and report["earlier"]["recipe"] == asdict(TINY)


def test_a_part_that_ended_is_not_repeated_and_steps_count_through_both(tmp_path: Path) -> None:
    train.train_parts(TINY, tmp_path, stop_at=6)
    assert not (tmp_path / train.STATE).exists()
    when = (tmp_path / train.FIRST / "model.safetensors").stat().st_mtime_ns
    train.train_parts(TINY, tmp_path, stop_at=8)
    assert json.loads((tmp_path / train.REPORT).read_text())["step"] == 2
    train.train_parts(TINY, tmp_path)
    assert json.loads((tmp_path / train.REPORT).read_text())["step"] == 6
    assert (tmp_path / train.FIRST / "model.safetensors").stat().st_mtime_ns == when


def test_another_recipe_is_refused_before_a_part_is_trained(tmp_path: Path) -> None:
    train.train_parts(TINY, tmp_path)
    with pytest.raises(UserError, match=r"begun with batch=3, not 4; .* or another folder"):
        train.train_parts(replace(TINY, batch=4), tmp_path)
    (tmp_path / train.FIRST / train.STATE).unlink()
    (tmp_path / train.FIRST / train.REPORT).unlink()
    with pytest.raises(UserError, match="begun with batch=3, not 4"):
        train.train_parts(replace(TINY, batch=4), tmp_path)
    assert not (tmp_path / train.FIRST / train.STATE).exists()


def test_mini_dreams_command_makes_its_base_unless_it_is_given_one(tmp_path: Path) -> None:
    runs = train.parts_of(recipe_of("mini-dream"), tmp_path)
    assert [(one.model, place.relative_to(tmp_path).as_posix()) for one, place in runs] == [
        ("mini-llada", "base"), ("mini-dream", "first"), ("mini-dream", "."),
    ]  # fmt: skip
    assert runs[0][0] == recipe_of("mini-llada") and runs[1][0].base == str(tmp_path / "base")
    assert runs[2][0].base == str(tmp_path / "first") and runs[2][0].requests == "late"
    given = train.parts_of(recipe_of("mini-dream", base="elsewhere"), tmp_path)
    assert len(given) == 2 and given[0][0].base == "elsewhere"
    assert train.parts_of(recipe_of("mini-ar"), tmp_path) == [(recipe_of("mini-ar"), tmp_path)]


def test_the_finishing_part_asks_in_all_wordings_and_masks_whole_what_has_one_right_answer() -> None:
    late = data.MIXES["late"]
    sources = [late.source(Random(seed)) for seed in range(400)]
    assert {source: sources.count(source) / 400 for source in ("late", "more", "trained")} == pytest.approx(
        {"late": 0.55, "more": 0.25, "trained": 0.2}, abs=0.06
    )
    vocab = tokenizer.build("mini-llada")
    marks, whole = data.structure(vocab), {True: [0, 0], False: [0, 0]}
    for step in range(30):
        for batch in data.make_batches(vocab, "mini-llada", marks, 40, 1.0, 0, step, late):
            for row, task in enumerate(batch.tasks):
                count = whole[task in tasks.FREE]
                count[0] += 1
                count[1] += bool((batch.masked | ~batch.answer)[row].all())
    rows, at_once = whole[False]
    assert 0.48 < at_once / rows < 0.62 and whole[True][1] / whole[True][0] < 0.2


def test_rows_are_masked_whole_or_from_the_start_of_a_block_on() -> None:
    """Any block that holds a part of the answer or its end; rows that are not asked for stay as they were."""
    before, starts = torch.zeros(3, 128, dtype=torch.bool), set()
    answers, canvases = [[7] * 70, [7] * 31, [7]], [96, 64, 128]
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        masked = data.mask_at_once(before, [1.0, 1.0, 0.0], answers, canvases, generator)
        starts.add(int(masked[0].long().argmax()))
        assert not masked[0, 96:].any() and masked[0, :96].sum() == 96 - masked[0].long().argmax()
        assert masked[1, :64].all() and not masked[1, 64:].any() and not masked[2].any()
    assert starts == {0, 32, 64}
    assert data.mask_at_once(before, [1.0, 1.0, 0.0], None, canvases, generator).sum(1).tolist() == [96, 64, 0]


def test_the_card_tells_of_both_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = replace(TINY, steps=1)
    train.train_parts(brief, tmp_path)
    with monkeypatch.context() as one:
        one.setattr(tasks, "TASKS", {"copy": tasks.TASKS["copy"]})
        assert evaluate.main([str(tmp_path), "--count", "1", "--parts", "careful"]) == 0
    assert card.main([str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    first, _, second = text.partition("Then a finishing part from these weights")
    assert "1 steps of 3 conversations" in first and "--steps 1 " in first
    assert "85 of 100 requests" in second and "`latest_wordings.txt`" in second
    assert "### Caches, one token a step" in text
    assert ": 6 steps" in second and "seed 10" in second and "Muon 0.5" in second


@pytest.mark.parametrize("name", recipe.FINISHING)
def test_the_recipe_and_its_data_are_those_that_the_card_names(name: str) -> None:
    """So that the shipped weights come from the command that the card prints."""
    text, first = (locate(name) / "README.md").read_text(), recipe_of(name)
    parts = [first, finishing(first, Path("first"))]
    drawn = [data.digest(one.seed, data.MIXES[one.requests]) for one in parts]
    assert re.findall(r"Data ([0-9a-f]{16})", text) == drawn
    assert tokenizer.digest(tokenizer.build(name)) in text and f"{first.steps:,} steps" in text
    assert f"\n    python -m experiments.mini.train {name} --out runs/{name}\n" in text
