"""The words of a command line: flags, settings, and the quoting that Hydra's grammar wants and people do not."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.main import get_args_parser

from dllm.errors import UserError

TEXTS = ("prompt", "stop")
PLACES = ("prompts", "trace", "resume", "name", "output", "model.path")


# Hydra's flags beside -m: some show what there is, some add configurations of the user's own.
SHOWN = ("hydra_help", "cfg", "info", "shell_completion")
COMPLETION = {"install", "uninstall", "query"}
TAKEN = (*SHOWN, "resolve", "package", "config_path", "config_name", "config_dir")


def flags_of(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """What Hydra's own parser makes of the arguments, and its flags beside -m as it wants to see them again.

    Raises UserError for a flag that does not exist, lacks its value, or contradicts another.
    """
    parser = get_args_parser()
    parser.error = refuse_flags
    found = parser.parse_intermixed_args(list(arguments))
    shown = [name for name in (*SHOWN, "multirun") if getattr(found, name)]
    if len(shown) > 1:
        refuse_flags(f"--{shown[0]} and --{shown[1]} exclude each other".replace("_", "-"))
    if found.resolve and not found.cfg:
        refuse_flags("--resolve goes with --cfg")
    if found.experimental_rerun is not None:
        refuse_flags("--experimental-rerun is not offered: resume=FOLDER goes on with a run")
    if found.shell_completion and not {word.partition("=")[0] for word in found.overrides} & COMPLETION:
        refuse_flags(f"--shell-completion wants one of {', '.join(sorted(COMPLETION))}, as in install=bash")
    given = [(name.replace("_", "-"), getattr(found, name)) for name in TAKEN if getattr(found, name)]
    return found, [word for name, value in given for word in (f"--{name}", value) if word is not True]


def refuse_flags(message: str) -> NoReturn:
    """In place of a page about Hydra's usage."""
    raise UserError(f"{message}. Settings are NAME=VALUE; python run.py --help lists them.")


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


@lru_cache(4096)  # every look at a command line asks again
def parsed(argument: str) -> Override | None:
    """None for what is no setting."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def names(overrides: Sequence[str]) -> list[str]:
    """The names that overrides set."""
    return [str(override.key_or_group) for override in OverridesParser.create().parse_overrides(list(overrides))]
