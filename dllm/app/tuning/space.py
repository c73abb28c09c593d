"""The settings that are tried: a list that ships, by kind of model, or a grid of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import product

import yaml
from hydra.core.override_parser.types import Glob

from dllm.app.command_line.grids import grids_of
from dllm.app.command_line.overrides import parsed_override
from dllm.common.errors import UserError
from dllm.compose.config_choices import choices
from dllm.models.config import ModelConfig

# Groups and settings of which a grid of the user's own is made, in place of a list that ships.
SPACE_GROUPS = ("sampler", "blocks", "cache", "eos", "length", "runtime", "kernels")
SettingWords = tuple[str, ...]  # NAME=VALUE, as on a command line


def space_for(
    config: ModelConfig, user_words: Sequence[str], reference: Sequence[str] | None
) -> tuple[SettingWords, ...]:
    """The settings to try, the reference first. user_words: words of the command line that set them. reference: of the
    command line, or None. Raises UserError for a model that leaves nothing to choose."""
    if user_words and reference is not None:
        base, grids = tuple(reference), [list(user_words)]
    else:
        kind = list_for(config)
        content = yaml.safe_load((files("dllm.conf") / "tuning" / f"{kind}.yaml").read_text(encoding="utf-8"))
        base = tuple(reference) if reference is not None else tuple(next(grids_of([content["reference"]])))
        grids = [list(user_words)] if user_words else list(grids_of(content["grids"]))
    return tuple(dict.fromkeys([base, *(words for grid in grids for words in combined(grid))]))


def list_for(config: ModelConfig) -> str:
    """Which list that ships is the model's. Raises UserError where none is."""
    if config.process != "absorbing":
        rule = "no list of settings ships for models of noise, which decode by rules of their own"
        way_out = "Name a grid and a reference, such as sampler=renoise sampler.steps=16,32 reference=sampler=renoise"
        raise UserError(f"{rule}. {way_out}.")
    return "masked" if config.attention.name == "full" else "blocks"


def combined(grid: Sequence[str]) -> list[SettingWords]:
    return [tuple(words) for words in product(*map(_values, grid))]


def _values(word: str) -> list[str]:
    override = parsed_override(word)
    if override is None:
        return [word]
    name = override.key_or_group
    if isinstance(value := override.value(), Glob):
        return [f"{name}={choice}" for choice in value.filter(choices(str(name)))]
    if override.is_sweep_override():
        return [f"{override.input_line.partition('=')[0]}={text}" for text in override.sweep_string_iterator()]
    return [word]


def is_tried(word: str) -> bool:
    """Whether a word sets what is tried, not what all settings have in common."""
    return word.lstrip("+~").partition("=")[0].replace("@", ".").replace("/", ".").partition(".")[0] in SPACE_GROUPS
