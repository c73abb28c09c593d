"""``device=auto``: which part of a model is on which GPU, or in the CPU's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psutil
import torch

from dllm.common.errors import UserError
from dllm.models.network.experts import Experts
from dllm.models.network.transformer import Transformer
from dllm.models.weights.footprint import gib

ROOM = 2 << 30  # bytes kept free on each GPU for keys, values, logits and what is being read
_COPIED = 25e9  # bytes in a second from the CPU's memory to a GPU: PCIe 4.0 with 16 lanes, of whose 31.5 GB/s 25 arrive
CPU = "cpu"


def device_map(model: Transformer, dtype: torch.dtype, parts: Sequence[str]) -> dict[str, str]:
    """The device of each of the ``parts`` of a model on the meta device, in the order in which rows pass them: on one
    GPU where that holds it, else on all, each as full as the others, for what is left holds keys and values; what no
    GPU holds is in the CPU's memory. Raises UserError where that is too small."""
    sizes, room = [_bytes(model, name, dtype) for name in parts], room_on_gpu(model, dtype)
    if model.config.tied:
        sizes[parts.index("lm_head")] = 0  # it is the embedding
    gpus, memory = free_memory()
    places = _on_gpus(sizes, [max(0, free - room) for free in gpus]) or _filled(sizes, gpus, room)
    placement = {name: CPU if place is None else f"cuda:{place}" for name, place in zip(parts, places, strict=True)}
    if model.config.tied:
        placement["lm_head"] = placement["embed"]
    offloaded = sum(size for size, place in zip(sizes, places, strict=True) if place is None)
    if offloaded > memory:
        raise UserError(
            f"the model takes {gib(sum(sizes))} in {str(dtype).removeprefix('torch.')}, and the {len(gpus)} GPUs and "
            f"the CPU have {gib(sum(gpus) + memory)} free. Use a smaller dtype, or more GPUs."
        )
    return placement


def offloaded_words(model: Transformer, placement: dict[str, str], dtype: torch.dtype) -> str:
    """A sentence where a part of the model is in the CPU's memory and the rest on GPUs; empty: it does not."""
    if len({*placement.values()}) < 2 or CPU not in placement.values():
        return ""
    count = sum(_bytes(model, name, dtype) for name, place in placement.items() if place == CPU)
    return (
        f"{count / 1e9:.1f} GB of the weights do not fit on the GPUs and lie in the CPU's memory: every forward copies "
        f"them over, which takes about {count / _COPIED:.1f} s at {_COPIED / 1e9:.0f} GB/s. Use a smaller dtype, "
        "or more GPUs."
    )


def free_memory() -> tuple[list[int], int]:
    """Free bytes of each GPU, and of the CPU's memory."""
    gpus = [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]
    return gpus, psutil.virtual_memory().available


def room_on_gpu(model: Transformer, dtype: torch.dtype) -> int:
    """Bytes kept free on each GPU: ``ROOM``, and the experts of a layer, which are in memory twice while they are put
    into one tensor (6.4 GB of LLaDA2.0-flash in bfloat16)."""
    experts = [name for name, part in model.named_modules() if isinstance(part, Experts)]
    return ROOM + max((_bytes(model, name, dtype) for name in experts), default=0)


def _bytes(model: Transformer, name: str, dtype: torch.dtype) -> int:
    return sum(parameter.numel() for parameter in model.get_submodule(name).parameters()) * dtype.itemsize


def _on_gpus(sizes: Sequence[int], free: Sequence[int]) -> list[int | None]:
    """Places on one GPU, or on all under the lowest bound that none exceeds; empty: they do not hold all."""
    if alone := _under(sizes, free[:1]):
        return alone
    low, high = 0, max(free, default=0)
    while high - low > 1:
        middle = (low + high) // 2
        fits = bool(_under(sizes, [min(room, middle) for room in free]))
        low, high = (low, middle) if fits else (middle, high)
    return _under(sizes, [min(room, high) for room in free])


def _under(sizes: Sequence[int], bounds: Sequence[int]) -> list[int | None]:
    """Places of parts in their order, each GPU filled up to its bound; empty: they do not fit."""
    places = list(_greedy(sizes, bounds))
    return [] if None in places else places


def _filled(sizes: Sequence[int], gpus: Sequence[int], room: int) -> list[int | None]:
    """As much on the GPUs as there is room; on the first one for a part that is copied over, too."""
    reserves = [room + (max(sizes) if number == 0 else 0) for number in range(len(gpus))]
    return list(_greedy(sizes, [max(0, free - less) for free, less in zip(gpus, reserves, strict=True)]))


def _greedy(sizes: Sequence[int], bounds: Sequence[int]) -> Iterator[int | None]:
    place, room = 0, [*bounds]
    for size in sizes:
        while place < len(room) and size > room[place]:
            place += 1
        if place < len(room):
            room[place] -= size
        yield place if place < len(room) else None
