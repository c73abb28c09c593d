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

from dllm.models.config import ModelConfig
from dllm.models.formats.affine import Scaled
from dllm.models.formats.gguf_packing import GgufPacking
from dllm.models.formats.packing import Packing, Part
from dllm.models.keys import printed
from dllm.models.weights.files import Contents, StoredTensor, broken

_STACK = re.compile(r"(.+\.mlp)\.switch_mlp\.(gate|up|down)_proj\.weight")
_ROUTER = re.compile(r"(.+\.mlp\.gate)\.gate_proj\.(weight|bias)")  # mlx_lm's of Ling, which LLaDA2 is
_OF_GEMMA = re.compile(r"(.+\.experts)\.(?:switch_glu\.|(\d+)\.)?(gate_up|gate|up|down)_proj\.weight")


@dataclass(frozen=True)
class OneExpert(Packing):
    """A matrix of a plain tensor [E, N, D]."""

    stack: StoredTensor  # of all experts
    number: int  # of the expert

    @property
    def bytes(self) -> int:
        return self.stack.bytes // self.stack.shape[0]

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        return part(self.stack, slice(self.number, self.number + 1), slice(begin, end))[0].float()


@dataclass(frozen=True)
class JoinedRows(Packing):
    """A tensor [E, N, D] whose rows are those of several matrices of each expert, one after the other."""

    experts: tuple[tuple[StoredTensor, ...], ...]  # the matrices [n, D] of each

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for group in self.experts for tensor in group)

    def numbers(self, part: Part, begin: int, end: int) -> Tensor:
        return torch.stack(
            [torch.cat([_numbers(tensor, part) for tensor in group]) for group in self.experts[begin:end]]
        )


def _numbers(tensor: StoredTensor, part: Part) -> Tensor:
    rows = tensor.shape[0]
    return part(tensor).float() if tensor.packing is None else tensor.packing.numbers(part, 0, rows)


def with_published_experts(contents: Contents, config: ModelConfig) -> Contents:
    """The tensors of a folder with its experts as the published checkpoint has them. Raises UserError for experts that
    are not all there, or differ in shape."""
    if config.moe is None:
        return contents
    tensors = dict(contents.tensors)
    if config.gemma is not None:
        _as_gemma(tensors, config.moe.experts)
    else:
        _apart(tensors)
    return replace(contents, tensors=tensors)


def _apart(tensors: dict[str, StoredTensor]) -> None:
    for name in list(tensors):
        if match := _ROUTER.fullmatch(name):
            leaf = "weight" if match[2] == "weight" else "expert_bias"
            tensors[f"{match[1]}.{leaf}"] = tensors.pop(name)
        elif (match := _STACK.fullmatch(name)) and len(tensors[name].shape) == 3:
            for number, expert in enumerate(_experts_of(tensors.pop(name))):
                key = f"{match[1]}.experts.{number}.{match[2]}_proj.weight"
                tensors[key] = replace(expert, name=key)


def _experts_of(stack: StoredTensor) -> tuple[StoredTensor, ...]:
    """The matrix of each expert in a tensor [E, N, D]."""
    packing, numbers, rows = stack.packing, range(stack.shape[0]), stack.shape[1]
    packings: list[Packing]
    if packing is None:
        packings = [OneExpert(stack, number) for number in numbers]
    elif isinstance(packing, GgufPacking):
        packings = [replace(packing, rows=rows, first=number * rows, stacked=False) for number in numbers]
    else:
        assert isinstance(packing, Scaled), "nothing else packs three sizes under these names"
        packings = [replace(packing, expert=number) for number in numbers]
    return tuple(StoredTensor(stack.name, stack.file, stack.shape[1:], stack.dtype, each) for each in packings)


def _as_gemma(tensors: dict[str, StoredTensor], count: int) -> None:
    """Replaces a layer's experts by the published pair of tensors."""
    places: dict[str, dict[str, dict[int | None, StoredTensor]]] = {}
    for name in list(tensors):
        if match := _OF_GEMMA.fullmatch(name):
            number = None if match[2] is None else int(match[2])
            places.setdefault(match[1], {}).setdefault(match[3], {})[number] = tensors.pop(name)
    for place, kinds in places.items():
        for published, parts in (("gate_up", ("gate_up",)), ("gate_up", ("gate", "up")), ("down", ("down",))):
            if all(part in kinds for part in parts):
                name = f"{place}.{published}_proj"
                tensors[name] = _joined(name, [kinds.pop(part) for part in parts], count)
        if kinds:
            names = [f"{kind}_proj" for kind in kinds]
            raise broken(f"{printed(place)} has {' and '.join(names)} without the rest of an expert")


def _joined(name: str, groups: list[dict[int | None, StoredTensor]], count: int) -> StoredTensor:
    numbers: set[int | None] = {*range(count)}
    first = next(iter(groups[0].values()))
    if groups[0].keys() == {None} and len(groups) == 1:
        return first if first.packing is None else replace(first, name=name)
    parts = []
    for group in groups:
        stack = group.get(None)
        if stack is None and group.keys() != numbers:
            raise broken(f"{printed(name)} is made up of {max(map(len, groups))} experts, and config.json has {count}")
        if stack is not None and len(stack.shape) != 3:  # noqa: PLR2004
            raise broken(f"{printed(stack.name)} has shape {list(stack.shape)}, not those of experts")
        parts.append([group[number] for number in range(count)] if stack is None else _experts_of(stack))
    shapes = {tuple(part.shape for part in expert) for expert in zip(*parts, strict=False)}
    if len(set(map(len, parts))) > 1 or len(shapes) != 1 or len({shape[1:] for shape in next(iter(shapes))}) > 1:
        raise broken(f"the experts that make up {printed(name)} differ in number or shape")
    experts = tuple(zip(*parts, strict=True))
    rows = sum(part.shape[0] for part in experts[0])
    return StoredTensor(
        name, first.file, (len(experts), rows, *experts[0][0].shape[1:]), first.dtype, JoinedRows(experts)
    )
