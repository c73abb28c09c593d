"""The names of a report's settings: by what differs between them, so that no two have the same.

A setting is on the curve of its *method*: those that differ from it in numbers of the sampler, the blocks and the
cache alone. Whatever else differs (a temperature, an end-of-text policy, a dtype, older code) makes another method.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from dllm.common.digest import json_digest
from dllm.common.errors import UserError
from dllm.common.grouping import grouped
from dllm.compose.labels import usual_of
from dllm.compose.naming import own_options, part_at, part_words, places_of, typed_name, value_text
from dllm.view.report.older import Codes
from dllm.view.report.pooling import CellResults, SettingResults, pooled_settings

CURVE_PARTS = ("sampler", "blocks", "cache")
NOTHING = {"blocks": "whole", "cache": "none", "constraint": "none"}  # choices that add nothing to a method's name
SHORT_FORMS = {"sampling.temperature": "T={}", "model.dtype": "{}"}  # how a method's name says them


def named_settings(cells: Sequence[CellResults]) -> list[SettingResults]:
    """The cells as settings with names. Raises UserError where two have the same."""
    names, marks = checkpoint_names(cells), Codes(cells).marks()
    settings = [replace(setting, model=names[setting.first.checkpoint]) for setting in pooled_settings(cells)]
    settings.sort(key=lambda setting: setting.suite)
    labels = [
        setting
        for _, mine in groupby(settings, lambda setting: setting.suite)
        for setting in Labels(list(mine), marks).label()
    ]
    refuse_ambiguous(labels)
    return labels


def refuse_ambiguous(settings: Sequence[SettingResults]) -> None:
    """Raise UserError, with their folders, where two settings have one name."""
    names: dict[tuple[Any, ...], SettingResults] = {}
    for setting in settings:
        other = names.setdefault((setting.suite, setting.model, setting.method, setting.name), setting)
        if other is not setting:
            both = f"{other.first.folder} and {setting.first.folder}"
            raise UserError(f"{both} would both be called {setting.method}, {setting.name}. Report them one by one.")


class Labels:
    """The names of the settings of one suite. marks: of older code, by folder."""

    def __init__(self, mine: Sequence[SettingResults], marks: Mapping[str, str]) -> None:
        self.settings, self.marks = mine, marks
        every = dict.fromkeys(key for setting in mine for key in setting.first.settings)
        self.numbers = {key for key in every if key.startswith(CURVE_PARTS) and self._is_number(key)}
        self.shown = [key for key in every if key not in self.numbers and self._differs(key)]
        # Two classes under one name, as of two files of the user's own, are called by their classes.
        parts = {
            (group, self._part(setting, group), target(setting, group))
            for setting in mine
            for group in CURVE_PARTS
            if setting.config[group]  # an endpoint has none
        }
        self.twice = {key for key, count in Counter((group, words) for group, words, _ in parts).items() if count > 1}

    def label(self) -> list[SettingResults]:
        curves = grouped((self._curve(setting), setting) for setting in self.settings)
        return [
            replace(setting, method=self._method(setting), name=self._name(setting, curves[self._curve(setting)]))
            for setting in self.settings
        ]

    def _values(self, key: str) -> dict[str, list[Any]]:
        """The values of a setting, by the model that has it."""
        values: dict[str, list[Any]] = {}
        for setting in self.settings:
            if key in setting.first.settings or key == "constraint":  # an answer without one has no settings of it
                values.setdefault(setting.model, []).append(setting.first.settings.get(key))
        return values

    def _is_number(self, key: str) -> bool:
        numbers = [value for values in self._values(key).values() for value in values if value is not None]
        return bool(numbers) and all(map(_is_number, numbers))

    def _differs(self, key: str) -> bool:
        """Whether the settings of one model that have the key differ in it."""
        return any(len({json_digest(value) for value in values}) > 1 for values in self._values(key).values())

    def _curve(self, setting: SettingResults) -> str:
        entries = {key: value for key, value in setting.first.settings.items() if key not in self.numbers}
        return json_digest(
            [setting.model, setting.first.codes, [target(setting, group) for group in CURVE_PARTS], entries]
        )

    def _method(self, setting: SettingResults) -> str:
        parts = [self._words(setting, "sampler") if setting.config["sampler"] else "behind an address"]
        for group in ("blocks", "cache"):
            if setting.config[group] and any(_group_of(key) == group for key in self.shown):
                parts.append(self._words(setting, group))
        if "constraint" in self.shown:
            parts.append(typed_name(setting.config, "constraint"))
        mark = self.marks.get(str(setting.first.folder))
        words = [word for word in parts[1:] if word not in NOTHING.values()]
        return " + ".join([parts[0], *words, *self._context(setting), *([mark] if mark else [])])

    def _words(self, setting: SettingResults, group: str) -> str:
        """A part with its options in words: ``static(score=random)``, ``prophet(localleap)``."""
        words = self._part(setting, group)
        is_shared = (group, words) in self.twice
        return words.replace(typed_name(setting.config, group), target(setting, group), 1) if is_shared else words

    def _part(self, setting: SettingResults, group: str) -> str:
        return part_words(setting.config, group, lambda key: key not in self.numbers)

    def _context(self, setting: SettingResults) -> Iterator[str]:
        """What differs beside the parts and is not usual, as ``T=0.7``, ``eos=none``, ``top_p=0.9``."""
        keys = [key for key in self.shown if _group_of(key) not in CURVE_PARTS and key != "constraint"]
        tops = dict.fromkeys(".".join(key.split(".")[:2]) for key in keys)  # a schema is one setting
        last = Counter(key.rpartition(".")[2] for key in tops)
        for key in tops:
            there = _value_words(setting.config, key)
            if there is not None and there != _value_words(usual_of(setting.config), key):
                short = key.rpartition(".")[2] if last[key.rpartition(".")[2]] == 1 else key
                yield SHORT_FORMS.get(key, f"{short}={{}}").format(there)

    def _name(self, setting: SettingResults, curve: Sequence[SettingResults]) -> str:
        """The numbers in which the curve's settings differ, and those that are not their choice's own."""
        own = {
            f"{place}.{key}"
            for group in CURVE_PARTS
            for place in places_of(setting.config, group)
            for key in own_options(setting.config, place)
        }
        mine = {key: value for key, value in setting.first.settings.items() if key in self.numbers}
        numbers = {key: value for key, value in mine.items() if key in own or differing(curve, key)}
        last = Counter(key.rpartition(".")[2] for key in numbers)
        short = {key: key.rpartition(".")[2] for key in numbers}
        short = {key: end if last[end] == 1 else key.removeprefix("sampler.") for key, end in short.items()}
        short = {key: words.replace("_", " ").replace(".", " ") for key, words in short.items()}
        return ", ".join(f"{short[key]}={number(value)}" for key, value in numbers.items()) or "defaults"


def _value_words(config: Mapping[str, Any], key: str) -> str | None:
    """A setting's value, or a part's name; None where there is no such setting."""
    group, _, last = key.rpartition(".")
    value = part_at(config, key)
    if isinstance(value, Mapping) and not group:
        return typed_name(config, key)
    return number(value) if last in (part_at(config, group) or {} if group else config) else None


def _group_of(key: str) -> str:
    return key.replace("/", ".").partition(".")[0]


def target(setting: SettingResults, group: str) -> str:
    """The class of a part, and of the parts inside it."""
    return " ".join(str(part_at(setting.config, f"{place}._target_")) for place in places_of(setting.config, group))


def differing(curve: Sequence[SettingResults], key: str) -> bool:
    return len({json_digest(setting.first.settings.get(key)) for setting in curve}) > 1


def _is_number(value: Any) -> bool:
    """Whether it is a number, or a list of them."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any) -> str:
    return f"{value:g}" if _is_number(value) and not isinstance(value, list) else value_text(value)


