"""A class chosen by MODULE.CLASS is a choice with its own options, and no others."""

from __future__ import annotations

import pytest

from dllm.parts import (
    Sampler,
    SamplerTraits,
    State,
    Step,
    UserError,
    View,
    argmax_mask,
    build_part,
    composed,
    composed_settings,
    plain_config,
    with_own_classes,
)

MINE, OTHER = f"{__name__}.Mine", f"{__name__}.Bare"


class Mine(Sampler):
    """The surest position."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    def __init__(self, low: float = 0.8, steps: tuple[int, ...] = (1, 2), needed: int | None = None) -> None:
        self.low, self.steps, self.needed = low, steps, needed

    def step(self, view: View, state: State) -> Step:
        return view.step(argmax_mask(view.scores.confidence, view.open))


class Bare(Mine):
    """Without options."""

    def __init__(self) -> None:
        super().__init__()


MINE_WHOLE = {"_target_": MINE, "low": 0.8, "steps": [1, 2], "needed": None}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([f"sampler={MINE}"], MINE_WHOLE),
        ([f"sampler='{MINE}'", "sampler.low=0.3"], MINE_WHOLE | {"low": 0.3}),
        ([f"sampler._target_={MINE}", "+sampler.low=0.3"], MINE_WHOLE | {"low": 0.3}),
        ([f"sampler._target_={OTHER}"], {"_target_": OTHER}),
    ],
    ids=["by name", "quoted", "by target", "without options"],
)
def test_a_class_brings_its_own_options_alone(given: list[str], expected: dict[str, object]) -> None:
    config = plain_config(composed(with_own_classes(given))["sampler"])
    assert config == expected
    assert type(build_part("sampler", config)).__name__ == expected["_target_"].rpartition(".")[2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [f"sampler/inner={MINE}", f"sampler.inner._target_={MINE}"])
def test_a_class_stands_inside_a_wrapper(words: str) -> None:
    config = composed(with_own_classes(["sampler=credit", words, "sampler.inner.low=0.1"]))["sampler"]
    made = build_part("sampler", config)
    assert type(made).__name__ == "Credit" and type(made.inner) is Mine and made.inner.low == 0.1


def test_lm_eval_takes_a_class_in_its_model_args() -> None:
    assert composed_settings({"sampler": MINE, "sampler.low": 0.5})["sampler"] == MINE_WHOLE | {"low": 0.5}


@pytest.mark.parametrize(
    "kept",
    [
        ["sampler=static", f"sampler._target_={MINE}"],
        ["sampler=eb"],
        ["sampler._target_=dllm.parts.samplers.eb.EB"],
        ["hydra/launcher=joblib", f"sampler._target_={MINE}"],
        ["cache=null", "prompt=a.b=c.d"],
    ],
    ids=lambda words: " ".join(words).replace(MINE, "MINE"),
)
def test_other_words_stay_as_they_are(kept: list[str]) -> None:
    assert with_own_classes(kept) == kept


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"sampler={__name__}.Mien", f"sampler='{__name__}.Mien' names no class: {__name__} has Mine, Bare."),
        (f"cache={MINE}", f"cache='{MINE}' is no Cache: derive it from dllm.parts.cache.base.Cache"),
        ("sampler=nope.Nope", "there is no module nope. Write MODULE.CLASS, with the module's folder in PYTHONPATH."),
        ("sampler._target_=nope.Nope", "sampler._target_='nope.Nope' names no class"),
    ],
    ids=["misspelt", "another kind", "no module", "by target"],
)
def test_what_is_no_part_is_refused_before_anything_is_composed(words: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        with_own_classes([words])
    assert sentence in str(refused.value)
