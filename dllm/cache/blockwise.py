"""What Fast-dLLM's two caches share: a full forward when a block opens, then forwards over a part of the canvas."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dllm.cache.buffer import Buffered, CacheView
from dllm.contract import ForwardPlan, Need, Rule
from dllm.errors import Unfit, name_of
from dllm.models.config import ModelConfig
from dllm.setting import Setting
from dllm.shapes import Known


class Blockwise(Buffered):
    """A subclass chooses the columns of a reuse forward, in ``part``.

    query_left matters for models that predict from the position before (Dream). With it a reuse forward starts one
    column earlier, and so predicts every position of the block. Without it (the published code) it does not predict the
    block's first position; the full forward commits exactly that one.
    """

    attends_all = branches = static = opens_wide = True

    def __init__(self, query_left: bool = True) -> None:
        self.query_left = query_left

    def check(self, setting: Setting, sampler: Rule, needs: Sequence[Need]) -> None:
        super().check(setting, sampler, needs)
        if setting.blocks.slides:
            raise Unfit(
                f"cache={name_of(self)} computes everything when a block opens, but blocks={name_of(setting.blocks)} "
                "opens one only, and moves it."
            )
        if sampler.revocable and setting.model.prediction_shift and not self.query_left:
            raise Unfit(
                "cache.query_left=false predicts a block's first position only once, so a sampler that remasks it "
                "would wait for it forever. Use cache.query_left=true."
            )

    def left(self, config: ModelConfig) -> int:
        """Columns before the block that a reuse forward computes too."""
        return int(self.query_left and config.prediction_shift > 0)

    def part(self, view: CacheView, begin: Tensor) -> Tensor:
        """Columns [B, L] of a reuse forward that starts at column ``begin`` [B, 1]."""
        raise NotImplementedError

    def widest(self, length: int, low: int, width: int) -> int:
        """The most columns of ``length`` that ``part`` can have in any row, without the one that ``query_left`` adds.
        No block begins before column ``low``, and none is wider than ``width``."""
        raise NotImplementedError

    def bounds(self, known: Sequence[Known], length: int, width: int, config: ModelConfig) -> tuple[int, ...]:
        most = self.widest(length, min(row.begin for row in known), width) + self.left(config)
        reuse = min(length, most)
        return tuple(length if row.opening else reuse for row in known)

    def plan(self, view: CacheView) -> ForwardPlan:
        canvas, blocks, shift = view.canvas, view.blocks, view.config.prediction_shift
        left = self.left(view.config)
        build = (blocks.forwards == 0)[:, None]
        columns = build | self.part(view, blocks.begin[:, None] - left)
        forced = canvas.nothing
        if shift and not left:
            open_ = canvas.undecided & blocks.in_block
            forced = open_ & (open_.cumsum(1) == 1) & build
        return view.plan(columns, forced=forced, keys=self.keys(view, columns))

    def keys(self, view: CacheView, columns: Tensor) -> Tensor:
        """Columns [B, L] that count as keys in the forward that computes ``columns`` [B, L]."""
        return view.canvas.valid
