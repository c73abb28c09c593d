"""What is wrong with a command line, in one sentence with a way out: before Hydra composes it, and when Hydra fails."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dllm.app.command_line.endpoint_settings import slips
from dllm.app.command_line.foreign_words import of_bare_word, of_choice, of_setting, setting_values, values_beside
from dllm.app.command_line.overrides import hydra_quote, parsed_override
from dllm.app.command_line.program import program, see_help
from dllm.common.errors import UserError, first_line, nearest
from dllm.common.hints import typed as shortened
from dllm.common.installing import not_installed
from dllm.compose.config_choices import INNER_GROUP, choices, config_groups, options_of_choices, wrappers
from dllm.compose.parts import BASE_CLASSES, composed

# Hydra's own settings that have an effect here; one that ends with a dot stands for all that begin with it.
OF_RUN = ("hydra.run.dir",)
OF_SWEEP = ("hydra.sweep.dir", "hydra/launcher", "hydra.launcher.", "hydra.job.env_set.")

CLOSES = {"[": "]", "{": "}"}
SHOWN_AFTER = 24  # characters shown of what a bracket begins


def refuse_settings(arguments: Sequence[str], sweep: bool) -> None:
    """Raise UserError for a setting that no configuration can take. sweep: a setting may have several values."""
    for sentence in _unsound(arguments, sweep):
        raise UserError(sentence)
    overrides = _readable(arguments)
    if any(map(_adds, overrides)):  # Hydra would accept unknown ones
        for sentence in _unknown_keys(overrides):
            raise UserError(sentence)


def explain(error: Exception, arguments: Sequence[str]) -> str:
    """One sentence for what Hydra refused, naming the argument and the nearest that exists."""
    overrides = _readable(arguments)
    for problems in (_unknown_choices, _misplaced_inner, _unknown_keys):
        for sentence in problems(overrides):
            return sentence
    first = first_line(error.__cause__ or error)
    if "Recursive interpolation" in first or isinstance(error, RecursionError):
        place = getattr(error.__cause__ or error, "full_key", None) or getattr(error, "full_key", None)
        return f"{place or 'a setting'} refers to itself, by itself or by others (${{NAME}}). Write its value."
    lacking = re.match("Key '(.*)' is not in struct", first)  # of OmegaConf
    if lacking:
        lines = [o.input_line for o in overrides if str(o.key_or_group).endswith(lacking[1])]
        first = f"{lines[0] if lines else repr(lacking[1])} is unknown"
    launcher = re.search("Could not find 'hydra/launcher/(joblib|submitit_local|submitit_slurm)'", first)  # of Hydra
    if launcher:
        return str(not_installed(f"hydra/launcher={launcher[1]}", f"Hydra's {launcher[1]} launcher", "sweeps"))
    shaped = [o.input_line for o in overrides if isinstance(o.value(), list | dict)]
    if "DictConfig" in first or "ListConfig" in first:
        first = f"{' or '.join(shaped)} has another shape than its default"
    return f"{first}. {see_help()}"


def _adds(override: Override) -> bool:
    return bool(override.is_add() or override.is_force_add())


def _readable(arguments: Sequence[str]) -> list[Override]:
    return [override for override in map(parsed_override, arguments) if override is not None]


def _unsound(arguments: Sequence[str], sweep: bool) -> Iterator[str]:
    """Mistakes that show in one argument alone."""
    groups = config_groups()
    for argument in arguments:
        if re.search("[\ud800-\udfff]", argument):  # how Python shows bytes of another encoding
            yield f"{ascii(argument)} is not UTF-8: write it in that encoding."
        word, _, text = argument.partition("=")
        yield from (sentence for value in text.split(",") for sentence in slips(word.lstrip("+"), value.strip("'\" ")))
        override = parsed_override(argument)
        if override is None or not override.key_or_group:
            yield _unreadable(argument, arguments)
            continue
        key, line = str(override.key_or_group), override.input_line
        if key.split(".")[0].split("/")[0] == "hydra":
            yield from _of_hydra(override, sweep)
        elif override.is_delete():
            yield f"{line} deletes what every run needs. Leave it out for its default, or set {key}=VALUE."
        elif override.is_interval_sweep():
            yield f"{line} tries values between two numbers: write the values to try, as in {key}=1,2."
        elif override.is_sweep_override() and not sweep:
            yield f"{line} tries several values: add -m to run them all, or choose one."
        elif key == "grids" and not isinstance(override.value(), list):
            yield f"{line} must be a list of {{NAME: [VALUES]}}, such as 'grids=[{{sampler: [static, eb]}}]'."
        elif key in groups:
            yield from _of_group(override)
        elif override.package is not None:
            yield f"{line} is unknown: only {INNER_GROUP} is put somewhere else by @."


def _unreadable(argument: str, arguments: Sequence[str]) -> str:
    """What is wrong with an argument that is not a setting. arguments: the whole command line."""
    key, equals, value = argument.partition("=")
    if not equals or not key or re.search(r"\s", key):
        advice = of_bare_word(argument, values_beside(arguments)) if argument else None
        usual = f"write NAME=VALUE, such as sampler=static or prompt=TEXT; {program()} --help lists them"
        return f"{shortened(argument)!r} is not a setting: {advice or usual}."
    if (problem := _unclosed(value)) is not None:
        return f"{shortened(argument)!r} cannot be read: {problem}."
    quoted = f'"{key}={hydra_quote(value)}"'
    return f"{argument!r} cannot be read: quote the value twice, as in {quoted}, or write {key}=null."


def _unclosed(value: str) -> str | None:
    """What is missing, and where: a bracket or quote that is not closed, or one that closes nothing. None: nothing."""
    open_places: list[int] = []
    quote = None
    for at, sign in enumerate(value):
        if quote is not None:
            quote = None if sign == value[quote] and value[at - 1] != "\\" else quote
        elif sign in "'\"" and (at == 0 or value[at - 1] in "[{,: "):
            quote = at
        elif sign in CLOSES:
            open_places.append(at)
        elif sign in CLOSES.values():
            if not open_places:
                return f"the {sign} at its character {at + 1} closes nothing. Drop it, or open it before"
            begun = value[open_places.pop()]
            if CLOSES[begun] != sign:
                excerpt = value[: at + 1][-SHOWN_AFTER:]
                return f"a {CLOSES[begun]} is missing before its {sign} at character {at + 1}, after {excerpt[:-1]!r}"
    if quote is not None:
        return f"the quote that begins {value[quote : quote + SHOWN_AFTER]!r} is not closed. Close it, or drop it"
    if open_places:
        sign, excerpt = value[open_places[-1]], value[open_places[-1] :][:SHOWN_AFTER]
        return f"a {CLOSES[sign]} is missing at its end, for the {sign} that begins {excerpt!r}"
    return None


def _of_hydra(override: Override, sweep: bool) -> Iterator[str]:
    """Refuse those of Hydra's settings that would have no effect here, or would change what a run writes."""
    key, offers = str(override.key_or_group), OF_SWEEP if sweep else OF_RUN
    plain = not _adds(override) and not override.is_delete() and "._" not in key
    if not plain or not any(key == name or name.endswith(".") and key.startswith(name) for name in offers):
        where = "with -m" if sweep else "without -m"
        names = ", ".join(name + "NAME" if name.endswith(".") else name for name in offers)
        yield f"{override.input_line} is not taken {where}: of Hydra's settings there is {names}."
    elif key.endswith((".dir", "/launcher")) and not (isinstance(override.value(), str) and override.value()):
        yield f"{override.input_line} must be {'a folder' if key.endswith('.dir') else 'the name of a launcher'}."


