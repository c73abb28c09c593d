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
from dllm.models.cut import own_part
from dllm.models.fused import FUSED

Read = Callable[[str], Tensor]  # a tensor of the whole model by its name, mapped
Spans = list[tuple[int, int]]  # from and to


def own_tensors(
    own: nn.Module, whole: nn.Module, prefix: str, ranks: Ranks, read: Read
) -> Iterator[tuple[str, Tensor]]:  # fmt: skip
    """By name the tensors of a rank's ``own`` part. own, whole: the part of the rank and of the model, with shapes
    alone. prefix: the part's name."""
    owners = dict(whole.named_modules(prefix=prefix))
    for path, module in own.named_modules(prefix=prefix):
        there = owners[path]
        if isinstance(module, NarrowExperts):
            yield from _experts(path, module, there, ranks, read)
        elif isinstance(module, NarrowLinear | nn.Linear):
            sizes = _sizes(owners, path), _sizes(dict(own.named_modules(prefix=prefix)), path)
            yield from _product(path, module, there, _spans(path, *sizes, ranks), ranks, read)
        else:
            named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            yield from ((f"{path}.{leaf}", read(f"{path}.{leaf}")) for leaf, _ in named)


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


def _spans(path: str, whole: list[int], own: list[int], ranks: Ranks) -> Spans:
    """Which rows of a product a rank holds."""
    if path == "lm_head":
        return [ranks.share(whole[0])]
    found, before = Spans(), 0
    for there, here in zip(whole, own, strict=True):
        begin, end = own_part(there, here, ranks)
        found.append((before + begin, before + end))
        before += there
    return found


def _product(
    path: str, own: nn.Module, whole: nn.Module, spans: Spans, ranks: Ranks, read: Read
) -> Iterator[tuple[str, Tensor]]:  # fmt: skip
    (count, width), (own_count, own_width) = _shape(whole), _shape(own)
    columns = None if width == own_width else own_part(width, own_width, ranks)
    if isinstance(own, NarrowLinear):
        narrow, scale = read(f"{path}.narrow"), read(f"{path}.scale")
        if count != own_count:
            narrow, scale = stored_rows(narrow, scale, spans)
        if columns is not None:
            narrow, scale = stored_columns(narrow, scale, *columns)
        yield from ((f"{path}.narrow", narrow), (f"{path}.scale", scale))
    else:
        weight = _rows(read(f"{path}.weight"), spans)
        yield f"{path}.weight", weight if columns is None else weight[:, slice(*columns)].contiguous()
    if own.bias is not None:
        yield f"{path}.bias", _rows(read(f"{path}.bias"), spans)


def _rows(tensor: Tensor, spans: Spans) -> Tensor:
    return tensor[slice(*spans[0])] if len(spans) == 1 else torch.cat([tensor[slice(*span)] for span in spans])


def _experts(
    path: str, own: NarrowExperts, whole: nn.Module, ranks: Ranks, read: Read
) -> Iterator[tuple[str, Tensor]]:  # fmt: skip
    """Whole experts, or a part of each: half of their rows is the gate's, the other half is what it opens."""
    assert isinstance(whole, NarrowExperts)
    found = {leaf: read(f"{path}.{leaf}") for leaf, _ in own.named_buffers()}
    if len(own.down) != len(whole.down):
        yield from ((f"{path}.{leaf}", tensor[slice(*ranks.share(len(tensor)))]) for leaf, tensor in found.items())
        return
    rows, own_rows = (one.gate_up.shape[1] // 2 for one in (whole, own))
    if rows == own_rows:
        yield from ((f"{path}.{leaf}", tensor) for leaf, tensor in found.items())
        return
    begin, end = own_part(rows, own_rows, ranks)
    halves = [(begin, end), (rows + begin, rows + end)]
    for leaf in ("gate_up", "down"):
        pairs = [stored_rows(*pair, halves) if leaf == "gate_up" else stored_columns(*pair, begin, end)
                 for pair in zip(found[leaf], found[f"{leaf}_scale"], strict=True)]  # fmt: skip
        narrow, scale = map(torch.stack, zip(*pairs, strict=True))
        yield from ((f"{path}.{leaf}", narrow), (f"{path}.{leaf}_scale", scale))
