"""A prompt computed in chunks before its row starts, where attention is causal by blocks or by tokens.

A forward of a whole prompt stores which of its n columns sees which: n^2 entries. A chunk of c columns stores c n. A
server lets other rows take their turns between two chunks. In papers: chunked prefill (Sarathi-Serve, arXiv
2403.02310).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.contract.canvas import Request
from dllm.models.network.attention import Visible
from dllm.models.network.conditioning import Conditioning
from dllm.models.network.memory import DeviceCopies, Exchanged, KeyValues, Memory, Projected, StaticMemory
from dllm.models.network.transformer import Transformer
from dllm.parts.cache.buffer_memory import blank
from dllm.parts.cache.pages import KnownPrefix

PREFILL_CHUNK = 1024  # columns of a chunk, unless a server's limits say otherwise


class Prefill:
    """The final columns of a request's prompt, as far as they are computed. ``step`` computes the next chunk.

    prefix: what is computed of them already (None: nothing). chunk: the most columns of a chunk, unless a page is
    longer.
    """

    def __init__(self, network: Transformer, request: Request, prefix: KnownPrefix | None, chunk: int) -> None:
        self.network, self.prefix_before, self.chunk, self.device = network, prefix, chunk, network.device
        kind, masked = network.config.attention, torch.tensor([list(request.masked)])
        start = torch.tensor([request.answer_start])
        order = kind.order(masked.to(self.device), start.to(self.device))
        assert order is not None, "full attention has no pages"
        self.order, self.tokens = order, torch.tensor([list(request.tokens)], device=self.device)
        first, pieces = request.first_mask, kind.pieces(masked, start)[0]
        final = int((pieces < pieces[first]).sum())
        self.ends = [end for end in kind.page_ends(request.answer_start, first) if end <= final]
        self.end = 0 if prefix is None else prefix.columns  # columns computed
        self.columns_computed = 0  # of them here
        self.pairs = self.columns_read = 0  # of its chunks: queries times keys, and queries and keys, summed
        self.stores: list[KeyValues | None] = [None] * network.config.layers  # of each layer, [1, H_kv, S, h]

    @property
    def columns_to_compute(self) -> int:
        """Columns to compute."""
        return max(0, (self.ends[-1] if self.ends else 0) - self.end)

    @torch.inference_mode()
    def step(self) -> None:
        """Compute a chunk, which ends where a page ends."""
        behind = [end for end in self.ends if end > self.end]
        end = max((page_end for page_end in behind if page_end <= self.end + self.chunk), default=behind[0])
        columns = torch.arange(self.end, end, device=self.device)[None]
        visible = self._visible(columns, end)
        memory = _ChunkMemory(self.stores, self.prefix_before, self.ends[-1] + 1, columns, end, visible)
        positions = torch.arange(self.tokens.shape[1], device=self.device)[None]
        self.network(self.tokens[:, self.end : end], positions, memory, columns, **self._more(columns))
        queries = end - self.end
        self.columns_computed += queries
        self.pairs += queries * end
        self.columns_read += queries + end
        self.end = end

    def _visible(self, columns: Tensor, end: int) -> Visible:
        """What a chunk sees of the first ``end`` columns. Where that is all of them, it takes no mask: a prompt that is
        one block is one chunk."""
        asking, window = self.order.at(columns), self.network.config.window
        if window is None and bool(asking.reach.amin() >= self.order.rank[:, :end].amax()):
            return Visible()
        return self.order.visible_to(asking, torch.ones_like(self.tokens[:, :end], dtype=torch.bool), window)

    def prefix(self) -> KnownPrefix | None:
        """What the row may take over."""
        if not self.columns_computed:
            return self.prefix_before
        stores = [store for store in self.stores if store is not None]
        layers = [
            (keys[0, :, : self.end].transpose(0, 1), values[0, :, : self.end].transpose(0, 1))
            for keys, values in stores
        ]
        spent = self.columns_computed, self.columns_computed, self.pairs, self.columns_read, 0
        return KnownPrefix(self.end, layers, spent)

    def _more(self, columns: Tensor) -> dict[str, Conditioning]:
        """What a network of two passes takes: a prompt runs as decided text."""
        if not self.network.config.carries:
            return {}
        nothing = torch.zeros(*columns.shape, self.network.config.width, dtype=self.network.dtype, device=self.device)
        return {"conditioning": Conditioning(torch.zeros_like(columns, dtype=torch.bool), nothing)}


def is_long(request: Request, chunk: int) -> bool:
    """Whether a prompt is computed in chunks: it has more columns than one."""
    return request.answer_start > chunk and any(request.masked)


def computed_prefixes(network: Transformer, requests: Sequence[Request], chunk: int) -> list[KnownPrefix | None]:
    """The final columns of each prompt, all chunks one after the other; None: it is not long, or none is final. Samples
    of one prompt share them: the first one has computed them."""
    prefixes, out = dict[tuple[int, ...], KnownPrefix | None](), list[KnownPrefix | None]()
    for request in requests:
        key = request.answer_start, *request.tokens
        prefix = prefixes.get(key)
        if key not in prefixes and is_long(request, chunk):
            prefill = Prefill(network, request, None, chunk)
            while prefill.columns_to_compute:
                prefill.step()
            prefix = prefill.prefix()
        out.append(prefix)
        prefixes[key] = None if prefix is None else replace(prefix, spent=(0, 0, 0, 0, 0))
    return out


class _ChunkMemory(Memory):
    """Buffers of one row, made in the first chunk with what is known of it."""

    def __init__(
        self,
        stores: list[KeyValues | None],
        prefix: KnownPrefix | None,
        size: int,
        slots: Tensor,
        reach: int,
        visible: Visible,
    ) -> None:
        self.stores, self.prefix_before, self.size, self.copies = stores, prefix, size, DeviceCopies()
        self.slots, self.reach, self.visible = slots, reach, visible

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        if self.stores[layer] is None:
            stores = blank(fresh.key, 1, self.size)
            known = () if self.prefix_before is None else self.prefix_before.layers[layer]
            for store, columns_before in zip(stores, known, strict=False):
                store[0, :, : len(columns_before)] = columns_before.transpose(0, 1)
            self.stores[layer] = stores
        device = fresh.query.device
        slots, visible = self.copies(self.slots, device), self.copies.of(self.visible, device)
        return StaticMemory(visible, slots, self.reach, self.stores).exchange(layer, fresh, columns)
