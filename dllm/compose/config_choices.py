"""What there is to choose from: the configuration's groups and the YAML files in them, the user's own among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError
from dllm.common.plain_yaml import plain_yaml

INNER_GROUP = "sampler/inner"  # the rule inside a wrapper
# Folders in a group that are not groups of their own: experiment=published/prefix.
MORE = {"experiment": ("published", "tables")}
SHIPPED = files("dllm.conf")


@dataclass
class UserChoices:
    """The choices that the user of this process adds to those that ship."""

    folder: Path | None = None  # ``--config-dir``, which holds sampler/NAME.yaml and such
    classes: dict[tuple[str, str], str] = field(default_factory=dict)  # of a group's MODULE.CLASS: its YAML file's text

    def names(self, group: str) -> list[str]:
        """The choices that the user adds to a group."""
        there = [] if self.folder is None else (self.folder / group).glob("*.yaml")
        files = [file.stem for file in there if file.is_file()]
        return [*files, *(name for of, name in self.classes if of == group)]


USER = UserChoices()


def add_class(group: str, name: str, node: Mapping[str, Any], about: str) -> None:
    """Make MODULE.CLASS a choice of its group in this process. node: its configuration. about: a line on it."""
    from hydra.core.config_store import ConfigStore
    from yaml import safe_dump

    USER.classes[group, name] = f"# {about}\n" * bool(about) + safe_dump(dict(node), sort_keys=False)
    ConfigStore.instance().store(name, dict(node), group)
    for cached in (options_of_choices, store_inner_choices):
        cached.cache_clear()


@cache
def store_inner_choices() -> None:
    """Every sampler may be the rule inside a wrapper: ``sampler/inner=NAME`` is ``sampler=NAME`` in its place."""
    from hydra.core.config_store import ConfigStore

    for name in choices("sampler"):
        ConfigStore.instance().store(name, {"defaults": [f"/sampler/{name}@_here_"]}, INNER_GROUP)


def choices(group: str) -> list[str]:
    """Names in a configuration group, the user's own among them, sorted; a folder of more choices is before theirs
    (``published/prefix``)."""
    group = group.removesuffix("/inner")  # every sampler may be inside another
    names = {entry.name[:-5] for entry in (SHIPPED / group).iterdir() if entry.name.endswith(".yaml")}
    inner = [f"{folder}/{name}" for folder in MORE.get(group, ()) for name in choices(f"{group}/{folder}")]
    return sorted(names.union(USER.names(group))) + inner


def choice_text(group: str, name: str) -> str:
    """The text of a choice's YAML file: the shipped one where the user has one of the same name, as Hydra takes it. Of
    a class that was chosen by itself, what its file would hold."""
    group = group.removesuffix("/inner")
    if (group, name) in USER.classes:
        return USER.classes[group, name]
    if USER.folder is None or comes_along(group, name):
        return (SHIPPED / group / f"{name}.yaml").read_text(encoding="utf-8")
    return (USER.folder / group / f"{name}.yaml").read_text(encoding="utf-8", errors="replace")


def comes_along(group: str, name: str) -> bool:
    return (SHIPPED / group.removesuffix("/inner") / f"{name}.yaml").is_file()


def choice_of(group: str, config: Mapping[str, Any]) -> str:
    """The name by which users choose what a stored configuration holds; MODULE.CLASS where no choice has its class.

    Of several choices of one class (``cache=dkv_prefill``, ``dkv_pd``) it is the one whose options agree the most.
    """
    target = config.get("_target_")
    same = {name: options for name, options in options_of_choices(group).items() if options.get("_target_") == target}
    if not same:
        return "none" if target is None else str(target)
    return max(same, key=lambda name: sum(config.get(key) == value for key, value in same[name].items()))


@cache
def options_of_choices(group: str) -> dict[str, Mapping[str, Any]]:
    """What the file of each choice of a group sets. Nothing of a user's file that cannot be read: Hydra refuses it
    where it is chosen."""
    import yaml

    options_by_name: dict[str, Mapping[str, Any]] = {}
    for name in choices(group):
        ours = comes_along(group, name) or (group.removesuffix("/inner"), name) in USER.classes
        try:
            file = (USER.folder or Path()) / group.removesuffix("/inner") / f"{name}.yaml"
            options = (yaml.safe_load(choice_text(group, name)) if ours else plain_yaml(file)) or {}
        except (OSError, UserError):
            options = {}
        options_by_name[name] = options.get(group, options) if isinstance(options, dict) else {}
    return options_by_name


def wrappers() -> list[str]:
    """Names of the samplers that have another sampler inside."""
    return [name for name in choices("sampler") if "- inner:" in choice_text("sampler", name)]


def config_groups() -> list[str]:
    """The configuration's groups: model, sampler, blocks, ..., and groups inside groups."""

    def below(folder: Traversable, prefix: str) -> Iterator[str]:
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.name.startswith("_") and entry.name not in MORE.get(prefix.rstrip("/"), ()):
                yield prefix + entry.name
                yield from below(entry, f"{prefix}{entry.name}/")

    return sorted([*below(SHIPPED, ""), INNER_GROUP])
