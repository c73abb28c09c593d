"""Which choices work instead of a cache that does not serve the parts. Each one has been tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from dllm.common.errors import Set, UserError
from dllm.compose.clashes import WITHOUT_AHEAD, clash_in
from dllm.compose.config_choices import options_of_choices
from dllm.compose.parts import class_of, part
from dllm.contract.clash import Selection
from dllm.models.config import ModelConfig
from dllm.models.weights.shipped import shipped_folder, shipped_models
from dllm.models.weights.weights import read_model_config
from dllm.parts.lengths.fixed_length import FixedLength

# The order of suggestions to a user who wanted a cache. The block-wise ones, which most samplers were published with,
# come early.
BY_REUSE = ("finished", "dual", "prefix", "elastic", "window", "dkv", "recap", "flash_verify", "linear_spec", "none")


def ways_out(c: Selection) -> Iterator[Set]:
    """What to choose instead of the cache: the nearest cache, and what its own choice goes with; where no cache serves
    the parts, another part or model with the nearest cache."""
    if name := working(c):
        yield Set("cache", name)
        yield from to_serve(c)
        return
    ways = [Set("model", name) for name in shipped_models()]
    ways += [WITHOUT_AHEAD[group] for group, needs in c.needs_by_group.items() if group == "sampler" or needs]
    for way in ways:
        other = after(c, way)
        if goes_together(other):
            yield way
        elif name := working(other):
            yield Set("cache", name) & way


def to_serve(c: Selection) -> Iterator[Set]:
    """The shipped models and the drafting samplers with which the cache itself works."""
    traits, models, rules = c.cache.traits, list[Set](), list[Set]()
    if not {"full", c.attention.name} & traits.kinds:
        models = [
            Set("model", name) for name in shipped_models() if shipped_config(name).attention.name in traits.kinds
        ]
    if traits.verifies and not c.does.verifies:
        rules = [Set("sampler", name) for name in drafting(traits.verifies)]
    ways = [model & other for model in models for other in rules] if models and rules else models + rules
    yield from (way for way in ways if goes_together(after(c, way)))


def after(c: Selection, way: Set) -> Selection:
    """The combination with a model, or a part at its defaults, chosen instead."""
    for group, name in way.all.items():
        match group:
            case "model":
                c = replace(c, setting=replace(c.setting, model=shipped_config(name), name=name))
            case "blocks":
                c = replace(c, setting=replace(c.setting, blocks=at_defaults(group, name)))
            case "length":  # the choice "fixed" is empty
                c = replace(c, length=at_defaults(group, name) or FixedLength())
            case _:
                c = replace(c, **{group: at_defaults(group, name)})
    return c


def goes_together(c: Selection) -> bool:
    with suppress(UserError):
        return clash_in(c) is None
    return False


def working(c: Selection) -> str | None:
    """The first cache, at its defaults, that serves the parts; None without one."""
    return next((name for name in BY_REUSE if goes_together(after(c, Set("cache", name)))), None)


@cache
def drafting(verifies: str) -> tuple[str, ...]:
    """The samplers whose drafts a cache verifies so (``CacheTraits.verifies``)."""
    names: list[str] = []
    for name, options in options_of_choices("sampler").items():
        with suppress(UserError):  # a user's class may be missing
            kind: Any = class_of("sampler", options.get("_target_"))
            names += [name] if kind.traits.verifies == verifies else []
    return tuple(names)


@cache  # reading all configurations takes longer than checking the parts
def shipped_config(name: str) -> ModelConfig:
    return read_model_config(shipped_folder(name))


@cache  # composing the configuration of each takes 40 ms
def at_defaults(group: str, name: str) -> Any:
    return part(group, name)