def checkpoint_names(cells: Sequence[CellResults]) -> dict[str, str]:
    """The name of each checkpoint: the model's with its adapter's where that is enough, else the shortest end of the
    folder that tells it from others of the model, else with its fingerprint."""
    firsts = {cell.checkpoint: cell for cell in reversed(cells)}
    depth = max((len(PurePath(place).parts) for cell in firsts.values() for place in _places(cell)), default=0)
    names = {key: _checkpoint_name(cell, 0) for key, cell in firsts.items()}
    for level in range(1, depth + 1):
        names |= {key: _checkpoint_name(firsts[key], level) for key in _shared(names)}
    return names | {key: f"{names[key]} {key[:6]}" for key in _shared(names)}


def _shared(names: dict[str, str]) -> list[str]:
    """The checkpoints whose name another one has, too."""
    labels = list(names.values())
    return [key for key, name in names.items() if labels.count(name) > 1]


def _places(cell: CellResults) -> list[str]:
    """The folders of its weights and of its adapter."""
    model = cell.config["model"]
    return [str(model[key]) for key in ("path", "adapter") if model.get(key) is not None]


def _checkpoint_name(cell: CellResults, level: int) -> str:
    """level: how many folders of the path are said; 0: the model's name instead."""
    if "url" in cell.config["model"]:
        return f"{cell.config['model']['name']} at {urlsplit(cell.config['model']['url']).netloc}"
    model, ends = cell.config["model"], ["/".join(PurePath(place).parts[-max(1, level) :]) for place in _places(cell)]
    return " + ".join([str(model["name"]), *ends[1:]] if level == 0 else ends)
