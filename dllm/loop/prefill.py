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

    known: what is known of them (None: nothing). chunk: the most columns of a chunk, unless a page is longer.
    """

    def __init__(self, network: Transformer, request: Request, known: KnownPrefix | None, chunk: int) -> None:
        self.network, self.known, self.chunk, self.device = network, known, chunk, network.device
        kind, masked = network.config.attention, torch.tensor([list(request.masked)])
        start = torch.tensor([request.answer_start])
        order = kind.order(masked.to(self.device), start.to(self.device))
        assert order is not None, "full attention has no pages"
        self.order, self.tokens = order, torch.tensor([list(request.tokens)], device=self.device)
        first = list(request.masked).index(True)
        pieces = kind.pieces(masked, start)[0]
        final = int((pieces < pieces[first]).sum())
        self.ends = [end for end in kind.page_ends(request.answer_start, first) if end <= final]
        self.done = 0 if known is None else known.columns  # columns computed
        self.computed = 0  # of them here
        self.pairs = self.read = 0  # of its chunks: queries times keys, and queries and keys, summed
        self.stores: list[KeyValues | None] = [None] * network.config.layers  # of each layer, [1, H_kv, S, h]

    @property
    def left(self) -> int:
        """Columns to compute."""
        return max(0, (self.ends[-1] if self.ends else 0) - self.done)

    @torch.inference_mode()
    def step(self) -> None:
        """Compute a chunk, which ends where a page ends."""
        behind = [end for end in self.ends if end > self.done]
        end = max((one for one in behind if one <= self.done + self.chunk), default=behind[0])
        columns = torch.arange(self.done, end, device=self.device)[None]
        memory = _ChunkMemory(self.stores, self.known, self.ends[-1] + 1, columns, end, self._visible(columns, end))
        positions = torch.arange(self.tokens.shape[1], device=self.device)[None]
        self.network(self.tokens[:, self.done : end], positions, memory, columns, **self._more(columns))
        queries = end - self.done
        self.computed += queries
        self.pairs += queries * end
        self.read += queries + end
        self.done = end

    def _visible(self, columns: Tensor, end: int) -> Visible:
        """What a chunk sees of the first ``end`` columns. Where that is all of them, it takes no mask: a prompt that is
        one block is one chunk."""
        asking, window = self.order.at(columns), self.network.config.window
        if window is None and bool(asking.reach.amin() >= self.order.rank[:, :end].amax()):
            return Visible()
        return self.order.visible_to(asking, torch.ones_like(self.tokens[:, :end], dtype=torch.bool), window)

    def prefix(self) -> KnownPrefix | None:
        """What the row may take over."""
        if not self.computed:
            return self.known
        there = [store for store in self.stores if store is not None]
        layers = [
            (keys[0, :, : self.done].transpose(0, 1), values[0, :, : self.done].transpose(0, 1))
            for keys, values in there
        ]
        return KnownPrefix(self.done, layers, (self.computed, self.computed, self.pairs, self.read, 0))

    def _more(self, columns: Tensor) -> dict[str, Conditioning]:
        """What a network of two passes takes: a prompt runs as decided text."""
        if not self.network.config.carries:
            return {}
        nothing = torch.zeros(*columns.shape, self.network.config.width, dtype=self.network.dtype, device=self.device)
        return {"conditioning": Conditioning(torch.zeros_like(columns, dtype=torch.bool), nothing)}


def is_long(request: Request, chunk: int) -> bool:
    """Whether a prompt is computed in chunks: it has more columns than one."""
    return request.answer_start > chunk and any(request.masked)


def computed_prefix(network: Transformer, request: Request, chunk: int) -> KnownPrefix | None:
    """The final columns of a long prompt, all chunks one after the other; None: it is not long, or none is final."""
    if not is_long(request, chunk):
        return None
    found = Prefill(network, request, None, chunk)
    while found.left:
        found.step()
    return found.prefix()


def computed_prefixes(network: Transformer, requests: Sequence[Request], chunk: int) -> list[KnownPrefix | None]:
    """``computed_prefix`` of each, which samples of one prompt share: the first one has computed it."""
    found = dict[tuple[int, ...], KnownPrefix | None]()
    out = list[KnownPrefix | None]()
    for request in requests:
        key = request.answer_start, *request.tokens
        out.append(found[key] if key in found else computed_prefix(network, request, chunk))
        found[key] = None if out[-1] is None else replace(out[-1], spent=(0, 0, 0, 0, 0))
    return out


class _ChunkMemory(Memory):
    """Buffers of one row, made in the first chunk with what is known of it."""

    def __init__(
        self,
        stores: list[KeyValues | None],
        known: KnownPrefix | None,
        size: int,
        slots: Tensor,
        reach: int,
        visible: Visible,
    ) -> None:
        self.stores, self.known, self.size, self.copies = stores, known, size, DeviceCopies()
        self.slots, self.reach, self.visible = slots, reach, visible

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        if self.stores[layer] is None:
            made = blank(fresh.key, 1, self.size)
            for store, one in zip(made, self._known(layer), strict=False):
                store[0, :, : len(one)] = one.transpose(0, 1)
            self.stores[layer] = made
        device = fresh.query.device
        slots, visible = self.copies(self.slots, device), self.copies.of(self.visible, device)
        return StaticMemory(visible, slots, self.reach, self.stores).exchange(layer, fresh, columns)

    def _known(self, layer: int) -> Sequence[Tensor]:
        return () if self.known is None else self.known.layers[layer]
