"""Texts longer than those of training, by a larger base of the rotary embeddings: ``model.rope``.

LongLLaDA (arXiv 2506.14429) multiplies theta by lambda = (T / 2 pi)^(d / c) / theta for texts of T columns. d features
of a head rotate, and c of them turned at least once over the L columns of training: c = 2 ceil(d/2 log_theta(L/2pi)).
UltraLLaDA (arXiv 2510.10481) doubles L and T, since relative positions of attention both ways run over (-T, T). The
published integers are these factors rounded up: LLaDA-8B 4, 14, 31 and 55 for 8, 16, 24 and 32 k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dllm.common.coerce import coerce
from dllm.common.errors import Refusal, nearest
from dllm.models.keys import MAX_SIZE

MOST_FACTOR = 1e6  # a factor above it is a mistake: LLaDA-8B needs 562 for 128 k


@dataclass(frozen=True, slots=True)
class RopeSetting:
    """``model.rope`` as a user sets it. It is hashable, as what a model is loaded by must be."""

    factor: float | None = None  # by which theta is multiplied
    target: int | None = None  # columns to reach, prompt and answer together
    doubled: bool = False  # relative positions count both ways, as UltraLLaDA has it

    @staticmethod
    def of(setting: Mapping[str, Any] | RopeSetting | None) -> RopeSetting:
        """The setting by its names. Raises UserError for another name or kind, and where two say one thing."""
        if isinstance(setting, RopeSetting):
            return setting
        kinds = {entry.name: entry.type for entry in fields(RopeSetting)}
        for name in setting or {}:
            if name not in kinds:
                raise Refusal(f"{{model.rope:name}} has no {name}; it has {', '.join(kinds)}.{nearest(name, kinds)}")
        values = {
            name: coerce(f"model.rope.{name}", value, str(kinds[name])) for name, value in (setting or {}).items()
        }
        rope = RopeSetting(**values)
        if rope.factor is not None and rope.target is not None:
            raise Refusal(
                "{model.rope.factor} and {model.rope.target} say one thing twice. Set one of them.",
                [rope.factor, rope.target],
            )
        if rope.doubled and rope.factor is None and rope.target is None:
            raise Refusal(
                "{model.rope.doubled=true} needs {model.rope.target:name} or {model.rope.factor:name}. Set one of them."
            )
        return rope

    def reach(self, theta: float, dim: int, trained: int) -> NtkReach:
        """What it makes of a model whose heads rotate ``dim`` features. Raises UserError for numbers that reach no
        further than the file."""
        if features(theta, dim, trained, self.doubled) < 2:
            raise Refusal(
                f"{{model.rope:name}} reaches no further: no feature of this model's heads turned over the {trained} "
                "columns of training. Leave it {null}."
            )
        if self.target is not None:
            if not trained < self.target <= MAX_SIZE:
                raise Refusal(
                    f"{{model.rope.target}} must be above the model's {trained} columns, and at most {MAX_SIZE}.",
                    [self.target],
                )
            return NtkReach(factor_for(theta, dim, trained, self.target, self.doubled), self.target, trained)
        assert self.factor is not None, "one of both is set"
        if not 1 < self.factor <= MOST_FACTOR:
            raise Refusal(f"{{model.rope.factor}} must be above 1, and at most {MOST_FACTOR:g}.", [self.factor])
        return NtkReach(self.factor, min(reach_of(theta, dim, trained, self.factor, self.doubled), MAX_SIZE), trained)


@dataclass(frozen=True, slots=True)
class NtkReach:
    """A larger base, and what it is for."""

    factor: float  # by which theta is multiplied; papers: lambda
    target: int  # columns that it is for, prompt and answer together; papers: T_target
    trained: int  # columns of the file; papers: T_train


def features(theta: float, dim: int, trained: int, doubled: bool = False) -> int:
    """Features that turned at least once in training; papers: critical dimension."""
    turns = trained * (1 + doubled) / (2 * math.pi)
    return 2 * math.ceil(dim / 2 * math.log(turns, theta)) if theta > 1 and turns > 1 else 0


def factor_for(theta: float, dim: int, trained: int, target: int, doubled: bool = False) -> float:
    """The factor of theta by which ``target`` columns turn the slowest trained feature as often as ``trained`` did."""
    turns = target * (1 + doubled) / (2 * math.pi)
    return float(turns ** (dim / features(theta, dim, trained, doubled)) / theta)


def reach_of(theta: float, dim: int, trained: int, factor: float, doubled: bool = False) -> int:
    """The columns that a factor of theta is for: the inverse of ``factor_for``."""
    turns = (factor * theta) ** (features(theta, dim, trained, doubled) / dim)
    return int(turns * 2 * math.pi / (1 + doubled))
