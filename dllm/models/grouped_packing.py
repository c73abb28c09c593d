"""GPTQ and AWQ: weights of 4 or 8 bits with a scale and a zero for each group of columns, w = s (q - z).

As their published packers write them. A linear layer of N outputs and D columns has, in words of 32 bits, ``qweight``,
GPTQ's [D bits / 32, N] with the columns of a word from its lowest bits on, AWQ's [D, N / 8] with eight outputs of a
word in the order 0, 2, 4, 6, 1, 3, 5, 7; ``qzeros`` [G, N bits / 32], packed by outputs; ``scales`` [G, N]; and, in
GPTQ's, ``g_idx`` [D], the group of each column. GPTQ's first format has zeros that are one less, subtracted from whole
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dllm.common.coerce import is_whole
from dllm.errors import UserError
from dllm.kernels.narrow_product import GROUP
from dllm.models.files import FLOATS, Contents, Stored, broken
from dllm.models.keys import printed, shown
from dllm.models.packing import FourBits, Packing, Part, numbers_in_words
from dllm.models.prequantized import UNQUANTISED

PACKING_METHODS = ("gptq", "awq")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WORD_BITS = 32  # bits
_LEAVES = ("qweight", "qzeros", "scales", "g_idx")
_Rule = tuple[str, Callable[[Any], bool]]  # continues "must be", and says whether a value is allowed
_WIDTHS: _Rule = ("-1 or a number of columns from 8 on", lambda value: is_whole(value) and (value == -1 or value > 7))
_RULES: Mapping[str, dict[str, _Rule]] = {
    "gptq": {
        "bits": ("4 or 8", lambda value: is_whole(value) and value in (4, 8)),
        "group_size": _WIDTHS,
        "checkpoint_format": ("'gptq' or 'gptq_v2'", lambda value: value in ("gptq", "gptq_v2", None)),
        "pack_dtype": ("'int32'", lambda value: value in ("int32", None)),
        "is_marlin_format": ("false", lambda value: not value),
        "dynamic": ("rules that leave modules out ('-:...')", lambda value: not value or (isinstance(value, Mapping) and
            all(str(name).startswith("-:") for name in value))),
    },
    "awq": {
        "bits": ("4", lambda value: is_whole(value) and value == 4),
        "group_size": _WIDTHS,
        "zero_point": ("true", lambda value: value in (True, None)),
        "version": ("'gemm'", lambda value: value is None or str(value).lower() == "gemm"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class GroupedSettings:
    """What config.json says of packed weights."""

    method: str  # gptq or awq
    bits: int  # of a weight
    group: int  # columns with one scale; -1: all of an output
    subtracted: int  # from stored zeros, of each number of a word

    @property
    def kind(self) -> str:
        """What people call it."""
        return f"{self.method.upper()} {self.bits}-bit"


def grouped_settings(published: Mapping[str, Any], file: str) -> GroupedSettings | None:
    """What a parsed config.json says of packed weights; None: nothing, or another method than these. Raises UserError
    for a layout that is not read."""
    said = published.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or method not in PACKING_METHODS:
        return None
    given = {"bits": said.get("w_bit"), "group_size": said.get("q_group_size"), **said}
    for key, (rule, fits) in _RULES[method].items():
        if not fits(given.get(key)):
            raise UserError(
                f"{file} has {method} weights with {key}={shown(given.get(key))} in quantization_config, which must be "
                f"{rule} to be read. {UNQUANTISED}."
            )
    old = method == "gptq" and given.get("checkpoint_format") != "gptq_v2"
    return GroupedSettings(method, given["bits"], given["group_size"], int(old))


@dataclass(frozen=True)
class Grouped(Packing):
    """A matrix [N, D] of GPTQ or AWQ."""

    settings: GroupedSettings  # of the whole checkpoint
    weight: Stored  # qweight
    zeros: Stored  # qzeros
    scales: Stored  # scales
    index: Stored | None  # g_idx

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in (self.weight, self.zeros, self.scales, self.index) if one is not None)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs N and columns D."""
        rows, columns = self.weight.shape
        many = WORD_BITS // self.settings.bits
        return (columns, rows * many) if self.settings.method == "gptq" else (columns * many, rows)

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        steps, zero, scale = self._read(part, begin, end)
        group = self._groups(part)
        return (steps.float() - zero[:, group]) * scale[:, group]

    def four_bits(self, part: Part, begin: int, end: int) -> FourBits | None:
        groups = self._groups(part)
        if self.settings.bits != 4 or len(groups) % GROUP:
            return None
        alike = groups.view(-1, GROUP)
        if (alike != alike[:, :1]).any():
            return None
        steps, zero, scale = self._read(part, begin, end)
        scale = scale[:, alike[:, 0]]
        sizes = torch.stack([scale, scale * (8 - zero[:, alike[:, 0]])], -1)
        return FourBits(steps.to(torch.int8) - 8, sizes)

    def _read(self, part: Part, begin: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """Steps [n, D] from 0 on, zeros and scales [n, G] in float32."""
        bits, every = self.settings.bits, slice(None)
        many = WORD_BITS // bits
        words, own = slice(begin // many, -(-end // many)), slice(begin % many, begin % many + end - begin)
        zeros = part(self.zeros, every, words) + self.settings.subtracted * _ones(bits)
        if self.settings.method == "gptq":
            steps = numbers_in_words(part(self.weight, every, slice(begin, end)), bits, 0)
            zero = numbers_in_words(zeros, bits, 1)[:, own]
        else:
            steps = numbers_in_words(part(self.weight, every, words), bits, 1, AWQ_ORDER)[:, own]
            zero = numbers_in_words(zeros, bits, 1, AWQ_ORDER)[:, own]
        scale = part(self.scales, every, slice(begin, end))
        return steps.t().contiguous(), zero.t().float(), scale.t().float()

    def _groups(self, part: Part) -> Tensor:
        """The group [D] of each column."""
        columns = self.shape[1]
        if self.index is None:
            return torch.arange(columns) // (columns if self.settings.group == -1 else self.settings.group)
        found, groups = part(self.index).long(), self.scales.shape[0]
        if ((found < 0) | (found >= groups)).any():
            raise broken(f"tensor {printed(self.index.name)} names groups that are not 0 to {groups - 1}")
        return found


def _ones(bits: int) -> int:
    """A word of 32 bits each of whose numbers is 1."""
    return sum(1 << place for place in range(0, WORD_BITS, bits))


def with_packed(found: Contents, settings: GroupedSettings) -> Contents:
    """The tensors of a folder with a weight in the place of those that make it up. Raises UserError where these do not
    fit each other."""
    tensors = dict(found.tensors)
    for name in [name for name in tensors if name.endswith(".qweight")]:
        stem = name.removesuffix(".qweight")
        packing = _packing(stem, {leaf: tensors.pop(f"{stem}.{leaf}", None) for leaf in _LEAVES}, settings)
        tensors[f"{stem}.weight"] = Stored(
            f"{stem}.weight", packing.weight.file, packing.shape, settings.kind, packing
        )  # fmt: skip
    return Contents(tensors, found.unnamed, found.stale)


def _packing(stem: str, parts: Mapping[str, Stored | None], settings: GroupedSettings) -> Grouped:
    weight, zeros, scales, index = (parts[leaf] for leaf in _LEAVES)
    if weight is None or zeros is None or scales is None:
        raise broken(f"tensor {printed(stem)}.qweight stands without its qzeros and scales")
    if len(weight.shape) != 2:
        raise broken(f"tensor {printed(weight.name)} has shape {list(weight.shape)}, not two sizes")
    made = Grouped(settings, weight, zeros, scales, index)
    outputs, columns = made.shape
    groups = 1 if settings.group == -1 else -(-columns // settings.group)
    needed: dict[Stored, tuple[int, ...]] = {
        zeros: (groups, outputs * settings.bits // WORD_BITS),
        scales: (groups, outputs),
    }
    needed |= {} if index is None else {index: (columns,)}
    for one, shape in needed.items():
        if one.shape != shape:
            said = f"{settings.kind} in groups of {settings.group} implies"
            raise broken(f"tensor {printed(one.name)} has shape {list(one.shape)}, {said} {list(shape)}")
    for one in (weight, *needed):
        if one.dtype not in (FLOATS if one is scales else ("I32",)):
            raise broken(f"tensor {printed(one.name)} is stored as {one.dtype}")
    return made
