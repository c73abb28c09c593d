"""Shadow rows: extra queries that stand in for committed tokens, to judge them without seeing them.

A shadow row sees every column but its own, and the other shadow rows; no other row sees it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dllm.cache.passes import Call
from dllm.models.attention import Visible


def with_shadows(call: Call, columns: Tensor, shadows: Tensor, keys: Tensor) -> Call:
    """The call of queries at ``columns`` [b, n] with shadow rows of the columns ``shadows`` [b, x] (L: none), in
    scratch slots of the buffers. keys [b, L]: what the queries attend to."""
    (extra, device), length = (shadows.shape[1], shadows.device), keys.shape[1]
    spare = length + 1 + torch.arange(extra, device=device).expand(len(shadows), -1)
    slots, rows = torch.cat([columns, spare], 1), torch.cat([columns, shadows], 1)
    visible = keys.new_zeros(*rows.shape, length + 1 + extra)
    visible[:, :, :length] = keys[:, None]
    visible[:, columns.shape[1] :, :length] &= shadows[:, :, None] != torch.arange(length, device=device)
    visible[:, columns.shape[1] :, length + 1 :] = (shadows < length)[:, None]
    return replace(call, columns=rows, slots=slots, visible=Visible(visible), reach=length + 1 + extra)


def shadow_visibility(ordinary: Tensor, shadows: Tensor, length: int) -> Tensor:
    """Who sees whom [B, n + x, n + x] where nothing is kept. All rows see the ``ordinary`` ones [B, n], but a shadow
    row sees the ``shadows`` [B, x] instead of the row of its own column."""
    rows = torch.cat([ordinary, shadows], 1)
    is_shadow = torch.arange(rows.shape[1], device=rows.device) >= ordinary.shape[1]
    own = (rows[:, :, None] == rows[:, None, :]) & ~is_shadow
    return (rows < length)[:, None, :] & torch.where(is_shadow[:, None], is_shadow | ~own, ~is_shadow)
