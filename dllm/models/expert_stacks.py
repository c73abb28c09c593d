"""Experts that a file holds otherwise than the published checkpoint: all in one tensor, or each by itself, or gate and
up apart.

mlx_lm stacks the experts of Qwen3-MoE's kind (``mlp.switch_mlp.gate_proj`` [E, f, D]) and those of Gemma 4
(``experts.switch_glu.gate_proj``); llm-compressor has a module for each, where DiffusionGemma's published tensors are
``experts.gate_up_proj`` [E, 2 f, D] and ``experts.down_proj`` [E, D, f]. llama.cpp may split gate from up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm.models.affine import Scaled
from dllm.models.config import ModelConfig
from dllm.models.files import Contents, Stored, broken
from dllm.models.keys import printed
from dllm.models.packing import Packing, Part

_STACK = re.compile(r"(.+\.mlp)\.switch_mlp\.(gate|up|down)_proj\.weight")
_ROUTER = re.compile(r"(.+\.mlp\.gate)\.gate_proj\.(weight|bias)")  # mlx_lm's of Ling, which LLaDA2 is
_OF_GEMMA = re.compile(r"(.+\.experts)\.(?:switch_glu\.|(\d+)\.)?(gate_up|gate|up|down)_proj\.weight")


@dataclass(frozen=True)
class OneExpert(Packing):
    """A matrix of a plain tensor [E, N, D]."""

    stack: Stored  # of all experts
    number: int  # of the expert

    @property
    def bytes(self) -> int:
        return self.stack.bytes // self.stack.shape[0]

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        return part(self.stack, slice(self.number, self.number + 1), slice(begin, end))[0]


@dataclass(frozen=True)
class JoinedRows(Packing):
    """A tensor [E, N, D] whose rows are those of several, one after the other: of whole stacks, or of the matrices of
    each expert."""

    stacks: tuple[Stored, ...] = ()  # each [E, n, D]; empty: there are matrices
    matrices: tuple[tuple[Stored, ...], ...] = ()  # of each expert those that it has, each [n, D]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for group in (self.stacks, *self.matrices) for one in group)

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        if self.stacks:
            return torch.cat([_read(one, part, begin, end) for one in self.stacks], 1)
        return torch.stack([torch.cat([_read(one, part, 0, one.shape[0]) for one in group])
                            for group in self.matrices[begin:end]])  # fmt: skip


def _read(stored: Stored, part: Part, begin: int, end: int) -> Tensor:
    if stored.packing is not None:
        return stored.packing.numbers(part, begin, end)
    return part(stored, slice(begin, end)).float()


def with_published_experts(found: Contents, config: ModelConfig) -> Contents:
    """The tensors of a folder with its experts as the published checkpoint has them. Raises UserError for experts that
    are not all there, or differ in shape."""
    if config.moe is None:
        return found
    tensors = dict(found.tensors)
    if config.gemma is not None:
        _as_gemma(tensors, config.moe.experts)
    else:
        _apart(tensors)
    return replace(found, tensors=tensors)


def _apart(tensors: dict[str, Stored]) -> None:
    for name in list(tensors):
        if found := _ROUTER.fullmatch(name):
            leaf = "weight" if found[2] == "weight" else "expert_bias"
            one = tensors.pop(name)
            tensors[f"{found[1]}.{leaf}"] = one
        elif (found := _STACK.fullmatch(name)) and len(tensors[name].shape) == 3:
            stack = tensors.pop(name)
            for number in range(stack.shape[0]):
                own = f"{found[1]}.experts.{number}.{found[2]}_proj.weight"
                tensors[own] = _one_of(stack, number, own)


def _one_of(stack: Stored, number: int, name: str) -> Stored:
    if stack.packing is None:
        packing: Packing = OneExpert(stack, number)
    else:
        assert isinstance(stack.packing, Scaled), "nothing else packs three sizes under these names"
        packing = replace(stack.packing, expert=number)
    return Stored(name, stack.file, stack.shape[1:], stack.dtype, packing)


def _as_gemma(tensors: dict[str, Stored], count: int) -> None:
    """Puts the published pair of tensors in the place of a layer's experts."""
    places: dict[str, dict[str, dict[int | None, Stored]]] = {}
    for name in list(tensors):
        if found := _OF_GEMMA.fullmatch(name):
            number = None if found[2] is None else int(found[2])
            places.setdefault(found[1], {}).setdefault(found[3], {})[number] = tensors.pop(name)
    for place, kinds in places.items():
        for published, parts in (("gate_up", ("gate_up",)), ("gate_up", ("gate", "up")), ("down", ("down",))):
            if all(part in kinds for part in parts):
                name = f"{place}.{published}_proj"
                tensors[name] = _joined(name, [kinds.pop(part) for part in parts], count)
        if kinds:
            held = [f"{kind}_proj" for kind in kinds]
            raise broken(f"{printed(place)} has {' and '.join(held)} without the rest of an expert")


def _joined(name: str, held: list[dict[int | None, Stored]], count: int) -> Stored:
    wanted: set[int | None] = {*range(count)}
    first = next(iter(held[0].values()))
    if all(one.keys() == {None} for one in held):
        stacks = tuple(one[None] for one in held)
        if len(stacks) == 1:
            return replace(first, name=name) if first.packing is not None else first
        shapes, packing = [one.shape for one in stacks], JoinedRows(stacks)
        if len({(len(one), one[:1], one[2:]) for one in shapes}) > 1 or len(shapes[0]) != 3:
            raise broken(f"the tensors that make up {printed(name)} have shapes {' and '.join(map(str, shapes))}")
        return Stored(
            name, first.file, (shapes[0][0], sum(one[1] for one in shapes), shapes[0][2]), first.dtype, packing
        )
    if any(one.keys() != wanted for one in held):
        raise broken(f"{printed(name)} is made up of {max(map(len, held))} experts, and config.json has {count}")
    matrices = tuple(tuple(one[number] for one in held) for number in range(count))
    if (
        len({tuple(one.shape for one in group) for group in matrices}) > 1
        or len({one.shape[1:] for one in matrices[0]}) > 1
    ):
        raise broken(f"the experts that make up {printed(name)} differ in shape")
    rows = sum(one.shape[0] for one in matrices[0])
    return Stored(name, first.file, (count, rows, *first.shape[1:]), first.dtype, JoinedRows((), matrices))
