"""The finishing part of a training: names whose vectors change for a step, its data, and both parts as one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm.errors import UserError
from dllm.models.transformer import Transformer
from dllm.tasks.mini import words
from experiments.mini import card, data, recipe, tokenizer, train
from experiments.mini.recipe import Recipe, build_model, finish_of, first_embeddings, init_weights
from experiments.mini.redraw import Names, known_names, origin

TINY = Recipe(width=16, head_dim=8, layers=1, mlp_width=24, batch=3, steps=8, hard_share=0.34)
VOCAB = tokenizer.build("mini-llada")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One thread, and a finishing part of a few steps."""
    monkeypatch.setitem(recipe.FINISH, "steps", 8)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_and_names() -> tuple[Transformer, Names]:
    model = build_model(TINY, tokenizer.texts(VOCAB))
    return model, known_names(model, TINY, VOCAB)


def rows(model: Transformer) -> list[Tensor]:
    return [matrix.detach().clone() for matrix in (model.embed.weight, model.lm_head.weight)]


def test_only_known_names_are_redrawn_and_all_are_put_back() -> None:
    model, names = model_and_names()
    known = {VOCAB.encode(word).ids[0] for word in words.NAMES if word not in words.TOWNS}
    assert set(names.ids.tolist()) == known and not known & set(tokenizer.new_ids(VOCAB))
    before = rows(model)
    with names.redrawn(model, 0.5, 7) as ids:
        inside = rows(model)
    for one, other, after in zip(before, inside, rows(model), strict=True):
        changed = (one != other).any(1).nonzero()[:, 0].tolist()
        assert changed == sorted(ids.tolist()) and set(changed) <= known and len(changed) == round(len(known) / 2)
        assert torch.equal(one, after)
    assert torch.equal(inside[1][ids], inside[0][ids] * TINY.width**-0.5)
    with pytest.raises(ValueError, match="lost"), names.redrawn(model, 0.5, 8):
        raise ValueError("lost")
    assert all(map(torch.equal, before, rows(model)))


def test_redrawn_rows_are_a_function_of_the_seed_and_keep_what_letters_say() -> None:
    """On a wide model, so that parts of a vector can be told apart: the own part changes, the rest is the same."""
    wide = replace(TINY, width=1024, head_dim=64)
    words_there = tokenizer.texts(VOCAB)[:400]
    first, own = first_embeddings(wide, words_there)
    model = Transformer(recipe.ModelConfig.from_published(recipe.published_config(wide, len(words_there))))
    assert torch.equal(own, init_weights(model, wide, words_there))
    ids = torch.arange(300, 340)
    names = Names(ids, own[ids])
    with names.redrawn(model, 1.0, 3) as chosen:
        one = rows(model)[0][chosen]
    with names.redrawn(model, 1.0, 3) as again:
        assert torch.equal(one, rows(model)[0][again])
    with names.redrawn(model, 1.0, 4) as chosen_else:
        other = dict(zip(chosen_else.tolist(), rows(model)[0][chosen_else], strict=True))
    alike = torch.nn.functional.cosine_similarity
    for at, row in zip(chosen.tolist(), one, strict=True):
        fresh, kept = row - (first[at] - own[at]), first[at] - own[at]
        assert alike(fresh, own[at], 0).abs() < 0.16 and alike(fresh, other[at] - kept, 0).abs() < 0.16
        assert fresh.norm() == pytest.approx(float(own[at].norm()), rel=0.1)
        assert alike(row, first[at], 0) > 0.2 and row.std() == pytest.approx(1, abs=0.1)


def test_a_step_leaves_the_rows_of_all_names_as_they_were_and_learns_from_the_redrawn() -> None:
    finish = replace(TINY, redrawn=0.5, seed=5)
    trained = []
    for redrawn in (True, False):
        model, names = model_and_names()
        held = torch.tensor(tokenizer.item_ids(VOCAB))
        before, state = rows(model), train.State(model, train.build_optimizers(model, finish))
        batches = data.make_batches(VOCAB, "mini-llada", data.structure(VOCAB), 6, 2.0, 5, 0)
        train.train_step(state, finish, batches, train.Sums(), held, names if redrawn else None)
        assert all(torch.equal(one[held], other[held]) for one, other in zip(before, rows(model), strict=True))
        trained.append(model.state_dict())
    assert any(not torch.equal(trained[0][key], trained[1][key]) for key in trained[0] if key.startswith("layers"))


def test_a_base_whose_names_were_drawn_otherwise_is_refused(tmp_path: Path) -> None:
    train.train(replace(TINY, steps=1), tmp_path)
    assert origin(replace(TINY, base=str(tmp_path))) == replace(TINY, steps=1)
    report = json.loads((tmp_path / train.REPORT).read_text())
    (tmp_path / train.REPORT).write_text(json.dumps({**report, "recipe": {**report["recipe"], "seed": 1}}))
    with pytest.raises(UserError, match="has names of other vectors than its recipe draws"):
        train.Run(replace(TINY, base=str(tmp_path), redrawn=0.5), tmp_path / "finish")


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_names_of_the_shipped_models_are_known(name: str) -> None:
    vocab, finish = tokenizer.build(name), recipe.recipe_of(name, base=name, redrawn=0.5)
    names = known_names(build_model(finish, tokenizer.texts(vocab)), finish, vocab)
    assert len(names.ids) > 300 and float(names.own.std()) == pytest.approx(0.73, abs=0.02)


