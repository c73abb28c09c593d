"""Products of the same rows as one product: q, k and v; gate and up.

At batch 1 a product takes the time of reading its weights, and a few microseconds in which a GPU starts it: two
products fewer for q, k and v, and one fewer for gate and up, are 96 launches of an 8B model. Files and training keep
the matrices apart; ``apart`` gives them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


@torch.inference_mode(False)
def fuse_products(model: nn.Module) -> None:
    """Put the weights of every such set of linear layers below each other, in place. Sets that are quantised or that
    accelerate fetches for each forward stay as they are."""
    for module in list(model.modules()):
        for name, parts in FUSED.items():
            if getattr(module, name, module) is not None:  # no such set, or it is one product already
                continue
            linears = [module.get_submodule(part) for part in parts]
            if any(type(one) is not nn.Linear or one.weight.is_meta for one in linears):
                continue
            first = cast("nn.Linear", linears[0])
            with torch.device("meta"):
                whole = nn.Linear(first.in_features, sum(sizes_of(module)), first.bias is not None)
            for leaf, _ in first.named_parameters():
                rows = torch.cat([one.get_parameter(leaf).detach() for one in linears])
                setattr(whole, leaf, nn.Parameter(rows, first.weight.requires_grad))
            setattr(module, name, whole.train(first.training))
            for part in parts:
                delattr(module, part)


def apart(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters by the names that they have before ``fuse_products``. Parts of a fused one are views of it."""
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        owner, _, last = path.rpartition(".")
        if last not in FUSED:
            yield name, parameter
            continue
        parts = parameter.split(sizes_of(model.get_submodule(owner)))
        for part, value in zip(FUSED[last], parts, strict=True):
            yield f"{owner}.{part}.{leaf}", value


def sizes_of(module: nn.Module) -> list[int]:
    """Outputs of each part of a module's fused product."""
    return cast("list[int]", module.sizes)
