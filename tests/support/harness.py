"""What the law tests share: every combination of parts there is, and decodes recorded turn by turn."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import save_file

from dllm.analysis.compatibility import PART_GROUPS, all_parts
from dllm.blocks.base import Blocks
from dllm.cache.base import Cache
from dllm.compose.fitted import Parts
from dllm.compose.parts import choices
from dllm.compose.validate import validate
from dllm.constrained.batch import ConstrainedBatch
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling, Setting
from dllm.eos.base import EndOfText
from dllm.errors import UserError, name_of
from dllm.loop.denoise import TakeTurn, denoise
from dllm.loop.forward import Forward
from dllm.models.config import ModelConfig
from dllm.models.ids import Ids
from dllm.models.transformer import Transformer
from dllm.models.visibility import AnswerBlocks, ContextCausal
from dllm.models.weights import load_model, read_model_config
from dllm.record.collector import Collector
from dllm.record.results import Result
from dllm.runtime.runtime import Network
from dllm.samplers.base import Sampler

ENDLESS = 2000
KINDS = (Sampler, Blocks, Cache, EndOfText)
DATA = Path(__file__).parents[1] / "data"
PROMPTS = [
    [62, 51, 25, 3, 4, 34, 6, 23, 37, 3, 55],
    [62, 50, 14, 2, 35, 8, 18, 55],
    [62, 52, 35, 11, 6, 37, 36, 12, 23, 6, 35, 4, 36, 3, 55],
]
LENGTHS = [24, 16, 21]
MODELS = ("tiny-llada", "tiny-dream", "sdar_b4", "tiny-wedlm", "tiny-nbdiff", "tiny-nemotron")
MORE_MODELS = (
    "tiny-a2d-bd3lm",
    "tiny-fastdllm-v2",
    "tiny-diffcoder",
    "tiny-a2d-mdlm",
    "tiny-rnd1",
)  # under ``make laws`` only


def make_filter(width: int) -> Path:
    """A Learn2PD filter that believes what has a confidence over one half."""
    file = Path(mkdtemp()) / "filter.safetensors"
    eye, zero = torch.eye(width), torch.zeros(width)
    layers = {"linear1.weight": eye, "linear1.bias": zero, "linear2.weight": 10 * eye, "linear2.bias": zero - 5}
    save_file(layers, file, {"block_length": str(width)})
    return file


# Parts that cannot be built, or would show nothing, with their defaults.
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("blocks", "fixed"): {"block_length": 8},
    ("blocks", "growing"): {"block_length": 8},
    ("blocks", "ahead"): {"block_length": 5, "opening_share": 0.4},
    ("blocks", "lengths"): {"lengths": [5, 8, 3]},
    ("blocks", "adablock"): {"block_length": 8, "delimiter_ids": [54, 56]},
    ("blocks", "tccf"): {"block_length": 8, "fine_length": 2, "marker": 54},
    ("blocks", "sliding"): {"block_length": 5, "max_block_length": 7},
    ("cache", "elastic"): {"window_length": 5},
    ("cache", "window"): {"active_tokens": 4, "window_tokens": 9, "refresh_interval": 4},
    ("cache", "dkv"): {"refresh_interval": 4},
    ("cache", "delayed"): {"delay": 2, "refresh_interval": 5},
    ("cache", "d2cache"): {"masks": 6, "sigma": 4.0, "inflate": 2},
    ("cache", "entropy"): {"recent": 3},
    ("cache", "flash_dllm"): {"window_length": 4, "mask_windows": 2, "track_windows": 1},
    ("cache", "flash_verify"): {"window_length": 4, "mask_windows": 2, "track_windows": 1},
    ("cache", "linear_spec"): {"window_length": 5},
    ("cache", "dllm_cache"): {"prompt_interval": 5, "response_interval": 3},
    ("cache", "dpad"): {"suffix_window": 9},
    ("cache", "sliding"): {"prefix_window": 2},
    ("cache", "streaming"): {"suffix_window": 4},
    ("cache", "vicinity"): {"prefix_look": 3, "after_look": 2, "warmup": 2, "refresh_interval": 3},
    ("eos", "stop_front"): {"stops": [61, 56], "limit": 18},
    ("sampler", "joint_threshold"): {"threshold": 0.4, "edit_threshold": 0.0, "post_edit_steps": 2},
    ("sampler", "adas"): {"weight": 30.0},
    ("sampler", "renoise"): {"steps": 4, "stop_entropy": 0.3},
    ("sampler", "ancestral"): {"steps": 4},
    ("sampler", "flash_verify"): {"threshold": 0.8, "gamma": 0.02},
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


@dataclass
class Decoded:
    """One request's decode: the canvas every forward saw (without padding), the turns' commits, and the result."""

    canvases: list[list[int]] = field(default_factory=list)
    undecided: list[list[bool]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    result: Result | None = None


def sealed(part: Any) -> Any:
    """The part itself, from now on refusing to be written on, and so the parts within it."""

    def refuse(self: Any, name: str, value: Any = None) -> None:
        raise AssertionError(f"{name_of(self)}.{name} was written on a part that others use")

    kind = type(part)
    names = {"__setattr__": refuse, "__delattr__": refuse, "__module__": kind.__module__}
    for inner in vars(part).values():
        if isinstance(inner, KINDS):
            sealed(inner)
    part.__class__ = type(kind.__name__, (kind,), names)
    return part


@cache
def built_parts() -> dict[tuple[str, str], Any]:
    """Every choice of every group. They are immutable, so every combination can share them, and whatever writes on one
    fails its test. A part that cannot be built raises here what it has to say."""
    return {(group, name): sealed(part) for group, found in zip(PART_GROUPS, all_parts(OPTIONS), strict=True)
            for name, part in found.items()}  # fmt: skip


def build(group: str, name: str) -> Any:
    return built_parts()[group, name]


@cache
def model(name: str, dtype: torch.dtype = torch.float64) -> Transformer:
    folder = DATA / "models" / name
    config = read_model_config(folder)
    if isinstance(config.attention, ContextCausal | AnswerBlocks):  # whose usual 32 are longer than the answers here
        config = replace(config, attention=replace(config.attention, length=8))
    return load_model(folder, dtype=dtype, config=config)


def requests(seed: int = 0) -> list[Request]:
    return [
        Request.answer(prompt, length, 60, seed + number)
        for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


def with_mask(request: Request, mask_id: int) -> Request:
    """The request with the model's own mask id."""
    tokens = [mask_id if hole else token for token, hole in zip(request.tokens, request.masked, strict=True)]
    return replace(request, tokens=tokens)


