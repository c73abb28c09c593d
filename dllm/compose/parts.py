"""Builds parts from the configuration. The command line and Python read the same YAML files.

Two things are kept apart. *Configuration* is what YAML files and the command line say. The user of the process wrote
it, so it may interpolate (``${...}``) and name a class of its own (``sampler._target_=my.Class``): Hydra composes it,
and ``build_part`` builds it. *Options* are values that a program hands to ``part`` or ``part_config``, maybe from a
stranger. They are data: nothing in them is interpolated, imported or called.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload
from weakref import WeakKeyDictionary

import dllm.parts
from dllm.common.coerce import MAPPING, PER_REQUEST, VALUE_KINDS, coerce, words_of
from dllm.common.errors import TYPED_NAMES, Refusal, UserError, first_line, in_choices, nearest, warn_once
from dllm.common.hints import other_choice
from dllm.compose.config_choices import (
    USER,
    UserChoices,
    choices,
    comes_along,
    config_groups,
    options_of_choices,
    store_inner_choices,
)
from dllm.compose.importing import imported_class, place_of_error

if TYPE_CHECKING:  # a part's class is imported when it is built
    from dllm.parts.blocks.base import Blocks
    from dllm.parts.cache.base import Cache
    from dllm.parts.eos.base import EndOfText
    from dllm.parts.lengths.base import Length
    from dllm.parts.samplers.base import Sampler

_T = TypeVar("_T")
BASE_CLASSES = {
    "sampler": "dllm.parts.samplers.base.Sampler",
    "blocks": "dllm.parts.blocks.base.Blocks",
    "cache": "dllm.parts.cache.base.Cache",
    "eos": "dllm.parts.eos.base.EndOfText",
    "length": "dllm.parts.lengths.base.Length",
    "constraint": "dllm.constraints.kinds.Constraint",
    "task": "dllm.tasks.base.Task",
    "engine": "dllm.app.engines.base.Engine",
}
# the configuration of each part built here
PART_CONFIGS: WeakKeyDictionary[Any, Mapping[str, Any]] = WeakKeyDictionary()
COMPOSING = RLock()  # Hydra keeps what it composes from in one place of the process


@overload
def part(group: Literal["sampler"], choice: Sampler | str, **options: Any) -> Sampler: ...
@overload
def part(group: Literal["blocks"], choice: Blocks | str, **options: Any) -> Blocks: ...
@overload
def part(group: Literal["cache"], choice: Cache | str, **options: Any) -> Cache: ...
@overload
def part(group: Literal["eos"], choice: EndOfText | str, **options: Any) -> EndOfText: ...
@overload
def part(group: Literal["length"], choice: Length | str, **options: Any) -> Length | None: ...
@overload
def part(group: str, choice: _T | str, **options: Any) -> _T: ...
def part(group: str, choice: _T | str, **options: Any) -> _T:
    """A part by its name.

    Args:
        group: ``sampler``, ``blocks``, ``cache``, ``eos``, ``length`` or ``constraint``.
        choice: a name in that group of the configuration; an object is returned as it is.
        options: of the part. They are data: a mapping chooses a part inside another one by its name.

    Returns:
        The part, which ``Decoder`` takes.

    Raises:
        UserError: an unknown group, name or option, or a wrong value.

    >>> from dllm import part
    >>> part("sampler", "confidence", threshold=0.8).threshold
    0.8
    >>> type(part("sampler", "credit", inner={"name": "localleap", "radius": 2})).__name__
    'Credit'
    """
    if not isinstance(choice, str):
        return choice
    return cast(_T, build_part(group, part_config(group, choice, options)))


def part_of(group: str, value: Any) -> Any:
    """The part that data choose: by its name, or by a mapping with its ``name`` and its options. Raises UserError as
    ``part`` does.

    >>> part_of("constraint", {"name": "regex", "pattern": "a+"}).pattern
    'a+'
    """
    if not isinstance(value, str | Mapping):
        raise Refusal(f'{{{group}:quoted}} chooses no part: write {{"name": NAME, OPTION: VALUE}}.', [value])
    return build_part(group, _inside(group, value))


def part_config(group: str, choice: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a choice, with ``options`` that are data. group: ``sampler.inner`` is chosen as ``sampler``.
    Raises UserError for an unknown group, name or option."""
    top = group.partition(".")[0]
    in_choices("group", top, BASE_CLASSES)
    names = choices(top)
    if choice not in names:
        if (other := other_choice(top, choice)) is not None:
            raise Refusal(f"{{{group}:quoted}} is unknown here.", [choice], [other])
        raise Refusal(
            f"{{{group}:quoted}} is unknown; choose one of {', '.join(names)}.{nearest(choice, names)}", [choice]
        )
    return with_options(group, choice, configurations(top, choice)[top], options)


