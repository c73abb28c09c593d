"""What fits into a device's memory, found by trying: the sentence for a decode that ran out of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from dllm.contract.canvas import Request
from dllm.errors import TooLarge


def too_large(
    requests: Sequence[Request], attempt: Callable[[Sequence[Request]], object], device: torch.device,
    dtype: torch.dtype,
) -> TooLarge:  # fmt: skip
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
            return TooLarge(f"a batch of {len(requests)} does not fit into {place}, but {rows} of it "
                             f"{'does' if rows == 1 else 'do'}. Use batch_size={rows}.")  # fmt: skip
    first = requests[0]
    length = len(first.tokens) - first.answer_start
    for shorter in halvings(length):
        if fits([shortened(first, shorter)]):
            return TooLarge(f"an answer of {length} tokens after a prompt of {first.answer_start} does not fit into "
                             f"{place}, but one of {shorter} does. Use gen_length={shorter}.")  # fmt: skip
    wide = ", model.dtype=bfloat16" if dtype in (torch.float32, torch.float64) else ""
    more = ", or model.device=auto to spread the model over all GPUs" if torch.cuda.device_count() > 1 else ""
    return TooLarge(
        f"a prompt of {first.answer_start} tokens does not fit into {place} beside the model's weights. Use a shorter "
        f"prompt{wide}{more or ', or a smaller model'}.")  # fmt: skip


def halvings(count: int) -> list[int]:
    """Half of ``count``, a quarter, ..., 1."""
    out = []
    while count > 1:
        count //= 2
        out.append(count)
    return out


def shortened(request: Request, length: int) -> Request:
    """The request with the first ``length`` tokens of its answer."""
    end = request.answer_start + length
    return replace(request, tokens=request.tokens[:end], masked=request.masked[:end])
