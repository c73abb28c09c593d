"""Leave out far masks while a block is decoded (DPad, arXiv 2508.14148; Streaming-dLLM, arXiv 2601.17917).

An option of the caches ``none``, ``prefix`` and ``dual``. Masks after the open blocks carry little but the length of
the answer. Those that are left out are neither computed nor attended to, and positions keep their numbers.
"""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_choices, in_range
from dllm.common.noise import uniform
from dllm.common.ranking import top_k_mask
from dllm.contract import BlockState
from dllm.contract.canvas import Canvas
from dllm.contract.clash import Mismatch, Selection
from dllm.contract.traits import CacheTraits
from dllm.parts.cache.base import Cache

DROPS = ("none", "gaussian", "uniform")
NOISE = 21  # keeps these draws apart from those of tokens, which hash a turn after the position


MISSES_LEFT = Mismatch(
    lambda c: c.does.revocable and c.model.prediction_shift and not c.part.query_left,
    "{cache.query_left} predicts a block's first position only once, so a sampler that remasks it would wait for it "
    "forever.",
    [Set("cache.query_left", True)],
)


def _whole_suffix(c: Selection) -> Set:
    """The way out that keeps all masks: what is dropped is drawn from a window."""
    whole = Set("cache.suffix_window", None)
    return whole if c.part.suffix_drop == "none" else whole & Set("cache.suffix_drop", "none")


class Pruning(Cache):
    """suffix_window: of the masks after the open blocks, those in that many columns may stay (None: all stay).
    suffix_drop: which of these do, drawn when a block opens. ``none``: all. ``gaussian``: column x of the window, from
    0, with probability min(1, scale exp(-z²/2) / sqrt(2 pi)), z = x sigma / (window - 1), by ``suffix_sigma`` and
    ``suffix_scale``. ``uniform``: ``suffix_count`` of them. suffix_tail: columns at the row's end that stay anyway:
    they tell the model where the answer ends.
    """

    traits = CacheTraits(heads="local", leads=True)
    clashes = (
        Mismatch(
            lambda c: c.part.prunes and min({need.region for need in c.needs} - {"block"}, default=None),
            "{cache.suffix_window} leaves out masks after the open blocks, but a chosen part reads the region "
            "{what:value}.",
            [_whole_suffix],
            "(Policy eotp: or eos.scope=block.)",
        ),
        Mismatch(
            lambda c: c.part.prunes and c.blocks.traits.slides,
            "{cache} chooses the masks that it leaves out when a block opens, but {blocks} has a single block, whose "
            "window would come to columns that stay left out.",
        ),
        *Cache.clashes,
        Mismatch(
            lambda c: c.part.prunes and c.attention.sealed,
            "{cache} leaves out masks after the open blocks, but this model is {kind:value}, and the class counts "
            "positions without gaps.",
        ),
        Mismatch(
            lambda c: c.part.prunes and c.attention.name != "full",
            "{cache} leaves out masks after the open blocks, but this model is {kind:value}: what is decoded does "
            "not see them.",
        ),
    )

    def __init__(
        self,
        suffix_window: int | None = None,
        suffix_tail: int = 1,
        suffix_drop: str = "none",
        suffix_sigma: float = 4.0,
        suffix_scale: float = 2.0,
        suffix_count: int = 16,
    ) -> None:
        in_range("cache.suffix_window", suffix_window, 0, advice="It counts columns; {null} keeps all of them.")
        in_range("cache.suffix_tail", suffix_tail, 0, advice="It counts columns.")
        in_range("cache.suffix_sigma", suffix_sigma, 0.0)
        in_range("cache.suffix_scale", suffix_scale, 0.0)
        in_range("cache.suffix_count", suffix_count, 0, advice="It counts columns.")
        in_choices("cache.suffix_drop", suffix_drop, DROPS)
        if suffix_drop != "none" and suffix_window is None:
            raise Refusal(
                "{cache.suffix_drop} draws from a window, and {cache.suffix_window=null} has no end.",
                [suffix_drop],
                (Set("cache.suffix_window", 256),),
            )
        self.suffix_window, self.suffix_tail, self.suffix_drop = suffix_window, suffix_tail, suffix_drop
        self.suffix_sigma, self.suffix_scale, self.suffix_count = suffix_sigma, suffix_scale, suffix_count
        if self.prunes:
            self.traits = self.traits.but(
                regions=frozenset({"block"}),
                scores_all_at_open=False,
                branches=False,
                exact=False,
                leads=suffix_drop == "none",  # else what is left out depends on a row's seed
            )

    @property
    def prunes(self) -> bool:
        return self.suffix_window is not None

    def dropped(self, canvas: Canvas, blocks: BlockState, before: Tensor) -> Tensor:
        """The columns [B, L] that are left out. They are drawn in rows whose block opens; in the others they stay those
        ``before`` [B, L]. Only masks are left out: text that is given after the block stays."""
        if not self.prunes:
            return before
        behind = canvas.columns >= blocks.open_end[:, None]
        fresh = behind & canvas.masked & canvas.valid & ~self.stays(canvas, blocks)
        return torch.where((blocks.forwards == 0)[:, None], fresh, before)

    def stays(self, canvas: Canvas, blocks: BlockState) -> Tensor:
        """The columns [B, L] that are all kept. A draw is a function of the row's seed, the column and the
        block."""
        assert self.suffix_window is not None
        x = canvas.columns - blocks.open_end[:, None]
        end = (canvas.valid * (canvas.columns + 1)).amax(1, keepdim=True)
        tail, near = canvas.columns >= end - self.suffix_tail, (x >= 0) & (x < self.suffix_window)
        if self.suffix_drop == "none":
            return tail | near
        draws = uniform(canvas.seed[:, None], canvas.columns, blocks.index[:, None], NOISE)
        if self.suffix_drop == "uniform":
            return tail | top_k_mask(-draws, near & canvas.valid, torch.full_like(canvas.start, self.suffix_count))
        z = x.double() * self.suffix_sigma / max(self.suffix_window - 1, 1)
        return tail | near & (draws < self.suffix_scale * (-z.square() / 2).exp() / sqrt(2 * pi))
