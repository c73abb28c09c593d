"""GPTQ and AWQ: weights of 4 or 8 bits with a scale and a zero for each group of columns, w = s (q - z).

As their published packers write them. A linear layer of N outputs and D columns has, in words of 32 bits, ``qweight``,
GPTQ's [D bits / 32, N] with the columns of a word from its lowest bits on, AWQ's [D, N / 8] with eight outputs of a
word in the order 0, 2, 4, 6, 1, 3, 5, 7; ``qzeros`` [G, N bits / 32], packed by outputs; ``scales`` [G, N]; and, in
GPTQ's, ``g_idx`` [D], the group of each column. GPTQ's first format has zeros that are one less, subtracted from whole
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.errors import UserError
from dllm.kernels.narrow_product import GROUP
from dllm.models.files import FLOATS, Contents, Stored, broken, first_names
from dllm.models.grouped_settings import GroupedSettings
from dllm.models.keys import printed
from dllm.models.packing import FourBits, Packing, Part, numbers_in_words
from dllm.models.prequantized import QUANTISATION, UNQUANTISED
from dllm.models.tensor_reader import TensorReader

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WORD_BITS = 32  # bits
_LEAVES = ("qweight", "qzeros", "scales", "g_idx")  # AWQ has no last one


@dataclass(frozen=True)
class Grouped(Packing):
    """A matrix [N, D] of GPTQ or AWQ."""

    settings: GroupedSettings  # of the checkpoint, with what is subtracted from these zeros
    weight: Stored  # qweight
    zeros: Stored  # qzeros
    scales: Stored  # scales
    index: Stored | None  # g_idx; None: the columns of a group are neighbours

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
        return self.in_order if self.index is None else part(self.index).long()

    @property
    def in_order(self) -> Tensor:
        """The group [D] of each column where those of a group are neighbours."""
        columns = self.shape[1]
        return torch.arange(columns) // (columns if self.settings.group == -1 else self.settings.group)

    def with_index_checked(self, part: Part) -> Grouped:
        """With its index only where it says another order than the plain one. GPTQ-for-LLaMa left zeros there, and
        means that one. Raises UserError for an index that no packer writes, and for none where the order is not
        known."""
        plain, index = self.in_order, self.index
        if index is None or self.settings.method == "awq":
            self._refuse_unknown_order(index is None and int(plain[-1]) > 0, "g_idx is missing")
            return self
        found = part(index).long()
        groups = int(plain[-1]) + 1
        if ((found < 0) | (found >= groups)).any():
            raise broken(f"tensor {printed(index.name)} names groups that are not 0 to {groups - 1}")
        if torch.equal(found, plain):
            return replace(self, index=None)
        if not found.any():
            self._refuse_unknown_order(True, "g_idx is all zero")
            return replace(self, index=None)
        held, wanted = found.bincount(minlength=groups), plain.bincount()
        if not torch.equal(held, wanted):
            group = int((held != wanted).nonzero()[0])
            raise broken(f"tensor {printed(index.name)} puts {held[group]} columns into group {group}, which has "
                         f"{wanted[group]}")  # fmt: skip
        return self

    def _refuse_unknown_order(self, unknown: bool, why: str) -> None:
        if unknown and self.settings.ordered:
            stem = printed(self.weight.name.removesuffix(".qweight"))
            raise UserError(f"{QUANTISATION} has desc_act=true, and {stem}.{why}: the order of its columns is not "
                            f"known. {UNQUANTISED}.")  # fmt: skip

    def stored_zero(self, part: Part) -> int | None:
        """The number that stands for every zero in the file; None: they are not all the same."""
        zeros = numbers_in_words(part(self.zeros), self.settings.bits, 1)
        low, high = zeros.aminmax()
        return int(low) if low == high else None


def _ones(bits: int) -> int:
    """A word of 32 bits each of whose numbers is 1."""
    return sum(1 << place for place in range(0, WORD_BITS, bits))


def with_packed(found: Contents, settings: GroupedSettings) -> Contents:
    """The tensors of a folder with a weight in the place of those that make it up. Raises UserError where these do not
    fit each other, or what config.json says of them."""
    tensors = dict(found.tensors)
    leaves = _LEAVES if settings.method == "gptq" else _LEAVES[:-1]
    packings: dict[str, Grouped] = {}
    for name in [name for name in tensors if name.endswith(".qweight")]:
        stem = name.removesuffix(".qweight")
        if f"{stem}.weight" in tensors and f"{stem}.weight" not in found.unnamed:
            raise broken(f"tensor {printed(stem)}.weight is beside {printed(name)}: which one counts is not known")
        packings[stem] = _packing(stem, {leaf: tensors.pop(f"{stem}.{leaf}", None) for leaf in leaves}, settings)
    if not packings:
        note = f"{QUANTISATION} says {settings.kind}, and no tensor is packed: the weights are read as they are."
        return replace(found, notes=(*found.notes, note))
    with TensorReader({}) as reader:
        packings = {stem: one.with_index_checked(reader.part) for stem, one in packings.items()}
        notes: tuple[str, ...] = ()
        if settings.symmetric is not False:
            packings, notes = _symmetric(packings, settings, reader.part)
    for stem, packing in packings.items():
        tensors[f"{stem}.weight"] = Stored(
            f"{stem}.weight", packing.weight.file, packing.shape, settings.kind, packing
        )  # fmt: skip
    return replace(found, tensors=tensors, notes=(*found.notes, *notes))


def _symmetric(
    packings: Mapping[str, Grouped], settings: GroupedSettings, part: Part
) -> tuple[dict[str, Grouped], tuple[str, ...]]:
    """The matrices with the zeros that symmetric weights have, and a sentence where their format is another than the
    one that is said: published folders have zeros of the second under the name of the first (vllm issue 38966). Raises
    UserError where ``sym`` is true and they are not such zeros."""
    middle = settings.middle
    zeros = {stem: one.stored_zero(part) for stem, one in packings.items()}
    if settings.symmetric is None and {*zeros.values()} not in ({middle}, {middle - 1}):
        return dict(packings), ()
    if odd := [f"{stem}.qzeros" for stem, zero in zeros.items() if zero not in (middle, middle - 1)]:
        raise UserError(
            f"{QUANTISATION} has sym=true, so all zeros are {middle}, and other ones stand in {first_names(odd)}. Set "
            "sym to false there if they are meant, or take another copy."
        )
    out = {
        stem: replace(one, settings=replace(settings, subtracted=middle - zero))
        for stem, one in packings.items() if (zero := zeros[stem]) is not None
    }  # fmt: skip
    other = [stem for stem, one in out.items() if one.settings.subtracted != settings.subtracted]
    said, meant = ("gptq", "gptq_v2") if settings.subtracted else ("gptq_v2", "gptq")
    note = f"checkpoint_format is {said}, and {first_names(other)} have the zeros of {meant}, as which they are read."
    return out, (note,) if other else ()


def _packing(stem: str, parts: Mapping[str, Stored | None], settings: GroupedSettings) -> Grouped:
    weight, zeros, scales, index = (parts.get(leaf) for leaf in _LEAVES)
    if weight is None or zeros is None or scales is None:
        raise broken(f"tensor {printed(stem)}.qweight is there without its qzeros and scales")
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