def _of_group(override: Override) -> Iterator[str]:
    """A choice must be one name, or in a sweep several."""
    key, line = str(override.key_or_group), override.input_line
    value, names = override.value(), ", ".join(choices(key))
    if _adds(override):
        yield f"{line}: write {line.lstrip('+')}, since every run has its {key}."
    elif value is None:
        yield f"{key}=null leaves no {key}; choose one of {names}."
    elif isinstance(value, list | dict):
        yield f"{line} must be one name: {names}. To try several, write -m {key}={','.join(choices(key)[:2])}."
    elif not all(isinstance(entry, str | QuotedString) for entry in _entries(override)):
        yield f"{line} is unknown; choose one of {names}."
    elif override.package is not None and (key != INNER_GROUP or not _inside(override.package)):
        inner = f"{INNER_GROUP}@sampler.inner.inner=NAME"
        yield f"{line} is unknown: {key} has one place. An inner wrapper's rule is {inner}."


def _inside(package: str) -> bool:
    """``sampler.inner``, ``sampler.inner.inner``, ..."""
    return set(package.split(".")[1:]) == {"inner"} and package.startswith("sampler.")


def _entries(override: Override) -> list[Any]:
    """The values that an argument tries: several in a sweep, ``*`` for a pattern."""
    value = override.value()
    return ["*"] if isinstance(value, Glob) else list(value.list) if isinstance(value, ChoiceSweep) else [value]


def _names(override: Override) -> list[str]:
    """The names that a choice tries, unless it is a pattern."""
    if isinstance(override.value(), Glob):
        return []
    entries = [entry.text if isinstance(entry, QuotedString) else entry for entry in _entries(override)]
    return [entry for entry in entries if isinstance(entry, str)]


def _unknown_choices(overrides: Sequence[Override]) -> Iterator[str]:
    for override in overrides:
        key = str(override.key_or_group)
        names = choices(key) if key in config_groups() else []
        for value in _names(override) if names else ():
            if value not in names and (advice := of_choice(key, value)) is not None:
                yield f"{key}={value!r} is no {key.rpartition('/')[2]} here: {advice}."
            elif value not in names:
                yield f"{key}={value!r} is unknown; choose one of {', '.join(names)}.{nearest(value, names)}"


