"""What a file may name that somebody else may have written: a run folder's settings, a trace, a file of --config-dir.

Such a file is data. It chooses among the classes and commands that ship with dllm, those of packages that the user's
own command line names by ``task.packages``, and classes that it names itself. Nothing else is imported or called.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any

from dllm.common.errors import Refusal, UserError
from dllm.compose.config_choices import USER, choices, comes_along, options_of_choices
from dllm.compose.importing import imported_family
from dllm.compose.parts import BASE_CLASSES

FAMILY = "model.family"
VARIABLE = "DLLM_TRUSTED"  # what the command line names, for the processes that it starts: ranks, launchers' jobs
PACKAGES_WORD = re.compile(r"\+*task\.packages=(.*)", re.DOTALL)
SECTIONS = (*BASE_CLASSES, "model", "sampling", "choices")
_LIST = re.compile(r"\[\]|(\[)? *[A-Za-z_]\w*( *, *[A-Za-z_]\w*)* *(?(1)\])", re.ASCII)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII)


def with_trust(words: Sequence[str]) -> list[str]:
    """A command line without ``task.packages``, which holds from now on. Raises UserError for what is not a package."""
    names, rest = list[str](), list[str]()
    for word in words:
        if (match := PACKAGES_WORD.fullmatch(word)) is None:
            rest.append(word)
            names += _DOTTED.findall(word.partition("=")[2])
            continue
        value = match[1].replace("'", "").replace('"', "")
        if not _LIST.fullmatch(value):
            raise UserError(f"{word} must be a list of packages, such as task.packages=[my_package].")
        names += re.findall(r"\w+", value)
    _trust(names)
    return list(words) if "task=replay" in words else rest  # it lists them among its settings


def trust_choices(words: Sequence[str]) -> None:
    """Trust the classes of the parts in --config-dir that a command line chooses by name (``sampler=mine``), and of
    those that come with them. An experiment there chooses nothing in the user's place."""
    for word in words:
        key, _, value = word.partition("=")
        group = key.lstrip("+").partition("@")[0].removesuffix("/inner")
        if group in BASE_CLASSES or group == "model":
            _trust_choices(group, [text.strip("'\" []") for text in value.split(",")], set())


def _trust_choices(group: str, names: Sequence[str], visited: set[str]) -> None:
    for name in names:
        if name not in visited and name in USER.names(group) and not comes_along(group, name):
            visited.add(name)
            options = options_of_choices(group).get(name, {})
            _trust([str(target) for _, target in named_targets({group: options}) if "." in str(target)])
            _trust_choices(group, re.findall(r"[\w.-]+", str(options.get("defaults", ""))), visited)


def _trust(names: Sequence[str]) -> None:
    former = os.environ.get(VARIABLE, "").split()
    os.environ[VARIABLE] = " ".join(dict.fromkeys([*former, *(name for name in names if not re.search(r"\s", name))]))


def is_trusted(target: str) -> bool:
    """Whether the user's own command line names a class, or its package."""
    return not {target, target.partition(".")[0]}.isdisjoint(os.environ.get(VARIABLE, "").split())


def is_known(target: Any) -> bool:
    """Whether a class may be looked up for a file of somebody else: it ships with dllm, is trusted, or is here already,
    so that nothing is imported."""
    name = str(target)
    return name in shipped_classes() or is_trusted(name) or name.rpartition(".")[0] in sys.modules


@cache
def shipped_classes(group: str | None = None) -> frozenset[str]:
    """The classes of all choices of a group that come with dllm. group: None is all of them."""
    groups = BASE_CLASSES if group is None else (group,)
    parts = (options_of_choices(top)[name] for top in groups for name in choices(top) if comes_along(top, name))
    return frozenset(str(target) for options in parts for _, target in named_targets(options))


@cache
def shipped_commands() -> frozenset[str]:
    """The functions that ``task.run`` may name."""
    options = options_of_choices("task")
    return frozenset(str(options[name].get("run")) for name in choices("task") if comes_along("task", name))


def describe_arguments(model: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``describe`` in the settings ``model``. Raises UserError for a family that is not trusted."""
    family = model.get("family")  # older settings have none
    if isinstance(family, str) and "." in family:
        refuse_strangers("the configuration", {"model": {"family": family}})
        family = imported_family(family)
    return {**{name: model.get(name) for name in ("mask_id", "attention_block", "rope")}, "family": family}


def named_targets(config: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every ``_target_`` in settings, and a family that is not ours, with its dotted place, wherever it is."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            name = f"{place}.{key}" if place else str(key)
            if key == "_target_" or (name == FAMILY and "." in str(value)):
                yield name, value
            else:
                yield from named_targets(value, name)
    elif isinstance(config, list | tuple):
        for at, value in enumerate(config):
            yield from named_targets(value, f"{place}[{at}]")


def refuse_strangers(who: str, config: Any, packages: Sequence[str] = (), here: bool = False) -> None:
    """Raise UserError for a class that neither ships with dllm nor is trusted. who: what names it, such as ``the
    trace``. packages: trusted beside those of the command line. here: so is a part whose module this process has
    imported already."""
    for place, target in named_targets(config):
        name, group = str(target), re.split(r"[.\[]", place)[0]
        setting = place if place == FAMILY else f"{group}._target_"
        package, classes = name.partition(".")[0], shipped_classes(group if group in BASE_CLASSES else None)
        if package == "__main__":
            raise UserError(
                f"{who} names {setting}={target!r}, a class of the script that made it. Put the class into a "
                f"module, make {who} again, and name the module's package by task.packages=[PACKAGE]."
            )
        if (
            name not in classes
            and package not in packages
            and not is_trusted(name)
            and not (here and _here(group, name))
        ):
            raise UserError(
                f"{who} names {setting}={target!r}, which is not part of dllm, and who wrote it chose it. If "
                f"you trust that package, add task.packages=[{package}]."
            )


def _here(group: str, name: str) -> bool:
    """Whether an imported module has a part of this group by that name."""
    module, _, last = name.rpartition(".")
    kind = getattr(sys.modules.get(module), last, None)
    return group in BASE_CLASSES and isinstance(kind, type) and issubclass(kind, resolve_name(BASE_CLASSES[group]))


def refuse_shapes(who: str, config: Mapping[Any, Any]) -> None:
    """Raise UserError for a section, such as ``model``, that is none. who: as in ``refuse_strangers``."""
    for name in SECTIONS:
        if not isinstance(config.get(name, {}), Mapping):
            raise UserError(f"{who} holds {name}={config[name]!r}, which has settings of its own. Write {name}.NAME.")


def refuse_command(name: Any) -> None:
    """Raise UserError for a ``task.run`` that neither ships with dllm nor is of a package that is trusted."""
    if not isinstance(name, str) or (name not in shipped_commands() and not is_trusted(name.partition(".")[0])):
        raise Refusal("{task.run:quoted} is no command of dllm's. Choose a task by task=NAME.", [name])
