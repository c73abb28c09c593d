"""The names of parts and cells: as they were typed, with the options of their own, and never the same for two cells."""

from __future__ import annotations

from typing import Any

import pytest

from dllm.parts import (
    CHOICES,
    cell_label,
    choices,
    composed,
    options_of_choices,
    own_options,
    part_words,
    plain_config,
    typed_choices,
    typed_name,
)


def config_of(*overrides: str) -> dict[str, Any]:
    """As the command line keeps it."""
    found = composed(list(overrides), whole=True)
    chosen, given = found.hydra.runtime.choices, [text.partition("=")[0].lstrip("+") for text in overrides]
    kept = {key: value for key, value in plain_config(found).items() if key != "hydra"}
    return {**kept, CHOICES: typed_choices(kept, chosen, given)}


def chosen(group: str, name: str) -> dict[str, Any]:
    """The configuration of a choice by its file alone, which is quicker than composing."""
    entries = dict(options_of_choices(group)[name])
    inside = {
        key: chosen(group, one)
        for entry in entries.pop("defaults", ())
        if isinstance(entry, dict)
        for key, one in entry.items()
        if not key.startswith("override")
    }
    return {**entries, **inside}


@pytest.mark.parametrize("group", ["sampler", "blocks", "cache", "eos"])
def test_every_choice_is_called_by_its_name_and_has_no_option_of_its_own(group: str) -> None:
    for name in choices(group):
        for typed in ({}, {CHOICES: {group: name}}):
            config = {group: chosen(group, name), **typed}
            found = typed_name(config, group), part_words(config, group), own_options(config, group)
            assert found == (name, name, {})


@pytest.mark.parametrize(
    ("overrides", "group", "words"),
    [
        (["cache=dpad", "cache.suffix_window=64"], "cache", "dpad(suffix_window=64)"),
        (["cache=none", "cache.suffix_window=64"], "cache", "none(suffix_window=64)"),
        (["cache=streaming", "cache.suffix_window=64"], "cache", "streaming(suffix_window=64)"),
        (["cache=prefix", "cache.suffix_window=96"], "cache", "prefix(suffix_window=96)"),
        (
            ["sampler=prophet", "sampler/inner=credit", "sampler.inner.beta=0.5", "sampler.skip=3"],
            "sampler",
            "prophet(credit(beta=0.5), skip=3)",
        ),
        (["sampler=credit", "sampler.inner.threshold=0.7"], "sampler", "credit(confidence(threshold=0.7))"),
        (
            ["sampler._target_=my_samplers.Mine", "+sampler.low=0.3"],
            "sampler",
            "my_samplers.Mine(threshold=0.9, low=0.3)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_has_its_typed_name_and_what_differs_from_it(overrides: list[str], group: str, words: str) -> None:
    assert part_words(config_of(*overrides), group) == words


def test_two_classes_of_one_module_and_a_choice_of_the_user_s_own_have_names_of_their_own() -> None:
    mine, yours = (config_of(f"sampler._target_=my_samplers.{name}") for name in ("Mine", "Yours"))
    assert [part_words(one, "sampler") for one in (mine, yours)] == [
        "my_samplers.Mine(threshold=0.9)",
        "my_samplers.Yours(threshold=0.9)",
    ]
    own = {**mine, CHOICES: {"sampler": "mine"}}  # a file of the user's own, by --config-dir
    assert typed_name(own, "sampler") == "mine"


SETTINGS: list[dict[str, Any]] = [
    {"seed": 1},
    {"samples": 2},
    {"stop": ["a"]},
    {"stop": ["a,b"]},
    {"stop": ["a", "b"]},
    {"batch_size": 4},
    {"gen_length": 8},
    {"runtime": "static"},
    {"lag": 1},
    {"kernels": "torch"},
    *(
        {f"sampling.{key}": value}
        for key, value in (("top_p", 0.9), ("top_k", 4), ("temperature", 0.7), ("forbid_eos", True), ("eos_last", True))
    ),
    *(
        {f"model.{key}": value}
        for key, value in (
            ("dtype", "bfloat16"),
            ("quantize", "int8"),
            ("path", "ck/a"),
            ("path", "ck/b"),
            ("path", "other/a"),
            ("adapter", "lora/a"),
            ("name", "mine"),
            ("mask_id", 3),
        )
    ),
    *({f"task.{key}": value} for key, value in (("count", 4), ("tasks", ["copy"]), ("path", "x"), ("seed", 1))),
    {"blocks.block_length": 8},
    {"sampler.threshold": 0.7},
    *(
        {group: chosen(group, name)}
        for group, name in (
            ("blocks", "whole"),
            ("cache", "dpad"),
            ("cache", "dual"),
            ("cache", "vicinity"),
            ("eos", "none"),
            ("eos", "eotp"),
            ("sampler", "credit"),
            ("constraint", "from_task"),
        )
    ),
    {"sampler": {**chosen("sampler", "credit"), "inner": chosen("sampler", "eb")}},
    *(
        {"constraint": {**chosen("constraint", "regex"), "pattern": pattern}}
        for pattern in ("a+", "a" * 60 + "b", "a" * 60 + "c")
    ),
]


def with_setting(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    group, _, last = key.rpartition(".")
    return {**config, group: {**config[group], last: value}} if group else {**config, key: value}


def test_two_cells_that_differ_in_any_setting_have_two_labels() -> None:
    base = plain_config(composed(["task=parallelbench"]))
    labels = [cell_label(base)]
    for changed in SETTINGS:
        ((key, value),) = changed.items()
        labels.append(cell_label(with_setting(base, key, value)))
    assert labels[0] == "mini-llada confidence fixed none task=parallelbench"
    assert "mini-llada confidence fixed dpad task=parallelbench" in labels
    assert "mini-llada(path=ck/a) confidence fixed none task=parallelbench" in labels
    assert "mini-llada confidence fixed none task=parallelbench sampling.top_p=0.9" in labels
    assert len(set(labels)) == len(labels) == len(SETTINGS) + 1
