"""What the law tests share: every combination of parts there is, and decodes recorded turn by turn."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import save_file

from dllm.laws import decodes, trials
from dllm.parts import (
    ALONE,
    PART_GROUPS,
    AnswerBlocks,
    ConstrainedBatch,
    ContextCausal,
    Decoded,
    FixedLength,
    Parts,
    Ranks,
    Request,
    Sampler,
    Sampling,
    Selection,
    Setting,
    Transformer,
    Turn,
    UserError,
    all_parts,
    choices,
    clash_in,
    ending,
    forward_of,
    ids_of,
    load_model,
    read_model_config,
    recorded,
    refuse_clashes,
    results,
    sealed,
    validate,
    with_mask,
)

__all__ = ["ending", "forward_of", "ids_of", "results", "with_mask"]  # of ``dllm.laws``, for tests
DATA = Path(__file__).parents[1] / "data"
PROMPTS = [
    [62, 51, 25, 3, 4, 34, 6, 23, 37, 3, 55],
    [62, 50, 14, 2, 35, 8, 18, 55],
    [62, 52, 35, 11, 6, 37, 36, 12, 23, 6, 35, 4, 36, 3, 55],
]
LENGTHS = [24, 16, 21]
MODELS = (
    "tiny-llada",
    "tiny-dream",
    "sdar_b4",
    "tiny-wedlm",
    "tiny-nbdiff",
    "tiny-nemotron",
    "tiny-llada-d2f",
    "tiny-dream-d2f",  # both, since sampler=d2f goes with no others
)
# Under ``make laws`` only.
MORE_MODELS = ("tiny-a2d-bd3lm", "tiny-fastdllm-v2", "tiny-diffcoder", "tiny-a2d-mdlm", "tiny-rnd1")


def make_filter(width: int) -> Path:
    """A Learn2PD filter that believes what has a confidence over one half."""
    file = Path(mkdtemp()) / "filter.safetensors"
    eye, zero = torch.eye(width), torch.zeros(width)
    layers = {"linear1.weight": eye, "linear1.bias": zero, "linear2.weight": 10 * eye, "linear2.bias": zero - 5}
    save_file(layers, file, {"block_length": str(width)})
    return file


# The laws' own, but for ids and lengths of the tiny trained models.
OPTIONS: dict[tuple[str, str], dict[str, Any]] = trials.TRIAL_OPTIONS | {
    ("blocks", "adablock"): {"block_length": 8, "delimiter_ids": [54, 56]},
    ("blocks", "tccf"): {"block_length": 8, "fine_length": 2, "marker": 54},
    ("eos", "stop_front"): {"stops": [61, 56], "limit": 18},
    # answers begin with 24, 16 and 21 columns, and the second may not grow
    ("length", "daedal"): {"limit": [40, 16, 33], "factor": 4, "checked": 4, "doubt": 0.5},
    ("length", "rho_eos"): {"limit": [40, 16, 33], "factor": 4, "checked": 4, "low": 0.2, "high": 0.6},
    ("sampler", "oracle"): {"reference": [list(range(3, 27))] * 3},
    ("sampler", "learn2pd"): {"filter": str(make_filter(32))},
}


class Shown:
    """Base of cases, dataclasses of parts by name: a case prints what it is."""

    def __str__(self) -> str:
        return "-".join(str(getattr(self, entry.name)) for entry in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Combination(Shown):
    """One choice of every part, by name."""

    sampler: str
    blocks: str
    cache: str = "none"
    eos: str = "none"
    model: str = "tiny-llada"
    length: str = "fixed"


@cache
def built_parts() -> dict[tuple[str, str], Any]:
    """Every choice of every group. They are immutable, so every combination can share them, and whatever writes on one
    fails its test. A part that cannot be built raises here what it has to say."""
    groups = trials.TRIAL_GROUPS
    return {
        (group, name): sealed(part or FixedLength())  # length=fixed is no part
        for group, found in zip(groups, all_parts(OPTIONS, groups), strict=True)
        for name, part in found.items()
    }


def build(group: str, name: str) -> Any:
    return built_parts()[group, name]


def late(kv: str, lag: int = 1) -> int:
    """A lag that a cache takes: this one, or 0 if the host must read every report at once."""
    return lag if build("cache", kv).traits.bounds_late else 0


# caches that need a schedule, or say most under one
BLOCKS = {"window": "whole", "flash_dllm": "whole", "sliding": "sliding"}


@cache
def model(name: str, dtype: torch.dtype = torch.float64, ranks: Ranks = ALONE) -> Transformer:
    """A name with -d2f: the model attends by blocks of four, as under D2F's adapters."""
    folder = DATA / "models" / name.removesuffix("-d2f")
    config = read_model_config(folder, 4 if name.endswith("-d2f") else None)
    if isinstance(config.attention, ContextCausal | AnswerBlocks):  # whose usual 32 are longer than the answers here
        config = replace(config, attention=replace(config.attention, length=8))
    return load_model(folder, dtype=dtype, config=config, ranks=ranks)


