"""The trials of one part: it beside all others that take it, on tiny models of every kind with random weights."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from heapq import heapify, heappop, heapreplace
from itertools import combinations as pairs
from itertools import product
from typing import Any, TypeVar

import torch

from dllm.common.errors import UserError, name_of
from dllm.compose.fitted import Parts
from dllm.compose.validate import validate
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling, Setting
from dllm.laws.claims import Trial, Watched
from dllm.laws.compatibility import PART_GROUPS, ModelKind, all_parts
from dllm.laws.decodes import Broken, crash, ids_of, sealed
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.network.visibility import ByBlock
from dllm.parts.lengths.fixed_length import FixedLength
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import Wrapper

# Of 16 ids an answer of 14 positions shows an end of text often; with this gain confidences are apart, from 0.2 to 0.9.
VOCAB, _MASK, EOS, _WIDTH, GAIN = 16, 15, 14, 16, 2.5
PROMPTS, _LENGTHS = ([1, 5, 3, 7, 2, 9], [4, 4, 8], [11, 2, 6, 10, 3, 12, 5, 1]), (14, 9, 12)
TEMPERATURES = (0.0, 0.8)
# the kinds of ``ModelKind.all``
MODELS = ("llada", "dream", "block_causal", "causal", "context_causal", "pipelined", "noise")
TRIAL_GROUPS = (*PART_GROUPS, "length")
USUAL_CASE = {
    "blocks": "fixed",
    "cache": "none",
    "eos": "none",
    "sampler": "confidence",
    "length": "fixed",
    "model": "llada",
    "heat": 0.0,
}

# Parts that cannot be built, or would show nothing on short answers, with their defaults.
TRIAL_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("blocks", "fixed"): {"block_length": 8},
    ("blocks", "growing"): {"block_length": 8},
    ("blocks", "ahead"): {"block_length": 5, "opening_share": 0.4},
    ("blocks", "pipelined"): {"block_length": 4, "opening_share": 0.4},
    ("blocks", "lengths"): {"lengths": [5, 8, 3]},
    ("blocks", "adablock"): {"block_length": 8, "delimiter_ids": [4, 6]},
    ("blocks", "tccf"): {"block_length": 8, "fine_length": 2, "marker": 4},
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
    ("cache", "sparsed"): {"select": 0.2, "block_size": 4, "full_forwards": 3},
    ("cache", "sliding"): {"prefix_window": 2},
    ("cache", "streaming"): {"suffix_window": 4},
    ("cache", "vicinity"): {"prefix_look": 3, "after_look": 2, "warmup": 2, "refresh_interval": 3},
    ("eos", "stop_front"): {"stops": [EOS, 6], "limit": 18},
    # the second of every three rows may not grow
    ("length", "daedal"): {"limit": [24, 9, 20] * 2, "factor": 3, "checked": 3, "sure_end": 0.3, "doubt": 0.6},
    ("length", "rho_eos"): {"limit": [24, 9, 20] * 2, "factor": 2, "checked": 3, "low": 0.2, "high": 0.4},
    ("length", "cal"): {"limit": 6, "begin": 3, "misses": 2},
    ("sampler", "oracle"): {"reference": [[6]]},
    ("sampler", "joint_threshold"): {"threshold": 0.4, "edit_threshold": 0.0, "post_edit_steps": 2},
    ("sampler", "dmax"): {"threshold": 0.4},
    ("sampler", "adas"): {"weight": 30.0},
    ("sampler", "renoise"): {"steps": 4, "stop_entropy": 0.3},
    ("sampler", "ancestral"): {"steps": 4},
    ("sampler", "flash_verify"): {"threshold": 0.8, "gamma": 0.02},
    ("sampler", "slowfast"): {"explore": 1, "window": 1},
}


@dataclass(frozen=True)
class TrialCase:
    """One combination around the part under trial, by name."""

    sampler: str  # by name, like the three below it
    blocks: str  # which schedule
    cache: str  # which policy
    eos: str  # which end-of-text policy
    model: str  # the kind of model
    heat: float  # temperature
    length: str = "fixed"  # which rule for the length of answers

    @property
    def unusual(self) -> int:
        """How much of it is not the plainest choice; the part under trial counts the same everywhere."""
        return sum(getattr(self, name) != usual for name, usual in USUAL_CASE.items())

    def __str__(self) -> str:
        parts = " ".join(f"{group}={getattr(self, group)}" for group in TRIAL_GROUPS)
        return f"{parts}, temperature {self.heat:g}, model of kind {self.model}"


@cache
def network(kind: str) -> Transformer:
    """A model of two or three layers with seeded random weights, in float64, attending as that kind does."""
    config = dict(zip(MODELS, (kind_of_model.config for kind_of_model in ModelKind.all()), strict=True))[kind]
    config = small(config)
    noise, model = torch.Generator().manual_seed(0), Transformer(config)
    for name, parameter in model.named_parameters():
        noise_values = torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
        parameter.data = 1 + 0.1 * noise_values if "norm" in name else noise_values * GAIN / parameter.shape[-1] ** 0.5
    return model.eval().requires_grad_(False)


def small(config: ModelConfig) -> ModelConfig:
    """The same kind of model, with few weights."""
    attention = config.attention
    if hasattr(attention, "length"):  # blocks of 32 are longer than the answers here
        attention = replace(attention, length=4)  # type: ignore[call-arg]
    masked = config.process != "uniform"
    layers = 3 if isinstance(attention, ByBlock) else 2  # cache=focus saves rows of those after the second
    return replace(
        config, attention=attention, width=_WIDTH, layers=layers, heads=2, kv_heads=2, head_dim=_WIDTH // 2,
        rotary_dim=_WIDTH // 2, mlp_width=2 * _WIDTH, vocab=VOCAB, mask_id=_MASK if masked else None, eos_id=EOS,
        pad_id=0, max_length=64,
    )  # fmt: skip


def requests() -> tuple[Request, ...]:
    """Three requests whose prompts and answers have different lengths."""
    return tuple(
        replace(Request.answer(prompt, length, _MASK, seed), param_index=seed)
        for seed, (prompt, length) in enumerate(zip(PROMPTS, _LENGTHS, strict=True))
    )


def gaps() -> tuple[Request, Request]:
    """An infilling with text on both sides of its gaps, and a plain answer beside it."""
    tokens = [1, 5, _MASK, _MASK, 3, 7, _MASK, _MASK, _MASK, 2, _MASK, 9]
    return Request(tokens, [token == _MASK for token in tokens]), Request.answer([4, 4, 8], 7, _MASK, 1)


def unsized() -> tuple[Request, ...]:
    """Two infillings whose gap has no size yet, and one that has."""
    texts = ([1, 5, 3, _MASK, 7, 2], [4, _MASK, 9, 8, 11, 6, 10], [2, 6, _MASK, _MASK, 1])
    return tuple(
        Request(
            text, [token == _MASK for token in text], seed, gap=text.index(_MASK) if text.count(_MASK) == 1 else None
        )
        for seed, text in enumerate(texts)
    )


@cache  # composing their configurations takes seconds
def other_rows() -> dict[str, dict[str, Any]]:
    """The parts of every group, sealed, except the oracle, which knows the answers of certain requests."""
    parts_by_group = dict(zip(TRIAL_GROUPS, all_parts(TRIAL_OPTIONS, TRIAL_GROUPS), strict=True))
    parts_by_group["length"]["fixed"] = FixedLength()  # its configuration names no part
    return {
        group: {name: sealed(part) for name, part in parts.items() if name != "oracle"}
        for group, parts in parts_by_group.items()
    }


class Trials:
    """The part under trial, and what it is tried beside. mine: built already; it is sealed here."""

    def __init__(self, group: str, mine: Any) -> None:
        self.group, self.name = group, name_of(mine)
        self.parts = {group_name: dict(choices) for group_name, choices in other_rows().items()}
        self.parts[group] = {self.name: watched(sealed(mine))}

    def every(self, seed: int = 0) -> list[TrialCase]:
        """Every combination that the parts accept, in an order that the seed decides."""
        plain = [case for case in self._plain_cases() if self.takes(case)]
        variants = [replace(case, eos=eos) for case in plain for eos in self.parts["eos"] if eos != case.eos]
        variants += [
            replace(case, length=name) for case in plain for name in self.parts["length"] if name != case.length
        ]
        cases = plain + [case for case in variants if self.takes(case)]
        random.Random(seed).shuffle(cases)
        return cases

    def _plain_cases(self) -> Iterator[TrialCase]:
        """Every combination with the plainest end of text and length. Around a rule for the length, which goes with all
        of 48,000 or with few, those in which at most two groups are not the plainest."""
        ends, lengths = (
            tuple(self.parts[group]) if self.group == group else (USUAL_CASE[group],) for group in ("eos", "length")
        )
        groups = self.parts["sampler"], self.parts["blocks"], self.parts["cache"], ends, MODELS, TEMPERATURES, lengths
        cases = (TrialCase(*names) for names in product(*groups))
        plain = {group: USUAL_CASE[group] for group in PART_GROUPS}
        return (
            case
            for case in cases
            if self.group != "length" or sum(getattr(case, group) != usual for group, usual in plain.items()) <= 2
        )

    def sample(self, count: int, seed: int = 0) -> list[TrialCase]:
        """So many of them, that show every part and most pairs."""
        return widest_first(self.every(seed), count)

    def sampling(self, case: TrialCase) -> Sampling:
        return Sampling(temperature=case.heat, tempered=self.parts["sampler"][case.sampler].traits.tempered)

    def takes(self, case: TrialCase) -> bool:
        """Whether no part of a case refuses another. One that breaks a law before it decodes does not refuse."""
        try:
            return self.parts_of(case) is not None
        except Broken:
            return True

    def parts_of(self, case: TrialCase) -> Parts | None:
        """The parts of a case, sealed; None where one refuses another. Raises Broken for one that is written on, or
        fails, when it learns of the model."""
        parts = {group: self.parts[group][getattr(case, group)] for group in TRIAL_GROUPS}
        sampling, config = self.sampling(case), network(case.model).config
        setting = Setting(config, parts["blocks"], None, sampling, case.model)
        length = parts["length"].resolved(ids_of(config), config.max_length)
        try:
            rule = validate(setting, parts["sampler"], parts["cache"], parts["eos"], length)
        except UserError:
            return None
        except Broken:
            raise
        except Exception as error:  # of somebody's part
            raise Broken(crash(error)) from error
        rule = sealed(rule) if self.group != "sampler" else watched(sealed(rule))
        return Parts(rule, parts["blocks"], parts["cache"], parts["eos"], sampling, length)

    def trial(self, case: TrialCase, batch: tuple[Request, ...] = ()) -> Trial:
        """The case on three requests, or on the ones of ``batch``. Raises Broken as ``parts_of`` does."""
        parts = self.parts_of(case)
        assert parts is not None
        return Trial(network(case.model), parts, batch or requests(), self.sampling(case))


def watched(part: Any) -> Any:
    """Wraps samplers to check their steps; wrappers, which the loop checks, and other parts are unchanged."""
    if isinstance(part, Sampler) and not isinstance(part, Wrapper | Watched):
        kind = type(part)
        part_class = type(kind.__name__, (Watched, kind), {"__module__": kind.__module__, "__init__": kind.__init__})
        object.__setattr__(part, "__class__", part_class)
    return part


CoveredCase = TypeVar("CoveredCase")  # a frozen dataclass of parts by name


def widest_first(cases: Sequence[CoveredCase], count: int) -> list[CoveredCase]:
    """So many of the cases, that each shows as many parts, then pairs of parts, as possible which those before it do
    not.

    What a case adds can only shrink, so the first one of the heap whose number still holds is the best of all.
    """
    cases = cases if count else []
    contents = [{*pairs(parts := parts_in_case(case), 1), *pairs(parts, 2)} for case in cases]
    heap = [(-worth(new), at) for at, new in enumerate(contents)]
    covered: set[Any] = set()
    order: list[CoveredCase] = []
    heapify(heap)
    while heap and len(order) < count:
        worth_before, at = heap[0]
        adds = -worth(contents[at] - covered)
        if adds > worth_before:
            heapreplace(heap, (adds, at))
            continue
        heappop(heap)
        order.append(cases[at])
        covered |= contents[at]
    return order


def worth(new: set[tuple[Any, ...]]) -> int:
    """How much a case shows: a part that few combinations allow counts as twenty pairs, or none of them might come."""
    return sum(20 if len(part) == 1 else 1 for part in new)


def parts_in_case(case: Any) -> list[tuple[str, Any]]:
    """The case's fields, and those of the cases inside it."""
    out: list[tuple[str, Any]] = []
    for entry in fields(case):
        value = getattr(case, entry.name)
        out += parts_in_case(value) if is_dataclass(value) else [(entry.name, value)]
    return out
