"""A configuration in a line: every setting that can change a sample and is not the usual one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from dllm.compose.config_choices import choices
from dllm.compose.naming import CHOICES, Config, own_options, part_words, typed_name, value_text
from dllm.compose.parts import composed, plain_config

ALWAYS = ("sampler", "blocks", "cache")  # parts that a line always names, after the model
UNUSUAL = ("eos", "length", "constraint")  # parts that it names where they are not the usual ones
# Settings of a model and a task that their names say already, or that leave every sample as it is.
IMPLIED_SETTINGS = frozenset(("name", "prompt", "run", "key_env", "at_once", "timeout", "retries"))
# Settings that leave every sample as it is, or that say where it is decoded and kept.
NO_OUTCOME = frozenset(
    ("animate", "compare", "live", "name", "output", "prompt", "prompts", "resume", "trace", "chat")
    + ("grids", "hydra", "engine", "experiment", "published", CHOICES)
)


def cell_label(config: Config) -> str:
    """A cell in words. Two cells have the same only where no setting differs: ``mini-llada static(per_step=4) fixed
    dpad eos=none task=parallelbench(count=4) seed=1``."""
    parts = [part_words(config, group) for group in ALWAYS if config.get(group)]  # an endpoint has none
    return " ".join([_described(config, "model"), *parts, *_more(config)])


def _more(config: Config) -> Iterator[str]:
    usual = usual_of(config)
    for group in UNUSUAL:
        if config.get(group) and (words := part_words(config, group)) != part_words(usual, group):
            yield f"{group}={words}"
    yield f"task={_described(config, 'task')}"
    for key, value in config.items():
        if key in NO_OUTCOME or key in (*ALWAYS, *UNUSUAL, "model", "task"):
            continue
        if not isinstance(value, Mapping):
            yield from [f"{key}={value_text(value)}"] if value != usual.get(key) else []
            continue
        there = usual.get(key) or {}
        yield from (f"{key}.{name}={value_text(entry)}" for name, entry in value.items() if entry != there.get(name))


def _described(config: Config, group: str) -> str:
    """A model or a task, with its settings that are not its file's."""
    usual = usual_of(config)[group]
    options = own_options(config, group)
    details = {key: value for key, value in options.items() if key not in IMPLIED_SETTINGS and usual.get(key) != value}
    name = value_text(config[group].get("name")) if group == "model" else typed_name(config, group)
    words = ", ".join(f"{key}={value_text(value)}" for key, value in details.items())
    return f"{name}({words})" if words else name


def usual_of(config: Config) -> dict[str, Any]:
    """What a configuration of the same model and task holds where nothing else was asked of it."""
    return usual_settings(_our_choice(config, "model"), _our_choice(config, "task"))


def _our_choice(config: Config, group: str) -> str | None:
    """The choice of a group, where it is one of ours."""
    typed_model = str((config.get(CHOICES) or {}).get("model", config["model"].get("name")))
    name = typed_name(config, group) if group == "task" else typed_model
    return name if name in choices(group) else None


@cache  # a composition takes 40 ms
def usual_settings(model: str | None, task: str | None) -> dict[str, Any]:
    """The configuration of a model and a task that nothing else was asked of."""
    names = {"model": model, "task": task}
    return plain_config(composed([f"{group}={name}" for group, name in names.items() if name is not None]))
