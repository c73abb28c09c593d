"""Parts by name: the same YAML files serve the command line and Python."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from dllm.errors import UserError, nearest

T = TypeVar("T")


def part(group: str, choice: T | str, **options: Any) -> T:
    """``choice`` itself if it is an object already, else the part of that name from the configuration group.

    >>> part("sampler", "confidence", threshold=0.8)  # doctest: +SKIP
    """
    if not isinstance(choice, str):
        return choice
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    if choice not in choices(group):
        known = choices(group)
        raise UserError(f"{group}={choice!r} is unknown; choose one of {', '.join(known)}.{nearest(choice, known)}")
    with initialize_config_module("dllm.conf", version_base="1.3"):
        config = compose("config", overrides=[f"{group}={choice}"])[group]
    unknown = [key for key in options if key not in config]
    if unknown:
        options_there = [str(key) for key in config if not str(key).startswith("_")]
        listed = ", ".join(options_there) or "none"
        raise UserError(f"{group}={choice} has no option {unknown[0]!r}; it has {listed}.")
    for key, value in options.items():
        OmegaConf.update(config, key, value)
    return cast(T, instantiate(config, _convert_="all"))


def choices(group: str) -> list[str]:
    """Names in a configuration group, sorted."""
    from importlib.resources import files

    return sorted(entry.name[:-5] for entry in (files("dllm.conf") / group).iterdir() if entry.name.endswith(".yaml"))
