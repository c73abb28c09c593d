"""What is refused, in one sentence and before weights are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dllm.models.weights import weights
from experiments.distill import __main__ as distill
from experiments.distill import student as students
from experiments.distill.recipe import RECIPES, parse
from tests.experiments.distill.conftest import options
from tests.support.adapters import DATA


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["modell=x"], "'modell=x' is not an option; .* Did you mean 'model'"),
        (["count=many"], "count='many' must be a whole number"),
        (["threshold=-0.1"], "threshold=-0.1 must be at least 0"),
        (["teacher_threshold=-1"], r"teacher_threshold=-1.0 must lie in \[0, 1\]"),
        (["beta=-1"], "beta=-1.0 must be at least 0"),
        (["certain=wrong"], "certain='wrong' must be one of right, all"),
        (["batch=5"], "batch=5 must be a multiple of micro=2"),
        (["tune=full", "dtype=bfloat16"], "tune=full with dtype=bfloat16 would round away steps"),
        (["data="], "'data=' is not an option"),
        (["data=gone.jsonl"], "data='gone.jsonl' cannot be read"),
        (["batch=100", "micro=1"], "batch=100 exceeds the 9 examples"),
        (["held_out=11"], "held_out=11 leaves nothing to learn from"),
        (["length=4"], "has a prompt of 4 tokens, and length=4 leaves none"),
        (["gen_length=300"], "line [0-9]+: the prompt takes .* lower gen_length"),
        (["recipe=best"], "recipe='best' must be one of mini-llada-distilled"),
    ],
)
def test_mistakes_are_one_sentence_before_weights_are_read(
    given: list[str],
    words: str,
    tiny: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(weights, "_parameter", lambda *_: pytest.fail("weights were read"))
    assert distill.main([*options(tiny, data, tmp_path / "out"), *given]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    with pytest.raises(distill.UserError, match=words):
        distill.Plan.of([*options(tiny, data, tmp_path / "out"), *given])
    assert not (tmp_path / "out").exists()


def test_adapters_without_peft_are_refused(
    tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(students, "find_spec", lambda name: None)
    with pytest.raises(distill.UserError, match=r"tune=lora needs peft, .*-e '.\[distill\]', or use tune=full"):
        distill.Plan.of(options(tiny, data, tmp_path / "out", "tune=lora"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "w1", "response": " "}', "line 12 has an empty response, .* leave out its response"),
        ('{"question": "w1", "llm_response": ""}', "line 12 has an empty response"),
        ('{"prompt": ""}', 'line 12 must be {"prompt": TEXT}'),
        ('{"prompt": "w1", "response": 3}', 'line 12 must be {"prompt": TEXT}'),
        ('["w1"]', 'line 12 must be {"prompt": TEXT}'),
        ('{"prompt": "w1"', "line 12 is not JSON"),
        ('{"tokens": [700]}', "line 12: token id 700 is not in the model's vocabulary"),
    ],
)
def test_a_line_that_is_no_question_is_named(line: str, words: str, tiny: Path, data: Path, tmp_path: Path) -> None:
    with data.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(distill.UserError, match=words):
        distill.Plan.of(options(tiny, data, tmp_path / "out"))


def test_a_folder_of_another_recipe_and_a_model_of_another_layout_are_refused(
    tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert distill.main(options(tiny, data, out, "stop_at=1")) == 0
    monkeypatch.setattr(weights, "_parameter", lambda *_: pytest.fail("weights were read"))

    def sentence(*more: str, model: Path = tiny) -> str:
        with pytest.raises(distill.UserError) as error:
            distill.Plan.of([*options(model, data, out), *more])
        return str(error.value)

    assert "begun with batch=4, not 2; going on would mix the two" in sentence("batch=2")
    assert "begun with beta=2.0, not 0.0" in sentence("beta=0")
    other = shutil.copytree(tiny, tmp_path / "other")
    (other / "more.txt").write_text("x")
    assert f"begun with model={str(tiny)!r}, not" in sentence(model=other)
    (tiny_copy := tmp_path / "data.jsonl").write_text(data.read_text().replace("w1 w8", "w1 w9"))
    assert "begun with other questions; going on" in sentence(f"data={tiny_copy}")
    for name in ("sdar_b4", "llada2_moe"):
        assert "is of the family" in sentence(model=with_mask(name, tmp_path))
    (out / "recipe.json").unlink()
    assert "holds another kind of run" in sentence()


def with_mask(name: str, folder: Path) -> Path:
    """A copy of a model whose config names a mask in its vocabulary."""
    copy = shutil.copytree(DATA / name, folder / name)
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**content, "mask_token_id": 100}))
    return copy


def test_a_recipe_is_options_by_name() -> None:
    recipe, place = parse(["recipe=mini-llada-distilled", "steps=7"])
    assert (recipe.steps, recipe.data, place.out) == (7, "mini", "runs/mini-llada-distilled")
    assert parse(["steps=7", "recipe=mini-llada-distilled"]) == (recipe, place)
    assert all(parse([f"recipe={name}"]) for name in RECIPES)
