"""``task=fits``: whether the chosen parts go together with the model, and what would instead of each."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dllm.app.command_line.options import Options, checked_sampling
from dllm.app.engines.base import refuse_engine
from dllm.common.errors import SettingWarning, UserError, name_of
from dllm.common.terminal import say
from dllm.compose.fitted import Described, Parts
from dllm.compose.trusted import describe_arguments
from dllm.laws.compatibility import PART_GROUPS, all_parts
from dllm.models import bundle


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Print whether the parts fit, with the reason and the ways out if not, and the choices of each group that fit the
    others. Nothing is decoded and no weights are read. The exit code is 1 where the chosen ones do not fit."""
    refuse_engine(config, names)
    model = bundle.describe(config["model"]["path"], **describe_arguments(config["model"]))
    base, length = Parts.of(config, checked_sampling(config["sampling"])), Options.of(config).gen_length
    why = misfit(base, model, length)
    labels = " ".join(f"{group}={name_of(getattr(base, group))}" for group in PART_GROUPS)
    say(f"{labels} {'fit' if why is None else 'do not fit'} {model.name}.{'' if why is None else f' {why}'}")
    for group, parts in zip(PART_GROUPS, all_parts(), strict=True):
        fit = [name for name, part in parts.items() if misfit(replace(base, **{group: part}), model, length) is None]
        say(
            textwrap.fill(f"{group}: {', '.join(fit) or 'nothing here'}", 100, subsequent_indent=" " * (len(group) + 2))
        )
    if why is not None:
        raise SystemExit(1)


def misfit(parts: Parts, model: Described, gen_length: int | None) -> UserError | None:
    """Why the parts do not fit each other or the model; None: they do."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SettingWarning)  # what fits, not what is wise
            parts.fitted(model, gen_length)
    except UserError as error:
        return error
    return None
