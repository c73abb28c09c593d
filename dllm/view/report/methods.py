"""Methods: the settings that are on one curve, and those that others are measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dllm.common.errors import UserError, nearest
from dllm.common.grouping import grouped
from dllm.compose.naming import own_options, typed_name, value_text
from dllm.view.report.conditions import unusual_settings
from dllm.view.report.older import OLDER_CODE
from dllm.view.report.pooling import SettingResults
from dllm.view.report.setting_names import differing


@dataclass(frozen=True)
class Method:
    """Settings that differ in numbers of their parts only."""

    model: str  # the checkpoint's name
    name: str  # what it is called in tables and legends
    settings: list[SettingResults]  # by useful tokens per forward

    @property
    def is_grid(self) -> bool:
        """Whether they differ in several numbers, so that no line joins them all."""
        keys = {key for setting in self.settings for key in setting.first.settings}
        return sum(differing(self.settings, key) for key in keys) > 1

    def only(self, passes: Callable[[SettingResults], bool]) -> Method:
        return Method(self.model, self.name, [setting for setting in self.settings if passes(setting)])

    @property
    def is_reference(self) -> bool:
        return all(setting.is_reference for setting in self.settings)

    @property
    def is_highlighted(self) -> bool:
        return any(setting.is_highlighted for setting in self.settings)


def methods(settings: Sequence[SettingResults]) -> list[Method]:
    """The methods of each model, in the order that was asked for, else by name."""
    groups = grouped(((setting.model, setting.rank, setting.method), setting) for setting in settings)
    return [
        Method(model, name, sorted(group, key=lambda setting: (setting.measures.tpf, setting.name)))
        for (model, _, name), group in sorted(groups.items())
    ]


def by_model(settings: Sequence[SettingResults]) -> dict[str, list[Method]]:
    return grouped((method.model, method) for method in methods(settings))


def each_setting(group: Sequence[Method]) -> list[tuple[Method, SettingResults]]:
    return [(method, setting) for method in group for setting in method.settings]


def baseline(group: Sequence[Method]) -> SettingResults | None:
    """The setting of one token per forward, the most confident first; of several the one nearest to the defaults."""
    there = [setting for _, setting in each_setting(group) if is_baseline(setting)]
    return min(there, key=_unusual_count, default=None)


def is_baseline(setting: SettingResults) -> bool:
    config = setting.config
    plain = all(typed_name(config, group) == "none" for group in ("cache", "constraint"))
    static = typed_name(config, "sampler") == "static" and not own_options(config, "sampler")
    return plain and static and OLDER_CODE not in setting.method


def _unusual_count(setting: SettingResults) -> int:
    """How many of its settings are not the usual ones."""
    return sum(not key.startswith(("model.", "task.")) for key in unusual_settings(setting.config))


def chosen_settings(
    settings: Sequence[SettingResults], names: Sequence[str] = (), highlight: str | None = None
) -> list[SettingResults]:
    """The settings of the methods ``names``, in that order (empty: of all). highlight: the method to draw before
    others. Raises UserError for an unknown method."""
    places = [matching(settings, name, "--methods") for name in names]
    bright = matching(settings, highlight, "--highlight") if highlight is not None else set()
    ranks = {name: rank for rank, matches in reversed(list(enumerate(places))) for name in matches}
    some = [setting for setting in settings if not names or setting.method in ranks]
    return [
        replace(setting, rank=ranks.get(setting.method, 0), is_highlighted=setting.method in bright) for setting in some
    ]


def matching(settings: Sequence[SettingResults], name: str, option: str) -> set[str]:
    """The method of that name, or else those whose name begins so: ``eb`` for ``eb + T=0.7``."""
    names = sorted({setting.method for setting in settings})
    matches = {method for method in names if method == name} or {m for m in names if m.startswith(f"{name} + ")}
    if not matches:
        raise UserError(f"{option} {name!r} is not a method here; there are {'; '.join(names)}.{nearest(name, names)}")
    return matches


def _words(text: str) -> set[str]:
    return {word.strip().replace(" ", "_") for word in text.split(",")}


def setting_words(setting: SettingResults) -> set[str]:
    """Its settings as one types them."""
    return {f"{key}={value_text(value)}" for key, value in setting.first.settings.items()}


def baselines(settings: Sequence[SettingResults], name: str) -> list[SettingResults]:
    """The settings that ``name`` means: a method, ``METHOD, SETTING``, or settings that no other has
    (``threshold=0.8``, ``sampler=static``); one for each suite and model that has any. Raises UserError for a name that
    there is not, and where it means several of a model."""
    mine = [setting for setting in settings if name in (setting.method, f"{setting.method}, {setting.name}")]
    mine = mine or [s for s in settings if _words(name) <= _words(s.method) | _words(s.name) | setting_words(s)]
    mine = mine or [setting for setting in settings if setting.method in matching(settings, name, "--baseline")]
    for group in grouped(((setting.suite, setting.model), setting) for setting in mine).values():
        if len(group) > 1:
            names = "; ".join(f"{setting.method}, {setting.name}" for setting in group)
            raise UserError(f"--baseline {name!r} means {len(group)} settings: name one of {names}.")
    return mine