def parts_of(
    combination: Combination,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
) -> Parts:
    """The combination's parts. Raises UserError when they refuse each other, or the sampling."""
    sampler, blocks = build("sampler", combination.sampler), build("blocks", combination.blocks)
    kv, eos = build("cache", combination.cache), build("eos", combination.eos)
    sampler = validate(Setting(model(combination.model).config, blocks, None, sampling), sampler, kv, eos)
    return Parts(sampler, blocks, kv, eos, sampling)


def ids_of(config: ModelConfig) -> Ids:
    return Ids(None if config.process == "uniform" else config.mask_id or 0, config.eos_id or 0, ())


def forward_of(network: Transformer, parts: Parts, sampling: Sampling) -> Forward:
    return Forward.of(network, ids_of(network.config), replace(parts, sampling=sampling))


def turns(
    combination: Combination,
    batch: Sequence[Request],
    sampling: Sampling | None = None,
    constraints: ConstrainedBatch | None = None,
    lag: int | None = None,
) -> Iterator[Turn]:
    network, parts = model(combination.model), parts_of(combination)
    batch = [with_mask(request, ids_of(network.config).placeholder) for request in batch]
    sampling = sampling or Sampling().under(parts.sampler)
    forward = forward_of(network, parts, sampling)
    at_zero = network.config.attention.grid_at_zero
    canvas = Canvas.of(batch, network.config.pad_id or 0, network.device, at_zero, sampling.temperature)
    with torch.inference_mode():
        yield from ending(denoise(canvas, forward, parts, lag, None, constraints))


