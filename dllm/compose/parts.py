"""Builds parts from the configuration. The command line and Python read the same YAML files."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources.abc import Traversable
from pkgutil import resolve_name
from typing import Any, TypeVar, cast

from dllm.common.kinds import of_kind
from dllm.errors import UserError, nearest

_T = TypeVar("_T")
BASE_CLASSES = {
    "sampler": "dllm.samplers.base.Sampler", "blocks": "dllm.blocks.base.Blocks", "cache": "dllm.cache.base.Cache",
    "eos": "dllm.eos.base.EndOfText", "task": "dllm.tasks.base.Task", "engine": "dllm.app.engines.base.Engine",
}  # fmt: skip


def part(group: str, choice: _T | str, **options: Any) -> _T:
    """``choice`` itself if it is an object already, else the part of that name from the configuration group. Raises
    UserError for an unknown name or option.

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
    return cast(_T, build_part(group, config))


def composed(overrides: list[str], whole: bool = False) -> Any:
    """The configuration with ``overrides``; works inside a Hydra application too. whole: with Hydra's own settings."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("dllm.conf", version_base="1.3"):
            return compose("config", overrides=overrides, return_hydra_config=whole)
    finally:
        GlobalHydra.instance().hydra = outer


def build_part(group: str, config: Mapping[str, Any], per_request: bool = True) -> Any:
    """The part that a configuration describes, and the parts inside it.

    per_request: a number may be a list, with one entry for each request. Raises UserError, naming the option, when a
    value is wrong.
    """
    kind = class_of(group, config.get("_target_"))
    arguments = arguments_of(kind)
    options: dict[str, Any] = {}
    for key, value in plain_config(config).items():
        if key.startswith("_"):
            continue
        if key not in arguments:
            there = ", ".join(arguments) or "none"
            raise UserError(f"{group}.{key}={value!r}: the choice has no such option; it has {there}.")
        own = isinstance(value, Mapping) and "_target_" in value
        name = f"{group}.{key}"
        options[key] = build_part(name, value, per_request) if own else _sound(name, value, arguments[key], per_request)
    lacking = [key for key, entry in arguments.items() if entry.default is entry.empty and key not in options]
    if lacking:
        raise UserError(f"{group} needs {group}.{lacking[0]}: {kind.__name__} has no default for it.")
    try:
        return kind(**options)
    except UserError:
        raise
    except (TypeError, ValueError) as error:  # from a user's part: ours raise UserError
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise UserError(f"{group} cannot be built with {given}: {error}.") from error


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration as dictionaries and lists."""
    from omegaconf import DictConfig, OmegaConf

    found = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    return {str(key): value for key, value in cast(Mapping[Any, Any], found).items()}


def class_of(group: str, target: Any) -> type:
    """The class that ``_target_`` names. Raises UserError if it is no class of the group's kind."""
    try:
        kind = resolve_name(str(target))
        assert isinstance(kind, type), "it is no class"
    except Exception as error:  # whatever importing somebody's module raises
        raise UserError(
            f"{group}._target_={target!r} names no class ({' '.join(str(error).split())}). Write MODULE.CLASS, or "
            f"choose one by {group}=NAME."
        ) from error
    base = BASE_CLASSES.get(group.partition(".")[0])
    if base is not None and not issubclass(kind, resolve_name(base)):
        raise UserError(f"{group}._target_={target!r} is no {base.rpartition('.')[2]}. Choose one by {group}=NAME.")
    return kind


def arguments_of(kind: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class. ``**options`` stands for the arguments of its base."""
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        here = inspect.signature(base).parameters if base is not object else {}
        found = {**here, **found}
        if all(entry.kind is not entry.VAR_KEYWORD for entry in here.values()):
            break
    return {name: entry for name, entry in found.items() if entry.kind is not entry.VAR_KEYWORD}


def _sound(name: str, value: Any, argument: inspect.Parameter, per_request: bool) -> Any:
    """``value`` converted to the argument's kind. Raises UserError if it is of another kind."""
    default, annotation = argument.default, argument.annotation
    if annotation in ("Any", Any):  # a number, or in Python a list with one for each request
        if not isinstance(default, int | float):
            return value
        if isinstance(value, list) and not per_request:
            raise UserError(f"{name}={value!r} must be one number; one for each request can be given in Python only.")
        if not isinstance(value, str | int | float | None):
            return value
        annotation = type(default).__name__
    return of_kind(name, value, annotation, default)


def choices(group: str) -> list[str]:
    """Names in a configuration group, sorted."""
    from importlib.resources import files

    return sorted(entry.name[:-5] for entry in (files("dllm.conf") / group).iterdir() if entry.name.endswith(".yaml"))


def choice_of(group: str, config: Mapping[str, Any]) -> str:
    """The name by which users choose what a stored configuration holds; MODULE.CLASS where none of ours has its class.

    Of several choices of one class (``cache=dkv_prefill``, ``dkv_pd``) it is the one whose options agree the most.
    """
    target = str(config.get("_target_"))
    same = {name: options for name, options in options_of_choices(group).items() if options.get("_target_") == target}
    if not same:
        return target
    return max(same, key=lambda name: sum(config.get(key) == value for key, value in same[name].items()))


@cache
def options_of_choices(group: str) -> dict[str, Mapping[str, Any]]:
    """What the file of each choice of a group sets."""
    from importlib.resources import files

    import yaml

    found = {name: yaml.safe_load((files("dllm.conf") / group / f"{name}.yaml").read_text()) for name in choices(group)}
    return {name: options.get(group, options) for name, options in found.items()}


def wrappers() -> list[str]:
    """Names of the samplers that have another sampler inside."""
    from importlib.resources import files

    folder = files("dllm.conf") / "sampler"
    return [name for name in choices("sampler") if "- inner:" in (folder / f"{name}.yaml").read_text()]


def config_groups() -> list[str]:
    """The configuration's groups: model, sampler, blocks, ..., and groups inside groups."""
    from importlib.resources import files

    def below(folder: Traversable, prefix: str) -> Iterator[str]:
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.name.startswith("_"):
                yield prefix + entry.name
                yield from below(entry, f"{prefix}{entry.name}/")

    return sorted(below(files("dllm.conf"), ""))
