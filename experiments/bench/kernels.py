"""Time every kernel beside its reference, and print its share of the ceiling: ``python -m experiments.bench.kernels``.

Per kernel and shape: microseconds (median and 95th percentile of ``--repeats``), GB/s and TFLOP/s of what it must at
least read, write and multiply, and the share of the ceiling that a large copy and a large matrix product reach on this
machine. On a CPU only the references are timed, at smaller shapes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dllm.kernels import (
    add_norm,
    credit,
    grouped_product,
    gumbel_argmax,
    head_statistics,
    rope_scatter,
    row_statistics,
    silu_times,
)
from dllm.kernels.dispatch import use_triton
from dllm.record.cost import Machine, measured_rates

Run = Callable[[bool], object]


@dataclass(frozen=True)
class Case:
    """``run(triton)`` must at least move ``moved`` bytes and do ``flops`` operations."""

    name: str
    shape: str
    run: Run
    moved: float
    flops: float = 0.0


def nbytes(*tensors: Tensor) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def cases(small: bool, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """LLaDA-8B's shapes (32 heads of 128, width 4,096, 126,464 tokens), or an eighth of them."""
    width, heads, size, vocabulary = (512, 4, 128, 15_808) if small else (4096, 32, 128, 126_464)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    for rows in (32,) if small else (32, 256, 1024):
        logits = noise(rows, vocabulary)
        yield Case(
            "row_statistics",
            f"{rows} x {vocabulary}",
            lambda on, z=logits: row_statistics.row_statistics(z, triton=on),
            nbytes(logits),
        )
    weight = noise(vocabulary, width)
    for rows in (32,) if small else (16, 32, 64, 128, 256, 512):
        hidden = noise(rows, width)
        flops = 2.0 * rows * width * vocabulary
        both = nbytes(weight, hidden)
        yield Case(
            "head, fused",
            f"{rows} rows",
            lambda on, h=hidden: head_statistics.fused_head(h, weight) if on else head_statistics.reference(h, weight),
            both,
            flops,
        )
        yield Case(
            "head, chunked",
            f"{rows} rows",
            lambda on, h=hidden: head_statistics.chunked_head(
                h, lambda x: head_statistics.logits_of(x, weight), triton=on
            ),
            both,
            flops,
        )
    yield from layer_cases(small, device, width, heads, size, noise)
    experts, inner = (8, 64) if small else (64, 1024)  # of LLaDA-MoE; each row meets 8
    stack = noise(experts, 2 * inner, width // 2)
    for rows in (32,) if small else (256, 2048):
        x, ends = noise(rows, width // 2), torch.arange(1, experts + 1, device=device) * (rows // experts)
        yield Case(
            "grouped_product",
            f"{rows} rows, {experts} experts",
            lambda on, a=x, e=ends: grouped_product.grouped_product(a, stack, e, on),
            nbytes(stack, x) + 2 * rows * 2 * inner,
            4.0 * rows * inner * width // 2,
        )
    rows = 32
    logits, state = noise(rows, vocabulary).double(), torch.arange(rows, device=device)
    yield Case(
        "gumbel_argmax",
        f"{rows} x {vocabulary}",
        lambda on: gumbel_argmax.gumbel_argmax(logits, state, state >= 0, on),
        nbytes(logits),
    )
    yield from small_cases(device, vocabulary, noise)


def layer_cases(
    small: bool, device: torch.device, width: int, heads: int, size: int, noise: Callable[..., Tensor]
) -> Iterator[Case]:
    """Kernels of a layer beside its products."""
    gain = noise(width)
    for rows in (32,) if small else (32, 256, 8192):
        x, residual = noise(rows, width), noise(rows, width)
        yield Case(
            "add_norm",
            f"{rows} x {width}",
            lambda on, a=x, b=residual: add_norm.add_norm(a, b, gain, 1e-5, None, on),
            4 * nbytes(x),
        )
        gate_up = noise(rows, 6 * width)
        yield Case(
            "silu_times",
            f"{rows} x {3 * width}",
            lambda on, a=gate_up: silu_times.silu_times(*a.chunk(2, -1), triton=on),
            1.5 * nbytes(gate_up),
        )
        q, k, v = (noise(1, rows, heads, size) for _ in range(3))
        keys, values = noise(1, heads, 2 * rows, size), noise(1, heads, 2 * rows, size)
        angle = torch.rand(1, rows, 1, size, device=device)
        columns = torch.randperm(2 * rows, device=device)[None, :rows]
        yield Case(
            "rope_scatter",
            f"{rows} tokens",
            lambda on, q=q, k=k, v=v, c=angle, s=columns, a=keys, b=values: rope_scatter.rope_scatter(
                q, k, v, c, c, s, a, b, True, triton=on
            ),
            2 * nbytes(q, k, v),
        )


def small_cases(device: torch.device, vocabulary: int, noise: Callable[..., Tensor]) -> Iterator[Case]:
    """Kernels on the rows of one block."""
    rows, slots = 32, credit.SLOTS
    logits = noise(1, rows, vocabulary).float()
    committable = torch.ones(1, rows, dtype=torch.bool, device=device)
    found = row_statistics.row_statistics(logits[0])
    ids = torch.randint(0, vocabulary, (rows, slots), device=device)
    held, one = torch.rand(rows, slots, device=device).double(), torch.ones(rows, device=device).double()
    picked = logits[0].gather(1, ids)
    yield Case(
        "sparse_credit",
        f"{rows} x {slots} slots",
        lambda on: credit.sparse_credit(
            picked, found["token"], found["first"], found["logsumexp"], ids, held, committable[0], one, one, one, on
        ),
        2 * nbytes(ids, held) + nbytes(picked),
    )


def timed(run: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float]:
    """Median and 95th percentile in seconds.

    On a GPU, of a call that finds its inputs in memory and its launches queued: a large fill empties the second cache
    (50 MB on an H100), and the host launches while a wait of about a millisecond runs.
    """
    times, others = [], torch.empty(256 << 20, dtype=torch.uint8, device=device) if device.type == "cuda" else None
    for turn in range(repeats + 3):
        if others is not None:
            others.zero_()
            torch.cuda._sleep(2_000_000)  # cycles
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            seconds = begin.elapsed_time(end) / 1000
        else:
            began = time.perf_counter()
            run()
            seconds = time.perf_counter() - began
        if turn > 2:
            times.append(seconds)
    times.sort()
    return times[len(times) // 2], times[int(0.95 * (len(times) - 1))]


def figures(case: Case, times: tuple[float, float], machine: Machine) -> dict[str, float]:
    """Microseconds, GB/s, TFLOP/s, the share of the machine's rates that bound the case, and that of the copy's."""
    middle, late = times
    return {
        "p50_us": 1e6 * middle,
        "p95_us": 1e6 * late,
        "gbps": case.moved / middle / 1e9,
        "tflops": case.flops / middle / 1e12,
        "copy": case.moved / machine.bytes / middle,
        "share": max(case.moved / machine.bytes, case.flops / machine.flops) / middle,
    }


def line(case: Case, way: str, times: tuple[float, float], machine: Machine) -> str:
    found = figures(case, times, machine)
    return (
        f"{case.name:20} {case.shape:21} {way:7} {found['p50_us']:10.1f} {found['p95_us']:10.1f} "
        f"{found['gbps']:9.1f} {found['tflops']:9.2f} {100 * found['share']:8.1f} %"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args(arguments).repeats
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    device, dtype = torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32
    ways = {"torch": False} | ({"triton": True} if use_triton("auto", device) else {})
    machine = measured_rates(device, dtype)
    name = torch.cuda.get_device_name() if gpu else f"CPU, one thread, load {os.getloadavg()[0]:.1f}"
    print(f"{name}, {str(dtype)[6:]}, ceiling {machine.flops / 1e12:.2f} TFLOP/s, {machine.bytes / 1e9:.0f} GB/s")
    print("kernel               shape                 way         p50 us     p95 us      GB/s   TFLOP/s  of ceiling")
    for case in cases(not gpu, device, dtype):
        for way, on in ways.items():
            print(line(case, way, timed(partial(case.run, on), device, repeats), machine), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
