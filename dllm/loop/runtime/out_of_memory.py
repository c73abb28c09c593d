"""What fits into a device's memory, found by trying: the sentence for a decode that ran out of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

import psutil
import torch

from dllm.common.errors import Set, TooLarge
from dllm.common.ranks import Ranks
from dllm.contract.canvas import Request


class LacksRoom(torch.OutOfMemoryError):
    """A batch was not admitted, on any rank: none waits in a turn, so all go on alike."""


def refuse_unheld(
    buffers: Iterable[Sequence[int]] | None, dtype: torch.dtype, device: torch.device, ranks: Ranks
) -> None:
    """Raise LacksRoom, on every rank, where one of them lacks the memory for ``buffers`` of these sizes. Each knows its
    own, so the least that is left over counts. One process finds out by itself, where it allocates."""
    if ranks.size == 1 or buffers is None:
        return
    bytes_needed = sum(map(prod, buffers)) * dtype.itemsize
    if (spare := ranks.least(free_bytes(device, ranks.size) - bytes_needed)) < 0:
        raise LacksRoom(f"a rank lacks {-spare} of the {bytes_needed} bytes that keys and values take")


def free_bytes(device: torch.device, ranks: int) -> int:
    """Memory that a rank may still take: on a GPU with what PyTorch keeps of it; of a CPU's its part, as if all
    ``ranks`` were on one machine."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available) // ranks
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def too_large(
    requests: Sequence[Request],
    attempt: Callable[[Sequence[Request]], object],
    device: torch.device,
    dtype: torch.dtype,
) -> TooLarge:
    """Names the batch that fits, or the length if one row does not. attempt: the first turn of requests, which is the
    largest, since it computes everything. dtype: the model's, which may be wider than it must."""

    def fits(fewer: Sequence[Request]) -> bool:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            attempt(fewer)
        except torch.OutOfMemoryError:
            return False
        return True

    place = f"the memory of {device}"
    for rows in halvings(len(requests)):
        if fits(requests[:rows]):
            return TooLarge(
                f"a batch of {len(requests)} does not fit into {place}, but {rows} of it "
                f"{'does' if rows == 1 else 'do'}.",
                [],
                (Set("batch_size", rows),),
            )
    first = requests[0]
    length = len(first.tokens) - first.answer_start
    for shorter in halvings(length):
        if fits([shorten(first, shorter)]):
            return TooLarge(
                f"an answer of {length} tokens after a prompt of {first.answer_start} does not fit into {place}, but "
                f"one of {shorter} does.",
                [],
                (Set("gen_length", shorter),),
            )
    wide = ", model.dtype=bfloat16" if dtype in (torch.float32, torch.float64) else ""
    more = ", or model.device=auto to spread the model over all GPUs" if torch.cuda.device_count() > 1 else ""
    return TooLarge(
        f"a prompt of {first.answer_start} tokens does not fit into {place} beside the model's weights. Use a shorter "
        f"prompt{wide}{more or ', or a smaller model'}."
    )


def halvings(count: int) -> list[int]:
    """Half of ``count``, a quarter, ..., 1."""
    out = []
    while count > 1:
        count //= 2
        out.append(count)
    return out


def shorten(request: Request, length: int) -> Request:
    """The request with the first ``length`` tokens of its answer."""
    end = request.answer_start + length
    return replace(request, tokens=request.tokens[:end], masked=request.masked[:end])
