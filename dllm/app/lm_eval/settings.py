"""Settings that come as ``name=value`` from another program, made into a resolved configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dllm.app.command_line.overrides import quote
from dllm.app.command_line.refusals import explain
from dllm.compose.parts import composed
from dllm.errors import UserError


def configured(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with these settings. Raises UserError, naming the nearest, for one that does not exist."""
    overrides = [f"{name}={written(value)}" for name, value in settings.items()]
    try:
        resolved = OmegaConf.to_container(composed(overrides), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error, overrides)) from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def written(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(entry) for entry in value) + "]"
    return quote(value) if isinstance(value, str) else str(value)
