"""Parts by name: the same YAML files serve the command line and Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, TypeVar, cast

from dllm.errors import UserError, nearest

T = TypeVar("T")


def part(group: str, choice: T | str, **options: Any) -> T:
    """``choice`` itself if it is an object already, else the part of that name from the configuration group.

    >>> part("sampler", "confidence", threshold=0.8)  # doctest: +SKIP
    """
    if not isinstance(choice, str):
        return choice
    from omegaconf import OmegaConf

    if choice not in choices(group):
        known = choices(group)
        raise UserError(f"{group}={choice!r} is unknown; choose one of {', '.join(known)}.{nearest(choice, known)}")
    config = composed([f"{group}={choice}"])[group]
    unknown = [key for key in options if key not in config]
    if unknown:
        options_there = [str(key) for key in config if not str(key).startswith("_")]
        listed = ", ".join(options_there) or "none"
        raise UserError(f"{group}={choice} has no option {unknown[0]!r}; it has {listed}.")
    for key, value in options.items():
        OmegaConf.update(config, key, value)
    return cast(T, build(group, config))


def composed(overrides: list[str]) -> Any:
    """The configuration with some overrides; works inside a Hydra application too."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("dllm.conf", version_base="1.3"):
            return compose("config", overrides=overrides)
    finally:
        GlobalHydra.instance().hydra = outer


def build(group: str, config: Mapping[str, Any], per_request: bool = True) -> Any:
    """The part that a resolved configuration describes; ``per_request`` allows lists where a number is the default.

    Raises UserError, naming the option, when a value is wrong.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import get_class, instantiate

    options = {str(key): value for key, value in config.items() if not str(key).startswith("_")}
    defaults = inspect.signature(get_class(config["_target_"])).parameters
    for key, value in options.items():
        if key in defaults:
            _check_kind(f"{group}.{key}", value, defaults[key], per_request)
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise UserError(f"{group} cannot be built with {given}: {cause or error}.") from error


def _check_kind(name: str, value: Any, parameter: inspect.Parameter, per_request: bool) -> None:
    """Refuse a word where the default is a number, and the like."""
    default, whole = parameter.default, parameter.annotation in ("int", int)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise UserError(f"{name}={value!r} must be true or false.")
    if isinstance(default, int | float) and (value is None or isinstance(value, str)):
        raise UserError(f"{name}={value!r} must be a number, such as {default}.")
    if isinstance(default, int | float) and not (per_request or isinstance(value, int | float)):
        raise UserError(f"{name}={value!r} must be one number; a value for each request can be given in Python only.")
    if whole and isinstance(value, float):
        raise UserError(f"{name}={value!r} must be a whole number, such as {default}.")
    if default is None and isinstance(value, str) and "str" not in str(parameter.annotation):
        raise UserError(f"{name}={value!r} must be a number or null.")


def choices(group: str) -> list[str]:
    """Names in a configuration group, sorted."""
    from importlib.resources import files

    return sorted(entry.name[:-5] for entry in (files("dllm.conf") / group).iterdir() if entry.name.endswith(".yaml"))


def groups() -> list[str]:
    """Everything that can be chosen by name: model, sampler, blocks, ..., and groups inside groups."""
    from importlib.resources import files

    def below(folder: Traversable, prefix: str) -> Iterator[str]:
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.name.startswith("_"):
                yield prefix + entry.name
                yield from below(entry, f"{prefix}{entry.name}/")

    return sorted(below(files("dllm.conf"), ""))
