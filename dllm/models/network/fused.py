"""Matrices that multiply the same rows in one tensor: q, k and v; gate and up; the experts of a layer.

At batch 1 a product takes the time of reading its weights, and a few microseconds in which a GPU starts it: two
products fewer for q, k and v, and one fewer for gate and up, are 96 launches of an 8B model. Experts in one tensor are
multiplied without asking the host which of them run. Files and training have the matrices as ``apart`` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dllm.kernels.stepped import SteppedLinear, has_steps
from dllm.models.network.experts import MLP, Experts, MoE, StackedExperts

FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


@torch.inference_mode(False)
def fuse_products(model: nn.Module, meta: bool = False) -> None:
    """Fuse all such sets in place. Those that are quantised, or that accelerate fetches for each forward, stay. meta:
    fuse the shapes of a model without weights."""
    for module in list(model.modules()):
        if isinstance(module, MoE) and isinstance(module.experts, Experts) and not has_steps(module.experts):
            module.experts = stacked(module.experts, meta)
    for module in list(model.modules()):
        for name, parts in FUSED.items():
            if getattr(module, name, module) is not None:  # no such set, or it is one product already
                continue
            linears = [module.get_submodule(part) for part in parts]
            if are_plain(linears, meta):
                setattr(module, name, joint_linear(cast("list[nn.Linear]", linears)))
            elif any(isinstance(linear, SteppedLinear) for linear in linears):
                setattr(module, name, SteppedLinear.joined(linears))
            else:
                continue
            for part in parts:
                delattr(module, part)


def joint_linear(parts: Sequence[nn.Linear]) -> nn.Linear:
    """A linear layer whose outputs are those of all ``parts``, in order."""
    first = parts[0]
    with torch.device("meta"):
        whole = nn.Linear(first.in_features, sum(part.out_features for part in parts), first.bias is not None)
    for leaf, _ in first.named_parameters():
        rows = torch.cat([part.get_parameter(leaf).detach() for part in parts])
        setattr(whole, leaf, nn.Parameter(rows, first.weight.requires_grad))
    return whole.train(first.training)


def stacked(experts: Experts, meta: bool = False) -> nn.Module:
    """The experts in two tensors; each is dropped when it has been copied."""
    first = cast("MLP", experts[0])
    if not are_plain([part for part in experts.modules() if isinstance(part, nn.Linear)], meta):
        return experts
    (inner, width), like = first.gate.weight.shape, first.gate.weight.detach()
    gate_up, down = like.new_empty(len(experts), 2 * inner, width), like.new_empty(len(experts), width, inner)
    for number, expert in enumerate(cast("list[MLP]", list(experts))):
        torch.cat([expert.gate.weight.detach(), expert.up.weight.detach()], out=gate_up[number])
        down[number] = expert.down.weight.detach()
        experts[number] = nn.Identity()
    return StackedExperts(gate_up, down).eval()


def open_stacks(part: nn.Module, prefix: str, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Replace a part's experts, which are on the meta device, by empty stacks. Returns where in them each
    expert's matrix goes, by the name that it has before: so no layer's experts are in memory twice."""
    room = dict[str, Tensor]()
    for name, module in list(part.named_modules(prefix=prefix)):
        if not (isinstance(module, MoE) and isinstance(module.experts, Experts)):
            continue
        first, count = cast("MLP", module.experts[0]).gate.weight, len(module.experts)
        inner, width = first.shape
        gate_up = torch.empty(count, 2 * inner, width, dtype=dtype, device=device)
        down = torch.empty(count, width, inner, dtype=dtype, device=device)
        module.experts = StackedExperts(gate_up, down).eval()
        for number in range(count):
            gate, up = gate_up[number].chunk(2)
            stem = f"{name}.experts.{number}"
            room |= {f"{stem}.gate.weight": gate, f"{stem}.up.weight": up, f"{stem}.down.weight": down[number]}
    return room


def are_plain(linears: Sequence[nn.Module], meta: bool) -> bool:
    """Whether all are plain linear layers whose weights are here, or, with meta, nowhere."""
    return all(type(linear) is nn.Linear and linear.weight.is_meta == meta for linear in linears)


def apart(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters by the names that they have before ``fuse_products``. Parts of a fused one are views of it."""
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        owner, _, last = path.rpartition(".")
        owning = model.get_submodule(path)
        if isinstance(owning, StackedExperts) and not owning.as_stored:
            for number, matrix in enumerate(parameter):
                halves = zip(FUSED[leaf], matrix.chunk(2), strict=True) if leaf in FUSED else [(leaf, matrix)]
                yield from ((f"{path}.{number}.{part}.weight", value) for part, value in halves)
        elif last in FUSED:
            sizes = cast("list[int]", model.get_submodule(owner).sizes)
            for part, value in zip(FUSED[last], parameter.split(sizes), strict=True):
                yield f"{owner}.{part}.{leaf}", value
        else:
            yield name, parameter
