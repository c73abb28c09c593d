"""The network recorded once per shape and replayed: ``runtime=cudagraph``.

An 8B model launches some 900 kernels per forward, at 4 to 6 us of the host's time each. That is as long as a GPU takes
for the forward of one block. A replay launches them all at once. Only the network is recorded: planning, the head and
the sampler run eagerly. So does the first forward of every shape, which is also its warm-up. Forwards that open a block
are recorded like any other, because their shape repeats with every block.

A recording reads fixed addresses. ``StaticMemory`` lists all that the network reads: its tensors are copied to the
recording's addresses, and its buffers are in a ``BufferPool`` that outlives the decode, so that the next decode of the
same shape records nothing.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import ge
from typing import Any, Protocol

import torch
from torch import Tensor

from dllm.models.network.attention import Visible
from dllm.models.network.memory import Buffers, LacksBuffers, Memory, StaticMemory
from dllm.models.network.transformer import Transformer

MAX_RECORDINGS = 64  # recordings kept; the least recently replayed one is dropped first


class Recording(Protocol):
    """Work on tensors at fixed addresses, recorded once."""

    def record(self, work: Callable[[], None], reset: Callable[[], None] = lambda: None) -> None:
        """Record ``work``, which uses the same tensors in every call. It may be called several times meanwhile, and
        ``reset`` before each, which is not recorded."""

    def replay(self) -> None:
        """Run the recorded work again, without its Python."""

    def release(self) -> None:
        """Free its memory. It is not replayed any more."""


class Recorder:
    """Makes CUDA graphs (HIP graphs on AMD). They share working memory, which holds nothing between replays."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self) -> Recording:
        return CudaGraph(self.device, self.pool, self.stream)


class CudaGraph:
    """One CUDA graph."""

    def __init__(self, device: torch.device, pool: Any, stream: torch.cuda.Stream) -> None:
        self.device, self.pool, self.stream, self.graph = device, pool, stream, torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], None], reset: Callable[[], None] = lambda: None) -> None:
        with torch.cuda.device(self.device):
            current = torch.cuda.current_stream()
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                reset()
                work()  # before recording starts, libraries make their workspaces for this stream, and Triton compiles
            current.wait_stream(self.stream)
            # thread_local: other threads (a progress bar, Ray) may go on using the GPU.
            with torch.cuda.graph(self.graph, self.pool, self.stream, capture_error_mode="thread_local"):
                work()

    def replay(self) -> None:
        self.graph.replay()

    def release(self) -> None:
        torch.cuda.synchronize(self.device)  # it may still be running
        self.graph.reset()


class BufferPool:
    """Flat memory for the buffers of one session at a time; ``sizes`` are the most numbers of each."""

    def __init__(self, model: Transformer, sizes: Sequence[int]) -> None:
        self.flat = [torch.empty(size, dtype=model.dtype, device=model.device) for size in sizes]
        self.borrower: Callable[[], Buffers | None] = lambda: None
        # What recordings know it by. Ranks agree on what they record, and addresses differ among them.
        self.name = self.flat[0].data_ptr() if model.ranks.size == 1 else model.ranks.number()

    def suffices(self, sizes: Sequence[int]) -> bool:
        """Whether buffers of such sizes fit in."""
        return len(sizes) == len(self.flat) and all(map(ge, map(len, self.flat), sizes))

    def lend(self, shapes: Sequence[tuple[int, ...]]) -> Buffers:
        """Buffers of the ``shapes`` at the beginning of the memory. They hold zeros: even a masked NaN would spread."""
        pairs = zip(self.flat, shapes, strict=True)
        buffers = Buffers([memory[: math.prod(shape)].view(shape).zero_() for memory, shape in pairs], self.name)
        self.borrower = weakref.ref(buffers)
        return buffers


@dataclass(frozen=True)
class RecordingKey:
    """What two forwards must have in common to share a recording: shapes by name, numbers that the host knows, and
    addresses."""

    shapes: tuple[tuple[str, torch.Size], ...]  # of every input, by name
    reach: int  # keys and values that a query may see, at most
    triton: bool  # whether the Triton kernels run
    addresses: tuple[int, ...]  # of the buffers that the forward reads and writes
    # how many rows have buffers, where only a part of them runs; rows that leave do not change the address
    buffers: int = 0


@dataclass(frozen=True)
class RecordedForward:
    """A forward that was recorded."""

    recording: Recording  # the CUDA graph, or what stands for it on a CPU
    inputs: dict[str, Tensor]  # the tensors that the recording reads, by name
    output: Tensor  # the hidden states that it writes
    also_read: Any  # what else it reads at fixed addresses, which must not be freed before it

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        for name, value in inputs.items():
            self.inputs[name].copy_(value)
        self.recording.replay()
        return self.output


