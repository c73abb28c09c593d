"""Commit as the time grid of Dream's ``diffusion_generate`` says (Dream, arXiv 2508.15487 and its released code)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.common.noise import gumbel
from dllm.common.ranking import top_k_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import Schedule
from dllm.parts.samplers.static import Static

# The scores by which Dream's algorithms rank positions.
ALGORITHMS = {"maskgit_plus": "low_confidence", "topk_margin": "margin", "entropy": "entropy", "origin": "random"}


@lru_cache(16)
def grids(eps: float, most: int, device: torch.device) -> Tensor:
    """The shares of every grid of 1 to ``most`` forwards, one after the other. They are computed on the CPU by
    PyTorch's own ``linspace``, whose rounding, which no formula gives on every machine, moves some of the integers of
    the schedule (308 of 32 million up to 400 masks). A device looks them up and asks the host nothing. Recordings read
    them where they are, so the rule keeps its own."""
    with torch.inference_mode(False):
        shares = [torch.linspace(1, eps, total + 1) for total in range(1, most + 1)]
        return torch.cat([1 - grid[1:] / grid[:-1] for grid in shares]).to(device)


class Dream(Static):
    """Commit int(m (1 - t[i+1] / t[i])) of the m masks in forward i of S, where t = linspace(1, eps, S + 1). The last
    forward commits all of them.

    alg ranks the positions: ``maskgit_plus`` by probability, ``topk_margin`` by p1 - p2, ``entropy`` lowest first.
    ``origin`` ranks nothing: it commits each mask with probability 1 - t[i+1] / t[i]. alg_temp > 0: the positions are
    drawn from softmax(score / alg_temp) instead of taking the best. steps None: as many forwards as the block has
    masks.
    """

    traits = Static.traits.but(stateless=False, tempered=True)

    def __init__(
        self, alg: str = "entropy", steps: int | None = None, eps: float = 1e-3, alg_temp: float = 0.0
    ) -> None:
        in_choices("sampler.alg", alg, ALGORITHMS)
        in_range("sampler.eps", eps, 0.0, 1.0)
        in_range("sampler.alg_temp", alg_temp, 0.0)
        super().__init__(steps, ALGORITHMS[alg])
        self.alg, self.eps, self.alg_temp = alg, eps, alg_temp
        self._grid_cache = dict[tuple[int, torch.device], Tensor]()  # by the size of the largest and the device
        if alg_temp > 0:
            self.traits = self.traits.but(
                stateless=False, deterministic=False, by_confidence=False, ranks_by="", thresholds=True
            )

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        self._grids(len(canvas.columns), canvas.columns.device)  # made here, not in a turn
        return super().start(canvas, blocks)

    def step(self, view: View, state: State) -> Step:
        steps = self.block_steps(view, state)
        share, last = self._share(view.block_step, steps, view.canvas.masked.shape[1])
        masks = (view.canvas.undecided & view.blocks.in_open).sum(1)  # a cache may let only some be committed
        if self.alg == "origin":
            return view.step(view.open & ((self.rate(view) < share[:, None]) | last[:, None]))
        # float32 with truncation, as released: the integers of the schedule depend on it.
        count = torch.where(last, masks, (masks.float() * share).long())
        return view.step(top_k_mask(self._score(view), view.open, count))

    def _share(self, index: Tensor, steps: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """1 - t[i+1] / t[i] [B] in float32, and whether this is the last forward of the grid."""
        shares, at = self._grids(columns, index.device), index.clamp(max=steps - 1)
        return shares[steps * (steps - 1) // 2 + at], index >= steps - 1

    def _grids(self, columns: int, device: torch.device) -> Tensor:
        """Every grid that rows of that many columns may need: a block has no more masks than its row has columns."""
        key = 1 << max(columns, self.steps or 0).bit_length(), device
        if key not in self._grid_cache:
            self._grid_cache[key] = grids(self.eps, *key)
        return self._grid_cache[key]

    def _score(self, view: View) -> Tensor:
        """The ranking score [B, L], higher first; with noise for ``alg_temp``."""
        rate = self.rate(view)
        if self.alg_temp == 0:
            return rate
        # The k largest of score / T + Gumbel noise are k draws without replacement from softmax(score / T).
        noise = gumbel(view.canvas.seed[:, None], view.canvas.columns, view.blocks.turn[:, None], 2)
        return rate / self.alg_temp + noise
