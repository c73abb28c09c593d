"""Shadow rows: extra queries that stand in for committed tokens, to judge them without seeing them.

A shadow row sees every column but its own, and the other shadow rows; no other row sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm.models.network.attention import MaskParts
from dllm.parts.cache.passes import Call


@dataclass(frozen=True)
class WithShadows(MaskParts):
    """The last queries are shadow rows."""

    ordinary: Tensor  # [B, S] keys that ordinary queries see
    beside: Tensor  # [B, S] keys that shadow rows see besides
    columns: Tensor  # [B, S] the column of each ordinary key
    shadows: Tensor  # [B, x] the column of each shadow row
    first: int  # ordinary queries

    def mask(self, first: int, last: int) -> Tensor:
        ordinary, some = self.ordinary[:, None], self.shadows[:, max(0, first - self.first) : max(0, last - self.first)]
        judging = (ordinary & (self.columns[:, None] != some[:, :, None])) | self.beside[:, None]
        return torch.cat([ordinary.expand(-1, last - first - some.shape[1], -1), judging], 1)


def with_shadows(call: Call, columns: Tensor, shadows: Tensor, keys: Tensor) -> Call:
    """The call of queries at ``columns`` [b, n] with shadow rows of the columns ``shadows`` [b, x] (L: none), in
    scratch slots of the buffers. keys [b, L]: what the queries attend to."""
    (extra, device), length = (shadows.shape[1], shadows.device), keys.shape[1]
    spare = length + 1 + torch.arange(extra, device=device).expand(len(shadows), -1)
    slots, rows, reach = torch.cat([columns, spare], 1), torch.cat([columns, shadows], 1), length + 1 + extra
    slot = torch.arange(reach, device=device).expand(len(shadows), -1)
    beside = F.pad(shadows < length, (length + 1, 0))
    parts = WithShadows(F.pad(keys, (0, 1 + extra)), beside, slot, shadows, columns.shape[1])
    return replace(call, columns=rows, slots=slots, visible=parts.visible(rows.shape[1]), reach=reach)


def shadow_visibility(ordinary: Tensor, shadows: Tensor, length: int) -> WithShadows:
    """Who sees whom of n + x rows where nothing is kept. All rows see the ``ordinary`` ones [B, n], but a shadow row
    sees the ``shadows`` [B, x] instead of the row of its own column."""
    rows = torch.cat([ordinary, shadows], 1)
    is_shadow = torch.arange(rows.shape[1], device=rows.device) >= ordinary.shape[1]
    keys = rows < length
    return WithShadows(keys & ~is_shadow, keys & is_shadow, rows, shadows, ordinary.shape[1])
