"""Canvases that begin alike, on models that are causal by blocks or by tokens: the beginning is computed once.

What no row after a column is seen by has the same keys and values in all canvases that agree so far. So one call
computes each beginning, and a second one what is after it in every canvas. It gives the numbers of a whole forward.

Letters: B canvases, L columns, G different beginnings, P columns of the longest, n columns after of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.models.bundle import Model
from dllm.models.network.attention import Visible
from dllm.models.network.attention_order import AttentionOrder
from dllm.models.network.memory import DeviceCopies, Exchanged, KeyValues, Memory, Projected
from dllm.models.network.visibility import CAUSAL


@dataclass(frozen=True)
class Beginnings:
    """Where canvases are cut."""

    order: AttentionOrder  # [B, L] who sees whom
    group: Tensor  # [B] which beginning each canvas has
    first: Tensor  # [G] a canvas with each beginning
    cut: Tensor  # [B] its columns: 0 where nothing is shared

    @property
    def saved_columns(self) -> Tensor:
        """[B] columns that are not computed for the canvas, since another one has them."""
        own = torch.zeros_like(self.cut).index_fill_(0, self.first, 1).bool()
        return self.cut.masked_fill(own, 0)


def beginnings(
    model: Model, rows: Tensor, masked: Tensor, start: Tensor, first_read: Tensor, prompts: Sequence[object]
) -> Beginnings | None:
    """Where canvases ``rows`` [B, L] may be cut; None: nothing is saved. needed [B]: the first row of each that is
    read. prompts [B]: canvases of equal ones are compared."""
    config = model.config
    if config.attention.name not in CAUSAL or config.gemma is not None or len(set(prompts)) == len(prompts):
        return None
    order = config.attention.order(masked, start)
    assert order is not None, "causal models have an order"
    # A cut is where no row before it sees a row after it.
    highest = torch.cummax(order.reach, 1).values.roll(1, 1)
    lowest = torch.cummin(order.rank.flip(1), 1).values.flip(1)
    columns = torch.arange(rows.shape[1])
    sound = (highest < lowest) & (columns <= first_read[:, None]) & (columns > 0)
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    group = torch.tensor([numbers[prompt] for prompt in prompts])
    first = torch.stack([(group == number).nonzero()[0, 0] for number in range(len(numbers))])
    same = (rows == rows[first[group]]) & (masked == masked[first[group]])
    common = torch.cumprod(same.long(), 1).sum(1)  # columns that agree from the left
    sound &= columns <= common[:, None]
    cuts = []
    for number in range(len(numbers)):
        good = sound[group == number].all(0).nonzero()
        cuts.append(int(good[-1, 0]) if len(good) and int((group == number).sum()) > 1 else 0)
    begin = Beginnings(order, group, first, torch.tensor(cuts)[group])
    return begin if bool(begin.saved_columns.any()) else None


class _KeyValueRecorder(Memory):
    """Keeps keys and values of every layer."""

    def __init__(self, visible: Tensor) -> None:
        self.visible, self.copies, self.stores = Visible(visible), DeviceCopies(), list[KeyValues]()

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        query, keys, values = fresh.rotated()
        self.stores.append((keys, values))
        return query, keys, values, self.copies.of(self.visible, fresh.query.device)


class _Behind(Memory):
    """Attends to what is kept of its canvas's beginning, then to the rows themselves."""

    def __init__(self, stores: Sequence[KeyValues], group: Tensor, visible: Tensor) -> None:
        self.stores, self.group, self.visible, self.copies = stores, group, Visible(visible), DeviceCopies()

    def exchange(self, layer: int, fresh: Projected, columns: Tensor | None) -> Exchanged:
        query, keys, values = fresh.rotated()
        group = self.copies(self.group, keys.device)
        old_keys, old_values = (tensor[group] for tensor in self.stores[layer])
        visible = self.copies.of(self.visible, keys.device)
        return query, torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2), visible


def encode_behind(model: Model, rows: Tensor, ends: Tensor, shared: Beginnings) -> Tensor:
    """Hidden rows [B, n, D] of the columns from each canvas's cut on. ends [B]: columns that are not padding."""
    network, order, length = model.transformer, shared.order, rows.shape[1]
    device = network.device
    cuts, widest = shared.cut[shared.first], int(shared.cut.max())
    heads = torch.arange(widest).expand(len(cuts), -1)
    begin = AttentionOrder(order.rank[shared.first, :widest], order.reach[shared.first, :widest])
    sees = begin.visible(begin, heads < cuts[:, None])
    sees |= (heads >= cuts[:, None])[:, :, None]  # padding sees all, since a row that sees nothing would be nan
    heads_memory = _KeyValueRecorder(sees.to(device))
    network(rows[shared.first, :widest].to(device), heads.to(device), heads_memory)

    behind = int((ends - shared.cut).max())
    columns = shared.cut[:, None] + torch.arange(behind)
    columns = columns.masked_fill(columns >= ends[:, None], length)
    inside = columns.clamp(max=length - 1)
    places = torch.cat([torch.arange(widest).expand(len(rows), -1), inside], 1)
    there = torch.cat([places[:, :widest] < shared.cut[:, None], columns < length], 1)
    visible = order.rank.gather(1, places)[:, None] <= order.reach.gather(1, inside)[:, :, None]
    visible = (visible & there[:, None]) | (columns == length)[:, :, None]
    memory = _Behind(heads_memory.stores, shared.group.to(device), visible.to(device))
    positions = torch.arange(length, device=device).expand(len(rows), -1)
    hidden, _ = network(rows.gather(1, inside).to(device), positions, memory, columns.to(device))
    return hidden