def requests(seed: int = 0) -> list[Request]:
    return [
        replace(Request.answer(prompt, length, 60, seed + number), param_index=number)
        for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


def parts_of(
    combination: Combination,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
) -> Parts:
    """The combination's parts. Raises UserError when they refuse each other, or the sampling."""
    c = selected(combination, sampling)
    sampler = validate(c.setting, c.sampler, c.cache, c.eos, c.length)
    return Parts(sampler, c.blocks, c.cache, c.eos, sampling, c.length)


def selected(combination: Combination, sampling: Sampling) -> Selection:
    sampler, blocks = build("sampler", combination.sampler), build("blocks", combination.blocks)
    kv, eos, config = build("cache", combination.cache), build("eos", combination.eos), model(combination.model).config
    length = build("length", combination.length).resolved(ids_of(config), config.max_length)
    return Selection(Setting(config, blocks, None, sampling), sampler, kv, eos, length)


def refuse_rule(setting: Setting, rule: Sampler) -> None:
    """Raise Refusal for what the rule's own class says against a setting."""
    refuse_clashes(Selection(setting, rule), ("sampler", rule, rule.clashes))


def turns(
    combination: Combination,
    batch: Sequence[Request],
    sampling: Sampling | None = None,
    constraints: ConstrainedBatch | None = None,
    lag: int | None = None,
) -> Iterator[Turn]:
    return decodes.turns_of_rows(model(combination.model), parts_of(combination), batch, sampling, lag, constraints)


def decode(
    combination: Combination,
    batch: Sequence[Request],
    sampling: Sampling | None = None,
    constraints: ConstrainedBatch | None = None,
    lag: int | None = None,
) -> list[Decoded]:
    """Decode a batch and record every request's turns separately."""
    return recorded(model(combination.model), parts_of(combination), batch, sampling, lag, constraints)


@cache
def of_noise() -> frozenset[str]:
    """The samplers for models of noise."""
    return frozenset(name for name in choices("sampler") if build("sampler", name).traits.renoises)


def full() -> bool:
    """Whether long tests run: of every case (all), or of the cases of every day (long)."""
    return os.environ.get("DLLM_LAWS") in ("all", "long")


def drawn(*groups: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every choice of one entry from each group, in an order that LAWS_SEED decides."""
    for number in shuffled(math.prod(map(len, groups)), random.Random(int(os.environ.get("LAWS_SEED", "0")))):
        chosen = []
        for group in groups:
            number, at = divmod(number, len(group))
            chosen.append(group[at])
        yield tuple(chosen)


def shuffled(count: int, dice: random.Random) -> Iterator[int]:
    """The numbers below ``count`` in a random order, each drawn when it is asked for: a sample of laws needs the first
    hundreds of 300,000."""
    moved: dict[int, int] = {}  # Fisher and Yates, of the places that were touched
    for at in range(count):
        other = dice.randrange(at, count)
        yield moved.get(other, other)
        moved[other] = moved.pop(at, at)


def unasked() -> Iterator[Combination]:
    """Every combination, allowed or not, in the order of ``drawn``. To ask them all takes seconds."""
    return (Combination(*names) for names in drawn(*map(choices, PART_GROUPS), MODELS + MORE_MODELS * full()))


def combinations() -> Iterator[Combination]:
    """Every allowed combination, in the order of ``drawn``."""
    return filter(allowed, unasked())


def combinations_of_noise() -> Iterator[Combination]:
    """Every allowed combination of rules of noise with a model of noise."""
    groups = sorted(of_noise()), *(choices(group) for group in PART_GROUPS[1:]), ["dg_dev"]
    return filter(allowed, (Combination(*names) for names in drawn(*groups)))


def combinations_of_candidates() -> Iterator[Combination]:
    """Every allowed combination of a rule with several candidates and a cache that they share."""
    with_candidates = {
        group: [name for name in choices(group) if build(group, name).traits.branches] for group in ("sampler", "cache")
    }
    with_candidates["cache"].remove("none")
    groups = (with_candidates.get(group) or choices(group) for group in PART_GROUPS)
    return filter(allowed, (Combination(*names) for names in drawn(*groups, MODELS + MORE_MODELS * full())))


def combinations_of_lengths() -> Iterator[Combination]:
    """Every allowed combination of rules that change the length of rows."""
    follow = {
        group: [name for name in choices(group) if has(build(group, name).traits)] for group, has in FOLLOW.items()
    }
    groups = choices("sampler"), *(follow[group] for group in PART_GROUPS[1:]), MODELS + MORE_MODELS * full()
    return filter(allowed, (Combination(*names) for names in drawn(*groups, follow["length"])))


# What a part must state to go with them.
FOLLOW: dict[str, Callable[[Any], bool]] = {
    "blocks": lambda traits: traits.follows,
    "cache": lambda traits: traits.follows,
    "eos": lambda traits: traits.leaves_rows,
    "length": lambda traits: traits.changes,
}


@cache  # laws share their combinations
def allowed(combination: Combination, sampling: Sampling = Sampling()) -> bool:  # noqa: B008  frozen
    """Whether the parts take each other and the sampling. What one of them says of itself is no refusal, and is raised.

    What is refused with ``eos=none``, which asks for nothing, is refused with every policy: four of five combinations
    (``test_matrix`` tries some).
    """
    built_parts()
    if combination.eos != "none" and not allowed(replace(combination, eos="none"), sampling):
        return False
    try:  # without the ways out, whose search takes most of a refusal's time
        return clash_in(selected(combination, sampling)) is None
    except UserError:
        return False
