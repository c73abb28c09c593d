"""``gen_length=auto``: the rule for the length of answers that is measured best for a model, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.common.errors import Refusal, UserError
from dllm.compose.naming import typed_name
from dllm.compose.parts import part_config

AUTO = "auto"
# Masks at the start, a rule, and its options. Of the models that come along as measured on their own tasks
# (docs/lengths.md); of others as the authors publish them.
SMALL: tuple[int, str, dict[str, Any]] = 16, "rho_eos", {"limit": 128, "checked": 12, "low": 0.1, "high": 0.9}
PUBLISHED: tuple[int, str, dict[str, Any]] = 64, "daedal", {}


def auto_length(model: str) -> tuple[int, dict[str, Any]]:
    """Masks with which answers of a model begin, and the configuration of the part that goes on from there."""
    from dllm.models.weights.shipped import shipped_models  # imports torch, for which a command's help does not wait

    begin, rule, options = SMALL if model in shipped_models() else PUBLISHED
    return begin, part_config("length", rule, options)


def with_auto_length(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with what ``gen_length=auto`` stands for. Raises UserError beside a rule that was chosen."""
    if config.get("gen_length") != AUTO:
        return dict(config)
    if config.get("length"):
        raise double_length(typed_name(config, "length"))
    begin, length = auto_length(str(config["model"].get("name")))
    return {**config, "gen_length": begin, "length": length, "eos": part_config("eos", "none", {})}


def double_length(name: str) -> UserError:
    """The error for a length rule chosen beside ``gen_length=auto``, which chooses one itself."""
    return Refusal(
        "{gen_length=auto} chooses a rule for the length, and {length} is another. Set {gen_length:name} to the "
        "masks that an answer begins with, or drop length.",
        [name],
    )
