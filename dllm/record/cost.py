"""What a forward costs: query rows, keys, FLOPs, bytes, and the time no machine can beat.

A row is a position whose hidden state is computed in a layer. FLOPs count multiply and add separately; norms, rotations
and softmax are left out (under 1 % of an 8B model).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dllm.errors import UserError, nearest
from dllm.models.config import ModelConfig


@dataclass(frozen=True)
class ForwardCost:
    """One forward of N candidates, per layer (l = layers, or 1 where all layers are alike).

    queries [N, l]: rows computed; keys [N, l]: rows that each of them attends to; refreshed [N, l]: rows computed again
    because the layer recomputes the whole row of the canvas (0 in layers that reuse); computed [N, l]: rows that the
    forward really ran, with those that only pad a row to its call's width; scored [N]: rows the head ran on; copies:
    how often every row has keys of its own (2 under guidance). The session fills in all but scored, the forward that.
    """

    queries: Tensor
    keys: Tensor
    refreshed: Tensor
    computed: Tensor
    scored: Tensor | None = None
    copies: int = 1

    def halves(self) -> ForwardCost:
        """Of 2 N rows, of which the second half repeats the first under guidance: N candidates, the rows summed."""
        queries, keys, refreshed, computed = (
            part.unflatten(0, (2, -1)) for part in (self.queries, self.keys, self.refreshed, self.computed)
        )
        return ForwardCost(queries.sum(0), keys.amax(0), refreshed.sum(0), computed.sum(0), copies=2 * self.copies)

    def of(self, acts: Tensor | None) -> ForwardCost:
        """Without what was asked for rows that wait (``acts`` [N]: the others); ``computed`` says that they ran.
        """
        if acts is None:
            return self
        asked = {name: getattr(self, name) * acts[:, None] for name in ("queries", "keys", "refreshed")}
        return replace(self, **asked)


def join_costs(works: Sequence[ForwardCost]) -> ForwardCost:
    """Several forwards of one decode as one list of candidates."""
    scored = [work.scored for work in works if work.scored is not None]
    queries, keys, refreshed, computed = (
        torch.cat([getattr(work, name) for work in works]) for name in ("queries", "keys", "refreshed", "computed")
    )
    return ForwardCost(queries, keys, refreshed, computed, torch.cat(scored) if scored else None, works[0].copies)


@dataclass(frozen=True)
class Machine:
    """Peak rates: dense matrix FLOP/s in the usual dtype (bfloat16 on GPUs), and memory bytes/s. From data sheets,
    without sparsity; ``measured`` for the machine at hand."""

    name: str
    flops: float
    bytes: float


# NVIDIA data sheets: H200 SXM 989 TFLOP/s, 4.8 TB/s; H100 SXM 989, 3.35; A100 80 GB SXM 312, 2.039; L4 121, 0.3.
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("h200", 989e12, 4.8e12), Machine("h100", 989e12, 3.35e12),
        Machine("a100", 312e12, 2.039e12), Machine("l4", 121e12, 0.3e12),
    )
}  # fmt: skip


def machine(name: str) -> Machine:
    """A GPU by name, or ``this`` for the machine at hand, whose rates are measured (about a second)."""
    if name == "this":
        return measured(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if name not in MACHINES:
        known = [*MACHINES, "this"]
        raise UserError(f"machine {name!r} is unknown; choose one of {', '.join(known)}.{nearest(name, known)}")
    return MACHINES[name]


def measured(device: torch.device, dtype: torch.dtype | None = None) -> Machine:
    """Rates that the machine at hand reaches in a large matrix product and a large copy: the best of five."""
    from torch.utils.benchmark import Timer

    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(64 << 20 if device.type == "cpu" else 1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    threads = torch.get_num_threads()
    product = Timer("a @ b", globals={"a": a, "b": b}, num_threads=threads)
    copy = Timer("target.copy_(source)", globals={"target": target, "source": source}, num_threads=threads)
    multiply, move = (min(timer.timeit(3).mean for _ in range(5)) for timer in (product, copy))
    return Machine(f"this {device.type}", 2 * size**3 / multiply, 2 * source.numel() / move)


@dataclass(frozen=True)
class CostModel:
    """The account of one model: ``width`` bytes per value of weights, keys and activations.

    FLOPs(forward) = sum over layers of q (4 D A + 4 D K + 6 D F) + 4 A q k, and 2 D V per row the head runs on, with q
    queries, k keys, A = heads x head size, K the width of the keys, F the MLP's. Bytes: the weights once, 2 K per key
    read and per query written, and the logits. Routed experts: F counts those a row visits, the weights those that one
    row visits, the least that a forward reads: which of them several rows share only a run can tell.
    """

    config: ModelConfig
    width: int = 2

    def flops(self, work: ForwardCost) -> Tensor:
        """[N] float64."""
        c, queries = self.config, work.queries.double()
        attention = 4 * c.heads * c.head_dim * queries * work.keys
        alike = queries.shape[1] == 1
        layers = self.rows.sum(0, keepdim=True) if alike else self.rows
        total = (queries * layers.to(queries.device)).sum(1) + attention.sum(1) * (c.layers if alike else 1)
        return total + 2 * c.width * c.vocab * _scored(work)

    @cached_property
    def rows(self) -> Tensor:
        """FLOPs of one query row in each layer, attention scores aside [layers]."""
        c = self.config
        row = 4 * c.width * c.heads * c.head_dim + 4 * c.width * c.kv_width
        return torch.tensor([float(row + self._mlp(layer)) for layer in range(c.layers)], dtype=torch.float64)

    def bytes(self, work: ForwardCost) -> Tensor:
        """[N] float64, without the weights, which all rows of a batch share."""
        c = self.config
        rows = (work.queries + work.copies * work.keys).sum(1).double() * (c.layers // work.queries.shape[1])
        return self.width * (2 * c.kv_width * rows + c.vocab * _scored(work))

    def weights(self) -> float:
        """The least bytes of weights that a forward reads; the embedding is a lookup and not counted."""
        c = self.config
        layer = 2 * c.width * c.heads * c.head_dim + 2 * c.width * c.kv_width
        values = c.layers * layer + sum(self._mlp_weights(index) for index in range(c.layers))
        return self.width * (values + c.width * c.vocab)

    def floor(self, flops: float, moved: float, machine: Machine) -> float:
        """Seconds of one forward that no implementation beats: arithmetic or memory, whichever takes longer.

        ``flops`` and ``moved`` summed over the rows of the batch.
        """
        return max(flops / machine.flops, (moved + self.weights()) / machine.bytes)

    def floors(self, flops: Sequence[float], moved: Sequence[float], machine: Machine) -> float:
        """The same summed over forwards of one row decoded alone."""
        return sum(self.floor(f, b, machine) for f, b in zip(flops, moved, strict=True))

    def _mlp(self, layer: int) -> float:
        c, moe = self.config, self.config.moe
        if moe is None or layer not in moe.sparse_layers:
            return 6 * c.width * c.mlp_width
        return 6 * c.width * (moe.top_k * moe.width + moe.shared_width) + 2 * c.width * moe.experts

    def _mlp_weights(self, layer: int) -> float:
        c, moe = self.config, self.config.moe
        if moe is None or layer not in moe.sparse_layers:
            return 3 * c.width * c.mlp_width
        return 3 * c.width * (moe.top_k * moe.width + moe.shared_width) + c.width * moe.experts


def _scored(work: ForwardCost) -> Tensor:
    assert work.scored is not None, "the forward has not said how many rows the head ran on"
    return work.scored.double()
