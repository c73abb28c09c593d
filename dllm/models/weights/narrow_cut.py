"""What a rank holds of weights that ``task=quantize`` has stored: its rows and columns, cut out of the mapped file.

Nothing is rounded again. Scales of eight bits go with the outputs, over whichever columns, so the products of ranks add
up to the whole's; four bits are cut between their groups of 32 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from dllm.common.ranks import Ranks
from dllm.kernels.narrow_experts import NarrowExperts
from dllm.kernels.narrow_linear import NarrowLinear, stored_columns, stored_rows
from dllm.models.network.fused import FUSED
from dllm.models.weights.cut import local_part

ReadTensor = Callable[[str], Tensor]  # a tensor of the whole model by its name, mapped
Spans = list[tuple[int, int]]  # from and to
Tensors = dict[str, Tensor]  # of a module, by leaf


def local_tensors(
    local: nn.Module, whole: nn.Module, prefix: str, ranks: Ranks, read: ReadTensor
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a rank's part by name. local, whole: the part of the rank and of the model, with shapes
    alone. prefix: the part's name."""
    there, here = (dict(tree.named_modules(prefix=prefix)) for tree in (whole, local))
    for path, module in here.items():
        leaves = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        tensors = {leaf: read(f"{path}.{leaf}") for leaf, _ in leaves}
        if isinstance(module, NarrowExperts):
            tensors = _experts(tensors, module, there[path], ranks)
        elif isinstance(module, NarrowLinear | nn.Linear):
            spans = _spans(path, _sizes(there, path), _sizes(here, path), ranks)
            tensors = _product(tensors, _shape(there[path]), _shape(module), spans, ranks)
        yield from ((f"{path}.{leaf}", tensor) for leaf, tensor in tensors.items())


def _sizes(modules: dict[str, nn.Module], path: str) -> list[int]:
    """Outputs of a product; of a fused one those of each."""
    owner, _, name = path.rpartition(".")
    return cast("list[int]", modules[owner].sizes) if name in FUSED else [_shape(modules[path])[0]]


def _shape(product: nn.Module) -> tuple[int, int]:
    """Outputs and inputs."""
    if isinstance(product, NarrowLinear):
        count, width = product.narrow.shape
        return count, width if product.bits == 8 else 2 * width
    count, width = product.get_parameter("weight").shape
    return count, width


def _spans(path: str, whole: list[int], local: list[int], ranks: Ranks) -> Spans:
    """Which rows of a product a rank holds."""
    if path == "lm_head":
        return [ranks.share(whole[0])]
    spans, before = Spans(), 0
    for there, here in zip(whole, local, strict=True):
        begin, end = local_part(there, here, ranks)
        spans.append((before + begin, before + end))
        before += there
    return spans


def _product(tensors: Tensors, whole: tuple[int, int], local: tuple[int, int], spans: Spans, ranks: Ranks) -> Tensors:
    """A product's tensors, cut from outputs and inputs ``whole`` to ``local``."""
    rows = spans if whole[0] != local[0] else None
    columns = None if whole[1] == local[1] else local_part(whole[1], local[1], ranks)
    if "narrow" in tensors:
        pair = tensors["narrow"], tensors["scale"]
        pair = pair if rows is None else stored_rows(*pair, rows)
        pair = pair if columns is None else stored_columns(*pair, *columns)
        tensors |= zip(("narrow", "scale"), pair, strict=True)
    elif columns is not None:
        tensors["weight"] = tensors["weight"][:, slice(*columns)].contiguous()
    for leaf in [leaf for leaf in ("weight", "bias") if leaf in tensors and rows is not None]:
        parts = [tensors[leaf][slice(*span)] for span in spans]
        tensors[leaf] = parts[0] if len(parts) == 1 else torch.cat(parts)  # one part stays in the file's own pages
    return tensors


def _experts(tensors: Tensors, local: NarrowExperts, whole: nn.Module, ranks: Ranks) -> Tensors:
    """Whole experts, or a part of each: half of their rows is the gate's, the other half is what it opens."""
    assert isinstance(whole, NarrowExperts)
    if len(local.down) != len(whole.down):
        return {leaf: tensor[slice(*ranks.share(len(tensor)))] for leaf, tensor in tensors.items()}
    rows, local_rows = (experts.gate_up.shape[1] // 2 for experts in (whole, local))
    if rows == local_rows:
        return tensors
    begin, end = local_part(rows, local_rows, ranks)
    halves = [(begin, end), (rows + begin, rows + end)]
    for leaf in ("gate_up", "down"):
        pairs = [
            stored_rows(*pair, halves) if leaf == "gate_up" else stored_columns(*pair, begin, end)
            for pair in zip(tensors[leaf], tensors[f"{leaf}_scale"], strict=True)
        ]
        tensors[leaf], tensors[f"{leaf}_scale"] = map(torch.stack, zip(*pairs, strict=True))
    return tensors
