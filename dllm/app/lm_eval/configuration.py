"""The resolved configuration of settings that another program gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllm.app.command_line.contents import with_contents
from dllm.app.command_line.overrides import hydra_quote
from dllm.app.command_line.refusals import explain
from dllm.common.errors import UserError
from dllm.compose.chosen_class import with_own_classes
from dllm.compose.parts import composed


def composed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with these settings. Raises UserError, naming the nearest, for one that does not exist."""
    return overridden_settings([f"{name}={hydra_value(value)}" for name, value in settings.items()])


def overridden_settings(overrides: list[str]) -> dict[str, Any]:
    """The same of settings as a command line has them, NAME=VALUE."""
    try:
        resolved = OmegaConf.to_container(composed(with_own_classes(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error, overrides)) from None
    assert isinstance(resolved, dict)
    return {**{str(key): value for key, value in resolved.items()}, "constraint": with_contents(resolved["constraint"])}


def hydra_value(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(entry) for entry in value) + "]"
    return hydra_quote(value) if isinstance(value, str) else str(value)