def test_a_finishing_part_asks_by_further_templates_and_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    drawn = data.tasks.draw

    def noted(task: str, given: Any, split: str) -> Any:
        asked.append(given.wording)
        return drawn(task, given, split)

    monkeypatch.setattr(data.tasks, "draw", noted)
    data.choose(data.Random(0), 300, 1.0)
    assert set(asked) == {"plain", "trained", "strewn"}
    asked.clear()
    data.choose(data.Random(0), 300, replace(TINY, redrawn=0.5).progress(3))
    assert set(asked) == {"plain", "trained", "strewn", "more", "more strewn"}
    assert data.digest(11, (recipe.FINISHING,)) != data.digest(11)


def test_the_first_part_of_each_model_draws_what_its_card_says() -> None:
    """What was trained once can be trained again."""
    for name, wanted in DATA.items():
        assert data.digest(recipe.recipe_of(name).seed) == wanted


DATA = {
    "mini-llada": "1d71230bea346148", "mini-dream": "8c9e8ddd7ab11961", "mini-ar": "1d71230bea346148",
    "mini-wedlm": "bf0083915b6e4dab", "mini-nbdiff": "4c19f6b57308d584",
}  # fmt: skip


def killed(folder: Path, seconds: float) -> None:
    """Train both parts in another process and kill it with SIGKILL after so long."""
    other = multiprocessing.get_context("fork").Process(target=train.train_whole, args=(TINY, folder, 0, 2))
    other.start()
    time.sleep(seconds)
    os.kill(other.pid or 0, signal.SIGKILL)
    other.join()


def test_both_parts_killed_at_any_moment_end_as_one_run_that_was_not(tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "killed"
    began = time.monotonic()
    train.train_whole(TINY, straight, save_every=2)
    whole = time.monotonic() - began
    for share in (0.3, 0.6):
        killed(stopped, whole * share)
    for stop_at in (5, 11):  # in the first part and in the finishing one, if no kill came after it
        train.train_whole(TINY, stopped, stop_at, save_every=2)
    train.train_whole(TINY, stopped, save_every=2)
    for part in ("", train.FIRST):
        for file in ("model.safetensors", "config.json"):
            assert (straight / part / file).read_bytes() == (stopped / part / file).read_bytes()
        one, two = (torch.load(at / part / train.STATE, weights_only=True) for at in (straight, stopped))
        assert str(one["model"]) == str(two["model"]) and str(one["optimizers"]) == str(two["optimizers"])
    first, last = (json.loads((stopped / part / train.REPORT).read_text()) for part in (train.FIRST, ""))
    assert first["step"] == last["step"] == 8 and last["first"] == first
    assert last["base"] == train.weights_digest(stopped / train.FIRST) and last["data"] != first["data"]


def test_a_first_part_that_ended_is_not_repeated_and_another_is_refused(tmp_path: Path) -> None:
    train.train(TINY, tmp_path / train.FIRST)
    (tmp_path / train.FIRST / train.STATE).unlink()
    report = (tmp_path / train.FIRST / train.REPORT).read_text()
    train.train_whole(TINY, tmp_path, stop_at=4)
    assert not (tmp_path / train.STATE).exists()
    train.train_whole(TINY, tmp_path, stop_at=10)
    assert (tmp_path / train.FIRST / train.REPORT).read_text() == report
    assert torch.load(tmp_path / train.STATE, weights_only=True)["step"] == 2
    with pytest.raises(UserError, match="begun with batch=3, not 4"):
        train.train_whole(replace(TINY, batch=4), tmp_path)


def test_models_without_a_finishing_part_learn_in_one() -> None:
    assert finish_of(recipe.recipe_of("mini-ar"), Path("first")) is None
    assert finish_of(replace(TINY, redrawn=0.5), Path("first")) is None
    finish = finish_of(recipe.recipe_of("mini-dream"), Path("first"))
    assert finish is not None and finish.base == "first" and finish.layers == 5
    assert finish.steps == recipe.FINISH["steps"] and finish.redrawn == recipe.FINISH["redrawn"]


def test_the_card_tells_of_both_parts(tmp_path: Path) -> None:
    train.train_whole(TINY, tmp_path)
    text = card.trained(json.loads((tmp_path / train.REPORT).read_text()))
    assert text.count("8 steps") == 2 and "seed 0" in text and "seed 11" in text
    assert f"{recipe.FINISH['redrawn']:.0%} of the known names" in text
    assert "--width 16" in text and "--redrawn" not in text and "{" not in text
