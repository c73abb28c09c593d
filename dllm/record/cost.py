"""The cost of a forward: query rows, keys, FLOPs, bytes, and the least time that a machine needs for it.

A query row is a position whose hidden state a layer computes. A multiplication and an addition count as two FLOPs.
Norms, rotations and softmax are left out (under 1 % of an 8B model).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dllm.common.errors import in_choices
from dllm.contract import ForwardCost, Ledger
from dllm.models.config import ModelConfig


@dataclass(frozen=True)
class Machine:
    """Peak rates of a machine."""

    name: str  # as the device names itself
    flops: float  # FLOP/s of dense matrix products (bfloat16 on GPUs, no sparsity)
    bytes: float  # bytes/s of its memory


# NVIDIA data sheets: H200 SXM 989 TFLOP/s, 4.8 TB/s; H100 SXM 989, 3.35; A100 80 GB SXM 312, 2.039; L4 121, 0.3.
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("h200", 989e12, 4.8e12),
        Machine("h100", 989e12, 3.35e12),
        Machine("a100", 312e12, 2.039e12),
        Machine("l4", 121e12, 0.3e12),
    )
}


def machine(name: str) -> Machine:
    """A GPU by name, with the rates of its data sheet, or ``this`` machine, whose rates are measured in about a second.

    Raises UserError for an unknown name.
    """
    if name == "this":
        return measured_rates(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    in_choices("machine", name, [*MACHINES, "this"])
    return MACHINES[name]


def measured_rates(device: torch.device, dtype: torch.dtype | None = None) -> Machine:
    """The rates of this machine in a large matrix product and a large copy, the best of five measurements."""
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
    """FLOPs and bytes of one model's forwards.

    FLOPs of a forward: the sum over layers of q (4 D A + 4 D K + 6 D F) + 4 A q k + 2 D K v, and 2 D V per row of the
    head, with q queries, k keys, v rows whose value alone is computed, D the width, A = heads x head size, K the
    width of the keys, F the MLP's, V the vocabulary. DiffusionGemma's layers differ in A and K, have an MLP beside the
    experts, and embed each row of the head again; that a window shows some of them fewer keys is not counted.

    Bytes: the weights once, 2 K values per key read and per query written, and the logits. With routed experts F is the
    width of a row's own experts. The weights then are those of a single row's experts, the least that a forward reads:
    how many experts several rows share is known only after the run.

    All figures are the whole model's, also where ``ranks`` share it: the run's environment has their number.
    """

    config: ModelConfig  # the checkpoint's description
    width: int = 2  # bytes per value of weights, keys and activations

    def flops(self, cost: ForwardCost) -> Tensor:
        """FLOPs [N] of the candidates, in float64."""
        queries = cost.queries.double()
        values = torch.zeros_like(queries) + cost.values
        return self._flops(queries, queries * cost.keys, values, cost.scored.double())

    def spent_flops(self, ledger: Ledger) -> Tensor:
        """FLOPs [B] of all forwards of the rows."""
        return self._flops(ledger.queries, ledger.pairs, ledger.values, ledger.scored)

    def _flops(self, queries: Tensor, pairs: Tensor, values: Tensor, head_rows: Tensor) -> Tensor:
        c, alike = self.config, queries.shape[1] == 1
        layers, widths = (number.sum(0, keepdim=True) if alike else number for number in (self.rows, self.widths[:, 0]))
        attention = 4 * (pairs * widths.to(pairs.device)).sum(1)
        alone = 2 * c.width * (c.kv_width * values.sum(1) + self.heads * c.vocab * head_rows)
        return (queries * layers.to(queries.device)).sum(1) + attention + alone

    @property
    def heads(self) -> int:
        """Products of a scored row with the vocabulary: two where it is also embedded again (self-conditioning)."""
        return 1 if self.config.gemma is None else 2

    @cached_property
    def widths(self) -> Tensor:
        """Features of queries and of keys [layers, 2]."""
        each = [self.config.attention_widths(index) for index in range(self.config.layers)]
        return torch.tensor(each, dtype=torch.float64).view(-1, 2)

    @cached_property
    def rows(self) -> Tensor:
        """FLOPs [layers] of one query row in each layer, without attention scores."""
        return 2 * torch.tensor([self._layer(index) for index in range(self.config.layers)], dtype=torch.float64)

    def bytes(self, cost: ForwardCost) -> Tensor:
        """Bytes [N] of the candidates in float64, without the weights, which a batch shares."""
        return self._bytes((cost.queries + cost.copies * cost.keys).double(), cost.scored.double())

    def spent_bytes(self, ledger: Ledger) -> Tensor:
        """The same [B] of all forwards of the rows."""
        return self._bytes(ledger.kv_tokens, ledger.scored)

    def _bytes(self, tokens: Tensor, head_rows: Tensor) -> Tensor:
        keys = self.widths[:, 1].sum(0, keepdim=True) if tokens.shape[1] == 1 else self.widths[:, 1]
        return self.width * (2 * (tokens * keys.to(tokens.device)).sum(1) + self.config.vocab * head_rows)

    def weights(self) -> float:
        """The least bytes of weights that a forward reads. The embedding is a lookup and does not count."""
        c = self.config
        return self.width * (sum(self._layer(index) for index in range(c.layers)) + c.width * c.vocab)

    def floor(self, flops: float, traffic: float, machine: Machine) -> float:
        """The least seconds of one forward: its arithmetic or its memory traffic, the longer of the two.

        flops, traffic: summed over the batch. traffic: bytes without the weights.
        """
        return max(flops / machine.flops, (traffic + self.weights()) / machine.bytes)

    def _layer(self, index: int) -> float:
        """Weights that a layer multiplies one row with."""
        c, moe, (queries, keys) = self.config, self.config.moe, self.config.attention_widths(index)
        attention = 2 * c.width * (queries + keys)
        if moe is None or index not in moe.sparse_layers:
            return attention + 3 * c.width * c.mlp_width
        experts = 3 * c.width * (moe.top_k * moe.width + moe.shared_width) + c.width * moe.experts
        if c.gemma is None:
            return attention + experts
        values = keys if c.gemma.layers[index].sliding else 0  # global layers have no product for values
        return attention - c.width * (keys - values) + 3 * c.width * c.mlp_width + experts
