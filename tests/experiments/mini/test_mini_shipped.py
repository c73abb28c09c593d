"""What the shipped mini models promise: careful decoding works where reckless decoding fails, in other words and under
caches too. The cards have the figures; these bounds are far below them."""

from __future__ import annotations

import pytest

from dllm import Model, load
from dllm.compose.parts import composed
from dllm.models.bundle import locate
from dllm.models.shipped import shipped_models
from dllm.models.visibility import FULL
from dllm.models.weights import read_model_config
from dllm.samplers.static import Static
from dllm.tasks.mini import tasks
from experiments.compare.kinds import line, one_forward_each
from experiments.mini.decoders import settings_of
from experiments.mini.evaluate import answers, fixed, whole

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
        found = line(model, label, words, items)
        careful = label in ("left to right", "one token", "no cache")
        assert sum(found.right) / len(items) >= (0.75 if careful else 0.3), label
        assert label != "left to right" or one_forward_each(found)