def with_options(group: str, choice: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` of the part that is called ``choice``, with ``options`` that are data. Raises UserError for one that
    the part does not have, and for a mapping that chooses no part by its name."""
    keys = [key for key in config if not key.startswith("_")]
    new = dict(config)
    for key, value in options.items():
        if key not in keys:
            names = ", ".join(keys) or "none"
            raise Refusal(f"{{{group}}} has no option {key!r}; it has {names}.{nearest(key, keys)}", [choice])
        name = f"{group}.{key}"
        new[key] = _inside(name, value) if is_part(config[key]) else _value(name, value, config["_target_"])
    return new


def _inside(name: str, value: Any) -> Any:
    """The configuration of a part inside another one, given by its name, alone or with options; an object as it is."""
    if isinstance(value, str):
        return part_config(name, value, {})
    if not isinstance(value, Mapping):
        return value
    choice = value.get("name")
    if not isinstance(choice, str):
        raise Refusal(f'{{{name}:quoted}} chooses no part: write {{"name": NAME, OPTION: VALUE}}.', [value])
    return part_config(name, choice, {key: option for key, option in value.items() if key != "name"})


def _value(name: str, value: Any, target: Any) -> Any:
    group, _, key = name.rpartition(".")
    if isinstance(value, Mapping) and MAPPING not in words_of(arguments_of(class_of(group, target))[key].annotation):
        raise Refusal(f"{{{name}:quoted}} must be a value: only a part inside another one may be a mapping.", [value])
    return value


def is_part(value: Any) -> bool:
    """Whether a configuration's entry describes a part."""
    return isinstance(value, Mapping) and "_target_" in value


def configurations(group: str, choice: str) -> dict[str, dict[str, Any]]:
    """The configurations of all groups that have parts, as ``group=choice`` alone composes them."""
    return deepcopy(_configurations(f"{group}={choice}"))


@cache  # a composition takes 40 ms
def _configurations(override: str) -> dict[str, dict[str, Any]]:
    config = composed([override])
    return {group: plain_config(config[group]) for group in BASE_CLASSES}


def composed(overrides: list[str], whole: bool = False) -> Any:
    """The configuration with ``overrides``; works inside a Hydra application too, and in several threads. whole: with
    Hydra's own settings."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    store_inner_choices()
    # where Hydra looks after the choices that ship
    also = [] if USER.folder is None else [f"hydra.searchpath=[{_quoted(f'file://{USER.folder}')}]"]
    with COMPOSING:
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_module("dllm.conf", version_base="1.3"):
                return compose("config", overrides=[*overrides, *also], return_hydra_config=whole)
        finally:
            GlobalHydra.instance().hydra = outer


def _quoted(text: str) -> str:
    """Text in the quotes of Hydra's grammar."""
    return "'" + text.replace("'", r"\'") + "'"


def build_part(group: str, config: Mapping[str, Any], per_request: bool = True) -> Any:
    """The part that a configuration describes, and the parts inside it; None for an empty one (``constraint=none``).

    ``_target_`` names its class, which must be one of the group's kind; no function is ever called. Entries with a
    ``_target_`` of their own are built for arguments that take parts, and for no others.

    per_request: a number may be a list, with one entry for each request. Raises UserError, naming the option, when a
    value is wrong.
    """
    if not config:
        return None
    kind = class_of(group, config.get("_target_"))
    arguments = arguments_of(kind)
    options: dict[str, Any] = {}
    for key, value in plain_config(config).items():
        if key.startswith("_"):
            continue
        if key not in arguments:
            there = ", ".join(arguments) or "none"
            advice = f" A class of your own takes its options from {group}/NAME.yaml in a folder: --config-dir=FOLDER."
            advice = "" if kind.__module__.startswith("dllm.") else advice
            raise Refusal(f"{{{group}.{key}:quoted}}: the choice has no such option; it has {there}.{advice}", [value])
        name, argument = f"{group}.{key}", arguments[key]
        if value is None and argument.default is argument.empty:  # as if it were not there
            continue
        if is_part(value) and takes_part(argument):
            options[key] = build_part(name, value, per_request)
        else:
            options[key] = _converted(name, value, argument, per_request)
    lacking = [key for key, entry in arguments.items() if entry.default is entry.empty and key not in options]
    if lacking:
        setting = f"{{{group}.{lacking[0]}=VALUE}}"
        raise Refusal(f"{{{group}:name}} needs {setting}: {kind.__name__} has no default for it.")
    if inspect.isabstract(kind):
        methods = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
        raise Refusal(f"{{{group}._target_:name}}: {kind.__name__} lacks {methods}. Write what its base asks for.")
    try:
        return _with_origin(kind(**options), config)
    except UserError:
        raise
    except Exception as error:  # from a user's part: ours raise UserError
        if kind.__module__.startswith("dllm.") and not isinstance(error, TypeError | ValueError):
            raise
        values = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        where = f"{place}: " if (place := place_of_error(error)) else ""
        raise Refusal(f"{{{group}:name}} cannot be built with {values}: {where}{first_line(error)}.") from error


def _with_origin(instance: _T, config: Mapping[str, Any]) -> _T:
    """The part itself; ``configuration_of`` now knows what it was made from."""
    with suppress(TypeError):  # a part whose class compares by value has no identity, and says what it holds
        PART_CONFIGS[instance] = plain_config(config)
    return instance


def configuration_of(group: str, instance: Any) -> dict[str, Any]:
    """The configuration of a part, from which ``build_part`` makes one like it. Of an object that a program made
    itself, its arguments are read from its attributes; ``_lacks_`` names those that are not to be found there."""
    try:
        config = PART_CONFIGS[instance]
    except (KeyError, TypeError):
        attributes = {name: vars(instance).get(name, PART_CONFIGS) for name in arguments_of(type(instance))}
        config = {"_target_": f"{type(instance).__module__}.{type(instance).__qualname__}", **attributes}
    base = _base_of(group)
    items = {key: configuration_of(group, value) if isinstance(value, base) else value for key, value in config.items()}
    lacking = sorted(key for key, value in items.items() if not _is_data(value))
    data = {key: value for key, value in items.items() if key not in lacking}
    return {**data, "_lacks_": lacking} if lacking else data


def _base_of(group: str) -> type:
    base = resolve_name(BASE_CLASSES[group.partition(".")[0]])
    assert isinstance(base, type)
    return base


def _is_data(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration as dictionaries and lists."""
    from omegaconf import DictConfig, OmegaConf

    plain = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    return {str(key): value for key, value in cast(Mapping[Any, Any], plain).items()}


def class_of(group: str, target: Any) -> type:
    """The class that ``_target_`` names. Raises UserError if it is not a class of the group's kind."""
    name, base = f"{group}._target_", _base_of(group)
    try:
        kind = imported_class(name, str(target), base)
    except Refusal as error:
        place, _, word = str(target).rpartition(".")
        moved = getattr(dllm.parts, word, None) if place.startswith("dllm.") else None
        if not isinstance(moved, type):
            raise error.but(note=f"Or choose one by {{{group}=NAME}}.") from error.__cause__
        kind = moved
    if not issubclass(kind, base):
        raise Refusal(
            f"{{{name}:quoted}} is no {base.__name__}: derive it from {base.__module__}.{base.__name__}, or choose "
            f"one by {{{group}=NAME}}.",
            [target],
        )
    return kind


def arguments_of(kind: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class. ``**options`` stands for the arguments of its base."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        here = inspect.signature(base).parameters if base is not object else {}
        arguments = {**here, **arguments}
        if all(entry.kind is not entry.VAR_KEYWORD for entry in here.values()):
            break
    return {name: _annotated(entry) for name, entry in arguments.items() if entry.kind is not entry.VAR_KEYWORD}


def _annotated(argument: inspect.Parameter) -> inspect.Parameter:
    """The argument with the kind of its default where a user's class names none, and with a name for a class."""
    annotation = argument.annotation
    if annotation in (argument.empty, "Any", Any) and isinstance(argument.default, bool | int | float | str):
        annotation = type(argument.default)
    return argument.replace(annotation=annotation.__name__) if isinstance(annotation, type) else argument


def takes_part(argument: inspect.Parameter) -> bool:
    """Whether an argument is a part inside another one, and no number, text or list of them."""
    return not all(word in VALUE_KINDS or word == PER_REQUEST for word in words_of(argument.annotation))


def _converted(name: str, value: Any, argument: inspect.Parameter, per_request: bool) -> Any:
    """``value`` converted to the argument's kind. Raises UserError if it is of another kind."""
    if argument.annotation in ("Any", Any):
        return value
    if PER_REQUEST in words_of(argument.annotation) and isinstance(value, list) and not per_request:
        raise Refusal(
            f"{{{name}:quoted}} must be one number; one for each request can be given in Python only.", [value]
        )
    return coerce(name, value, argument.annotation, argument.default)


def use_folder(folder: Path | None) -> None:
    """From now on the YAML files of a folder of the user's are choices, too; None: those that ship alone.

    Raises UserError where it is not a folder. Warns of a file that is not read, since its name is that of a choice that
    ships.
    """
    if folder is None and UserChoices() == USER:
        return
    USER.folder, USER.classes = None if folder is None else folder.expanduser().absolute(), {}
    for cached in (_configurations, options_of_choices, store_inner_choices):
        cached.cache_clear()
    if USER.folder is None:
        return
    if not USER.folder.is_dir():
        raise UserError(f"--config-dir={folder} is not a folder. Name one that holds sampler/NAME.yaml and such.")
    for group in config_groups():
        for name in USER.names(group):
            if comes_along(group, name):
                warn_once(f"{USER.folder / group / name}.yaml is not read: {group}={name} ships. Rename the file.")
            elif isinstance(target := options_of_choices(group).get(name, {}).get("_target_"), str):
                TYPED_NAMES.setdefault(target, name)  # refusals call the part so
