"""The words of a command line: quoting that Hydra's grammar wants and people do not, and errors with a way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig

from dllm.errors import nearest
from dllm.parts import choices, composed, groups

TEXTS = ("prompt", "stop")
PLACES = ("prompts", "trace", "resume", "name", "output", "model.path")


def quoted(arguments: Sequence[str]) -> list[str]:
    """Arguments as Hydra's grammar wants them: ``prompt=Sort: [b, a]`` needs no second pair of quotes."""
    return [_quoted(argument) for argument in arguments]


def _quoted(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals or key not in TEXTS + PLACES or value == "null":
        return argument
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and parsed(argument) is not None:
        return argument
    if key == "stop" and value.startswith("[") and parsed(argument) is not None:
        return argument
    if key in PLACES and value and parsed(argument) is not None:
        return argument
    return f"{key}={quote(value)}"


def quote(value: str) -> str:
    """Text in Hydra's single quotes: backslashes count only before a quote, ``${`` would be an interpolation."""
    value = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    return "'" + re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value) + "'"


def parsed(argument: str) -> Override | None:
    """None for what is no setting."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def names(overrides: Sequence[str]) -> list[str]:
    """The names that overrides set."""
    return [str(override.key_or_group) for override in OverridesParser.create().parse_overrides(list(overrides))]


def explain(error: Exception, arguments: Sequence[str]) -> str:
    """One sentence for what Hydra refused, naming the argument and the nearest that exists."""
    for problem in _problems([argument for argument in arguments if not argument.startswith("-")]):
        return problem
    first = str(error).strip().splitlines()
    return f"{first[0].rstrip('.') if first else type(error).__name__}. python run.py --help lists what can be set."


def _problems(arguments: Sequence[str]) -> Iterator[str]:
    known = groups()
    readable = []
    for argument in arguments:
        override = parsed(argument)
        if override is None:
            yield _unreadable(argument)
            continue
        readable.append(override)
        key = override.key_or_group
        for value in _values(override) if key in known else ():
            if value not in choices(key):
                listed = ", ".join(choices(key))
                yield f"{key}={value!r} is unknown; choose one of {listed}.{nearest(value, choices(key))}"
    yield from _unknown_keys(readable, known)


def _values(override: Override) -> list[str]:
    """The names that a choice tries: several in a sweep."""
    value = override.value()
    return [str(entry) for entry in getattr(value, "list", [value]) if isinstance(entry, str | QuotedString)]


def _unreadable(argument: str) -> str:
    if "=" not in argument:
        return f"{argument!r} is no setting: write NAME=VALUE, such as sampler=static; python run.py --help lists them."
    key, _, value = argument.partition("=")
    return f"{argument!r} cannot be read: quote the value twice, as in \"{key}={quote(value)}\", or write {key}=null."


def _unknown_keys(overrides: Sequence[Override], known: Sequence[str]) -> Iterator[str]:
    tried = {o.key_or_group: values for o in overrides if o.key_or_group in known and (values := _values(o))}
    chosen = {group: ",".join(values) for group, values in tried.items()}
    most = max(map(len, tried.values()), default=1)
    choice = [[f"{group}={values[min(at, len(values) - 1)]}" for group, values in tried.items()] for at in range(most)]
    each = [list(_keys(composed(one))) for one in choice]
    keys = list(dict.fromkeys(key for own in each for key in own))
    for override in overrides:
        key = str(override.key_or_group)
        lacking = [one for one, own in zip(choice, each, strict=True) if key in keys and key not in own]
        if lacking:
            without = next((name for name in lacking[0] if name.startswith(key.split(".")[0] + "=")), lacking[0][0])
            yield (
                f"{override.input_line} is unknown to {without}. Leave that choice out, or give each its own "
                "options: 'grids=[{sampler: static, sampler.per_step: [1, 4]}, {sampler: [eb, klass]}]'."
            )
        if key in known or key in keys or key.split(".")[0] == "hydra" or override.is_add():
            continue
        group = key.rpartition(".")[0]
        beside = [name for name in keys if group and name.rpartition(".")[0] == group]
        if beside:
            owner = f"{group}={chosen[group]}" if group in chosen else group
            listed = ", ".join(name.removeprefix(group + ".") for name in beside)
            yield f"{override.input_line} is unknown: {owner} has {listed}.{nearest(key, beside)}"
        else:
            yield f"{override.input_line} is unknown.{nearest(key, [*keys, *known])} python run.py --help lists all."


def _keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of everything that can be set."""
    for key in map(str, config):
        value = config._get_node(key)
        if isinstance(value, DictConfig):
            yield from _keys(value, f"{prefix}{key}.")
        elif not key.startswith("_"):
            yield f"{prefix}{key}"