class Graphs:
    """The network as ``Forward`` calls it. Hidden states last until the next forward of the same shape."""

    def __init__(self, model: Transformer, recorder: Callable[[], Recording], most: int = MAX_RECORDINGS) -> None:
        self.model, self.recorder, self.most = model, recorder, most
        self.recorded: OrderedDict[RecordingKey, RecordedForward] = OrderedDict()
        self.keys_met: OrderedDict[RecordingKey, None] = OrderedDict()
        self.pools = BufferPools(model)

    def __call__(
        self, tokens: Tensor, positions: Tensor, memory: Memory, columns: Tensor | None, totals: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        for address in self.pools.attach_buffers(memory.lacking) if memory.lacking else ():
            self._forget(address)
        access = memory.access()
        assert access.slots is columns or not access.stores, "static forwards store rows at their own columns"
        mask = access.visible.of_queries(0, tokens.shape[1]).mask
        optional = {
            "tokens": tokens,
            "positions": positions,
            "columns": columns,
            "totals": totals,
            "visible": mask,
            "count": access.visible.count,
            "rows": access.rows,
        }
        inputs = {name: value for name, value in optional.items() if value is not None}
        key = self._key(inputs, access)
        if key not in self.recorded and key not in self.keys_met:
            remember(self.keys_met, key, None, 4 * self.most)
            return self.model(tokens, positions, access, columns, totals=totals)
        if key not in self.recorded:
            for old in remember(self.recorded, key, self._record(inputs, access), self.most):
                old.recording.release()
        self.recorded.move_to_end(key)
        return self.recorded[key](inputs), columns

    def _key(self, inputs: dict[str, Tensor], access: StaticMemory) -> RecordingKey:
        shapes = tuple((name, value.shape) for name, value in inputs.items())
        addresses = tuple(buffer.data_ptr() for store in access.stores for buffer in store or ())
        rows = 0 if access.rows is None else next(len(store[0]) for store in access.stores if store is not None)
        return RecordingKey(shapes, access.reach, self.model.triton, addresses, rows)

    def _record(self, inputs: dict[str, Tensor], access: StaticMemory) -> RecordedForward:
        """Record the network. Inputs and output are outside the memory that recordings share."""
        fixed = {name: value.clone() for name, value in inputs.items()}
        tokens, columns = fixed["tokens"], fixed.get("columns")
        visible = Visible(fixed.get("visible"), fixed.get("count"))
        memory = StaticMemory(visible, columns, access.reach, tuple(access.stores), fixed.get("rows"))
        output = torch.empty(*tokens.shape, self.model.config.width, dtype=self.model.dtype, device=tokens.device)

        def work() -> None:
            output.copy_(self.model(tokens, fixed["positions"], memory, columns, totals=fixed.get("totals"))[0])

        recording = self.recorder()
        recording.record(work)
        return RecordedForward(
            recording,
            fixed,
            output,
            (memory, *(table for rotation in self.model.rotations for table in rotation.tables.values())),
        )

    def _forget(self, address: int) -> None:
        """Free the recordings that use the memory at ``address``."""
        for key in [key for key in self.recorded if address in key.addresses]:
            self.recorded.pop(key).recording.release()


class BufferPools:
    """Memory for the sessions of a decoder. At most one unused pool is kept."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.pools: list[BufferPool] = []

    def attach_buffers(self, needy: LacksBuffers) -> list[int]:
        """Give buffers to a decode that has none yet. Returns the names of pools that were freed for it."""
        missing, freed = needy.missing_buffers(), list[int]()
        if missing is None:
            return freed
        sizes = list(map(math.prod, missing))
        free = [pool for pool in self.pools if pool.borrower() is None]
        pool = next((candidate for candidate in free if candidate.suffices(sizes)), None)
        for other in free:
            if other is not pool:
                self.pools.remove(other)
                freed.append(other.name)
        if pool is None:
            pool = BufferPool(self.model, sizes)
            self.pools.append(pool)
        needy.attach_buffers(pool.lend(missing))
        return freed


def remember(entries: OrderedDict[Any, Any], key: Hashable, value: Any, most: int) -> list[Any]:
    """Add an entry. Returns the oldest entries, which are dropped so that at most ``most`` stay."""
    entries[key] = value
    return [entries.popitem(last=False)[1] for _ in range(max(0, len(entries) - most))]
