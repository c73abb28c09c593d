"""What the shipped mini models promise: careful decoding works where reckless decoding fails, in other words and under
caches too. The cards have the figures; these bounds are far below them."""

from __future__ import annotations

import pytest

from dllm import Model, load
from dllm.samplers.static import Static
from dllm.tasks.mini import tasks
from experiments.mini.evaluate import answers, fixed, whole

MODELS = ("mini-llada", "mini-dream")


def share(model: Model, task: str, per_step: int = 1, count: int = 24, **how: str) -> float:
    right = whole(model, tasks.generate(task, 11, count, **how), per_step, tasks.budget(task))  # type: ignore[arg-type]
    return sum(right) / count


@pytest.mark.parametrize("name", MODELS)
def test_shuffling_needs_care_and_copying_does_not(name: str) -> None:
    model = load(name)
    assert share(model, "shuffle") >= 0.75 and share(model, "shuffle", 32) <= 0.3
    assert min(share(model, "copy", per_step) for per_step in (1, 8, 32)) >= 0.85


@pytest.mark.parametrize("name", MODELS)
def test_other_wordings_and_names_that_training_never_saw_work(name: str) -> None:
    model = load(name)
    assert share(model, "reverse", wording="unseen") >= 0.75
    assert share(model, "copy", names="new") >= 0.75


@pytest.mark.parametrize("name", MODELS)
def test_caches_lose_little(name: str) -> None:
    model, items = load(name), tasks.generate("insert_random", 11, 24)
    for cache in ("prefix", "dual", "dkv"):
        right = answers(model, items, 32, sampler=Static(), blocks=fixed(8), cache=cache)
        assert sum(right) / len(items) >= 0.75, cache