def decode(
    combination: Combination, batch: Sequence[Request], sampling: Sampling | None = None,
    constraints: ConstrainedBatch | None = None, lag: int | None = None,
) -> list[Decoded]:  # fmt: skip
    """Decode a batch and record every request's turns separately."""
    out = [Decoded() for _ in batch]
    config = model(combination.model).config
    batch = [with_mask(request, ids_of(config).placeholder) for request in batch]
    collector = Collector(list(batch), ids_of(config), str, (), trace=True)
    for turn in turns(combination, batch, sampling, constraints, lag):
        collector.observe(turn)
        canvas = turn.canvas
        for row, name in enumerate(canvas.row_id.tolist()):
            real = slice(len(batch[name].tokens))
            masked = canvas.masked[row, real]
            out[name].canvases.append(canvas.tokens[row, real].masked_fill(masked, -1).tolist())
            out[name].undecided.append(canvas.undecided[row, real].tolist())
    for decoded, result in zip(out, collector.results(), strict=True):
        decoded.result = result
    return out


def results(
    network: Transformer, parts: Parts, batch: Sequence[Request],
    sampling: Sampling | None = None, lag: int | None = None, runs: Network | None = None, take: TakeTurn | None = None,
    constraints: ConstrainedBatch | None = None,
) -> list[Result]:  # fmt: skip
    """A batch's results without traces. lag, take: as in ``denoise``; runs: the network as a runtime runs it."""
    config = network.config
    batch = [with_mask(request, ids_of(config).placeholder) for request in batch]
    sampling, at_zero = sampling or Sampling().under(parts.sampler), config.attention.grid_at_zero
    forward = forward_of(network, parts, sampling)
    forward = forward if runs is None else replace(forward, network=runs)
    canvas = Canvas.of(batch, config.pad_id or 0, network.device, at_zero, sampling.temperature)
    collector = Collector(batch, ids_of(config), str, (), trace=False)
    with torch.inference_mode():
        for turn in ending(denoise(canvas, forward, parts, lag, take, constraints)):
            collector.observe(turn)
    return collector.results()


def ending(running: Iterator[Turn]) -> Iterator[Turn]:
    """The turns of a decode. AssertionError for one that does not end, as where masks are left and none is open:
    without it, the test would hang."""
    for number, turn in enumerate(running):
        assert number < ENDLESS, f"{ENDLESS} turns, masks left: {turn.candidates.undecided.sum(1).tolist()}"
        yield turn


@cache
def of_noise() -> frozenset[str]:
    """The samplers for models of noise."""
    return frozenset(name for name in choices("sampler") if build("sampler", name).traits.renoises)


def full() -> bool:
    return os.environ.get("DLLM_LAWS") == "all"


def drawn(*groups: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every choice of one entry from each group, in an order that LAWS_SEED decides."""
    total = math.prod(map(len, groups))
    for number in random.Random(int(os.environ.get("LAWS_SEED", "0"))).sample(range(total), total):
        chosen = []
        for group in groups:
            number, at = divmod(number, len(group))
            chosen.append(group[at])
        yield tuple(chosen)


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


@cache  # laws share their combinations
def allowed(combination: Combination) -> bool:
    """Whether the parts take each other. What one of them says about itself is no refusal, and is raised.

    What is refused with ``eos=none``, which asks for nothing, is refused with every policy: four of five combinations
    (``test_matrix`` tries some).
    """
    built_parts()
    if combination.eos != "none" and not allowed(replace(combination, eos="none")):
        return False
    try:
        parts_of(combination)
    except UserError:
        return False
    return True
