"""Evaluation, card and what is derived: from a model of one step, and from figures made by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from dllm import Model, load
from dllm.parts import FULL, Static, composed, locate, read_model_config, shipped_models
from dllm.tasks.mini import tasks
from experiments.mini import card, derive, evaluate, train
from experiments.mini.decoders import decoder, settings_of
from experiments.mini.evaluate import answers, fixed, whole
from experiments.mini.recipe import Recipe, recipe_of
from experiments.support.held_out import answered

TINY = Recipe(width=16, head_dim=8, layers=1, mlp_width=24, batch=2, steps=1, hard_share=0.0, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mini")
    train.train(TINY, out)
    return out


def test_an_evaluation_leaves_figures_that_the_card_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert card.main([str(folder)]) == 2 and "run experiments.mini.evaluate first" in capsys.readouterr().err
    with monkeypatch.context() as short:
        short.setattr(evaluate, "CANVASES", (32, 64))
        short.setattr(tasks, "TASKS", {name: tasks.TASKS[name] for name in ("copy", "assign")})
        assert evaluate.main([str(folder), "--count", "1", "--parts", "canvas"]) == 0
    scores = json.loads((folder / "scores.json").read_text())
    assert list(scores["parts"]["canvas"]["right"]) == ["32", "64"]
    assert "assign" not in scores["parts"]["canvas"]["right"]["32"]
    assert card.main([str(folder)]) == 0
    text = (folder / "README.md").read_text()
    assert "### Canvases" in text and "1 steps of 2 conversations" in text and "{" not in text.replace('[{"', "")
    assert "--width 16" in text and "--steps 1 " in text and "--seed" not in text
    scores["weights"] = "other"
    (folder / "scores.json").write_text(json.dumps(scores))
    assert card.main([str(folder)]) == 2 and "measured on other weights" in capsys.readouterr().err


def test_causal_models_are_measured_by_their_ways_to_decode(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of("mini-wedlm", base="", width=16, head_dim=8, layers=1, mlp_width=24, batch=2, steps=1)
    train.train(recipe, tmp_path)
    assert evaluate.parts_of(load(tmp_path)) == ["way", "wording", "names", "size"]
    assert "way" not in evaluate.parts_of(load(folder)) and "cache" in evaluate.parts_of(load(folder))
    with monkeypatch.context() as short:
        short.setattr(tasks, "TASKS", {"copy": tasks.TASKS["copy"]})
        assert evaluate.main([str(tmp_path), "--count", "1", "--parts", "way"]) == 0
    assert card.main([str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "| task | left to right | threshold 0.1 | threshold 0.4 | threshold 0.8 |" in text
    assert "in WeDLM's architecture" in text and "as much of the" in text


def test_a_base_that_comes_along_goes_by_its_name_and_another_by_its_path() -> None:
    weights = evaluate.weights_digest(locate("mini-ar"))
    assert card.shipped_as("/anywhere/mini-ar", weights) == card.shipped_as("mini-ar", weights) == "mini-ar"
    assert card.shipped_as("/anywhere/mini-ar", "other") == "/anywhere/mini-ar"
    assert card.shipped_as("/anywhere/mine", weights) == "/anywhere/mine"


def test_the_card_of_a_distilled_model_has_its_report(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "checkpoint"
    shutil.copytree(folder, out)
    (out / "training.json").unlink()
    (out / "scores.json").write_text(json.dumps({"weights": evaluate.weights_digest(out), "parts": {}}))
    assert card.main([str(out)]) == 2
    report = {
        "recipe": {"model": "runs/mini-llada", "batch": 32, "seed": 0, "threshold": 0.5, "held_out": 20},
        "step": 1600,
        "environment": {"versions": {"torch": "2"}, "platform": "Linux"},
        "starts": 1,
        "examples": 3600,
        "log": {"cpu_minutes": 9.4, "wall_minutes": 9.6},
        "before": {"forwards": [6.0, 0.5], "score": [0.9, 0.1]},
        "after": {"forwards": [4.0, 0.5], "score": [0.8, 0.1]},
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert card.main([str(out)]) == 0
    text = (out / "README.md").read_text()
    assert "# mini-llada-distilled" in text and "| forwards (NFE) | 6.00 ±0.50 | 4.00 ±0.50 |" in text
    assert "distillation (dParallel, arXiv 2509.26488) of mini-llada:" in text and "300 held-out questions" in text


def test_tables_show_per_cent_with_intervals() -> None:
    found = {"1": {"copy": [1.0] * 9 + [0.0], "assign": [1.0] * 10}, "32": {"copy": [0.0] * 10}}
    lines = card.table(found).splitlines()
    assert lines[0] == "| task | 1 | 32 |" and lines[2] == "| copy | 90 (60-98) | 0 (0-28) |"
    assert lines[3] == "| assign | 100 (72-100) | - |"
    # 1.96 sqrt(p (1 - p) / 14) of p = 11 / 14 and 2 / 14
    assert lines[-2] == "| mean, short answers | 90.0 ±21.5 | 0.0 ±18.3 |"


def test_losses_under_a_cache_are_paired() -> None:
    """By hand: 20 of 100 items lost and none won is 20 points, surely over 6; 10 lost and 10 won is none."""
    none = {"copy": [1.0] * 100, "sort": [1.0] * 50 + [0.0] * 50}
    of = {"copy": [0.0] * 20 + [1.0] * 80, "sort": [0.0] * 10 + [1.0] * 50 + [0.0] * 40}
    assert card.paired(of, none) == (pytest.approx(10.0), ["copy"])
    right = {"none 8": none, "prefix 8": of}
    assert card.cache_table(right).splitlines()[-1].endswith("| 10.0 | copy |")


def test_savings_are_against_no_cache_in_the_same_blocks() -> None:
    found = {
        f"{cache} {block}": {"query_tokens": tokens, "seconds": seconds}
        for cache, block, tokens, seconds in (
            ("none", 32, 1000, 2.0),
            ("dual", 32, 300, 0.5),
            ("none", "whole", 2000, 4.0),
            ("window", "whole", 500, 3.0),
        )
    }
    lines = card.savings_table(found).splitlines()
    assert lines[3] == "| dual 32 | 300 | 30 % | 0.50 | 25 % |"
    assert lines[5] == "| window whole | 500 | 25 % | 3.00 | 75 % |"


def test_what_is_derived_is_read_by_the_samplers(folder: Path) -> None:
    options = ["--count", "1", "--epochs", "2", "--block", "16", "--gen-length", "16"]
    assert derive.main([str(folder), *options]) == 0
    table = json.loads((folder / "frequencies.json").read_text())
    tokenizer = load(folder).tokenizer
    assert tokenizer is not None
    comma, rare = (table.get(str(tokenizer.encode(text)[0]), 0) for text in (",", "Shuffle"))
    assert sum(table.values()) == pytest.approx(1) and comma > 0.02 and rare == 0
    with safe_open(folder / "filter-b16.safetensors", framework="pt") as stored:
        assert stored.metadata()["block_length"] == "16"
    assert not (folder / "filter-prompts.jsonl").exists()


KINDS = {name: read_model_config(locate(name)).attention for name in shipped_models()}
# The distilled model answers as its teacher one token at a time; docs/distillation.md says what it loses at several.
MODELS = [name for name, kind in KINDS.items() if kind == FULL and name != "mini-llada-distilled"]


def share(model: Model, task: str, per_step: int = 1, count: int = 16, **how: str) -> float:
    right = whole(model, tasks.generate(task, 11, count, **how), per_step, tasks.longest(task))  # type: ignore[arg-type]
    return sum(right) / count


@pytest.mark.parametrize("name", MODELS)
def test_shuffling_needs_care_and_copying_does_not(name: str) -> None:
    model = load(name)
    assert share(model, "shuffle") >= 0.75 and share(model, "shuffle", 32) <= 0.3
    assert min(share(model, "copy", per_step) for per_step in (1, 8, 32)) >= 0.85


@pytest.mark.parametrize("name", MODELS)
def test_other_wordings_and_names_that_training_never_saw_work(name: str) -> None:
    model = load(name)
    assert share(model, "reverse", wording="unseen") >= 0.75 and share(model, "remove_index", wording="others") >= 0.6
    assert share(model, "copy", names="new") >= 0.75


@pytest.mark.parametrize("name", MODELS)
def test_caches_lose_little(name: str) -> None:
    """In the same blocks: those of 8 cost tasks of free choice some points by themselves."""
    model, items = load(name), tasks.generate("insert_random", 11, 24)
    right = {
        cache: sum(answers(model, items, 32, sampler=Static(), blocks=fixed(8), cache=cache))
        for cache in ("none", "prefix", "dual", "dkv")
    }
    assert right["none"] >= 12 and min(right.values()) >= right["none"] - 2, right


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_has_its_name_a_card_and_at_most_ten_megabytes(name: str) -> None:
    folder = locate(name)
    assert (folder / "model.safetensors").stat().st_size <= 10_000_000
    assert (folder / "README.md").read_text().startswith(f"# {name}\n")
    config = composed([f"model={name}"]).model
    assert config.name == config.path == name


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_answers_in_every_way_of_its_kind(name: str) -> None:
    """From left to right in one forward for each token."""
    model, items = load(name), [item for task in ("copy", "shuffle") for item in tasks.generate(task, 11, 12)]
    for label, words in settings_of(model).items():
        rows, right = answered(decoder(model, words, 32, 24), items)
        careful = label in ("left to right", "one token", "no cache")
        assert sum(right) / len(items) >= (0.75 if careful else 0.3), label
        one_each = all(row.nfe <= row.useful_tokens + (row.stop_reason == "eos") for row in rows)
        assert label != "left to right" or one_each