def _misplaced_inner(overrides: Sequence[Override]) -> Iterator[str]:
    """A rule for a wrapper where the sampler is not a wrapper."""
    names = {_place(entry): _names(entry) for entry in overrides if entry.key_or_group in ("sampler", INNER_GROUP)}
    for place, inner in names.items():
        outer = names.get(place.removesuffix(".inner"), ["the default"])
        for name in outer if place != "sampler" else ():
            if name not in wrappers():
                yield (
                    f"{INNER_GROUP}={','.join(inner)} is the rule inside a wrapper, and {name} around it is no "
                    f"wrapper. Choose one of {', '.join(wrappers())} there, or drop it."
                )


def _place(override: Override) -> str:
    """Where in the configuration a sampler goes."""
    return override.package or str(override.key_or_group).replace("/", ".")


def _unknown_keys(overrides: Sequence[Override]) -> Iterator[str]:
    groups = config_groups()
    values_by_group = {_group_at(o): values for o in overrides if o.key_or_group in groups and (values := _names(o))}
    most = max(map(len, values_by_group.values()), default=1)
    cells = [
        [f"{group}={values[min(at, len(values) - 1)]}" for group, values in values_by_group.items()]
        for at in range(most)
    ]
    try:
        configs = [composed(cell) for cell in cells]
        each = list(map(setting_values, configs))
    except (HydraException, OmegaConfBaseException):  # the caller explains it
        return
    places = set(BASE_CLASSES)  # where a class may be named; of tasks, only those with questions read it
    if not any("_target_" in (config.task or {}) for config in configs) and "task.run" not in [
        o.key_or_group for o in overrides
    ]:
        places.remove("task")
    classes = {o.key_or_group.split(".")[0] for o in overrides if o.key_or_group.endswith("._target_")} & places
    for override in overrides:
        key = str(override.key_or_group)
        top = key.split(".")[0]
        if key in groups or top in ("hydra", "hydra/launcher") or key.endswith("._target_") and top in classes:
            continue
        if _adds(override) and top in classes:  # the options of somebody's class
            continue
        yield from _unknown_key(override, key, cells, each)


def _unknown_key(
    override: Override, key: str, cells: Sequence[list[str]], each: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """What is wrong with a key. each: what can be set beside each of ``cells``."""
    keys = {name: value for settings in reversed(each) for name, value in settings.items()}
    lacking = [cell for cell, settings in zip(cells, each, strict=True) if key in keys and key not in settings]
    beside = [name for name in keys if name.rpartition(".")[0] == key.rpartition(".")[0] != ""]
    under = [name for name in keys if name.startswith(f"{key}.")]
    line = override.input_line
    if lacking:
        without = next((name for name in lacking[0] if name.startswith(key.split(".")[0] + "=")), lacking[0][0])
        yield (
            f"{line} is unknown to {without}. Leave that choice out, or give each its own "
            "options: 'grids=[{sampler: static, sampler.per_step: [1, 4]}, {sampler: [eb, klass]}]'."
        )
    elif key in keys and override.is_add():
        yield f"{line} is there already: write {line.lstrip('+')}."
    elif under:
        value = override.value()
        unknown = [name for name in value if f"{key}.{name}" not in keys] if isinstance(value, dict) else [""]
        for name in unknown[:1]:
            hint = nearest(f"{key}.{name}", under)
            yield f"{line} is unknown: {key} has {_key_list(key, under)}, each set by {key}.NAME=VALUE.{hint}"
    elif key not in keys and (advice := of_setting(key, line.partition("=")[2], keys)) is not None:
        yield f"{line} is not a setting here: {advice}."
    elif key not in keys and beside:
        group = key.rpartition(".")[0]
        owner = next((name for name in cells[0] if name.startswith(f"{group}=")), group)
        yield f"{line} is unknown: {owner} has {_key_list(group, beside)}.{nearest(key, beside)}"
    elif key not in keys and (owners := owners_of(key)):
        group = key.partition(".")[0]
        yield f"{line} has no meaning here: it is an option of {group}={f', {group}='.join(owners)}. Choose that, too."
    elif key not in keys:
        yield f"{line} is unknown.{nearest(key, [*keys, *config_groups()])} {see_help()}"


def owners_of(key: str) -> list[str]:
    """The choices of a group that have the option ``key`` (``constraint.pattern``)."""
    group, _, option = key.partition(".")
    choices_of_group = options_of_choices(group) if group in config_groups() else {}
    return [name for name, options in choices_of_group.items() if option in options and not option.startswith("_")]


def _key_list(group: str, keys: Sequence[str]) -> str:
    return ", ".join(name.removeprefix(group + ".") for name in keys)


def _group_at(override: Override) -> str:
    """A choice's group as it is written, with its place."""
    return str(override.key_or_group) + (f"@{override.package}" if override.package else "")
