"""Commit groups without neighbours, in about log2(block) turns a block (DUS, arXiv 2506.19037).

The rule is that of omerlux/DUS@abd7723: generate.py (dilated_unmask_levels, binary_search_levels, merge_last_level,
generate_scheduled).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dllm.common.errors import in_choices, in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler


class DUS(Sampler):
    """Commit level i of a block in its forward i. A column's offset alone decides its level (``levels_of``).

    levels: ``binary`` takes the middle of every gap (the published function's default); ``dilated`` divides the spacing
    by ``base`` from level to level, from length / base^``base_skip`` on (its README's). threshold: a column below it
    waits for the block's last level (0: none does; in the published loop it waits forever, and stays a mask). A level
    without an open column takes the most confident open one.
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)

    def __init__(self, base: int = 2, base_skip: int = 1, levels: str = "binary", threshold: float = 0.0) -> None:
        in_range("sampler.base", base, 2, advice="The spacing is divided by it every turn.")
        in_range("sampler.base_skip", base_skip, 1)
        in_choices("sampler.levels", levels, ("dilated", "binary"))
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        self.base, self.base_skip, self.levels, self.threshold = base, base_skip, levels, threshold
        self.traits = self.traits.but(fixed_order=threshold == 0)

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """offsets [B, W]: as many columns as the widest block has; rows with wider blocks that join make it grow."""
        width = blocks.widest(len(canvas.columns))
        self.table(width, canvas.start.device)  # made here, not in a turn
        return super().start(canvas, blocks) | {"offsets": canvas.masked.new_zeros(len(canvas.start), width)}

    def table(self, width: int, device: torch.device) -> Tensor:
        """The level [W + 1, W] of each offset in a block of each length up to ``width``."""
        return levels_table(self.levels, self.base, self.base_skip, width, device)

    def step(self, view: View, state: State) -> Step:
        length, offset = view.blocks.end - view.blocks.begin, view.canvas.columns - view.blocks.begin[:, None]
        levels = self.table(state["offsets"].shape[1], length.device)[length]
        level, index = levels.gather(1, offset.clamp(0, levels.shape[1] - 1)), view.block_step[:, None]
        group = view.open & (level == index) & (view.scores.confidence >= self.threshold)
        group = group | (view.open & (index >= levels.amax(1, keepdim=True)))
        return view.step(torch.where(group.any(1, keepdim=True), group, argmax_mask(view.scores.confidence, view.open)))


@cache
def levels_table(levels: str, base: int, skip: int, width: int, device: torch.device) -> Tensor:
    """``DUS.table``, once for all rows and decodes. Recordings read it where it is, so it stays."""
    with torch.inference_mode(False):
        lengths, offsets = torch.arange(width + 1)[:, None], torch.arange(width)
        rounds = halved(lengths, offsets) if levels == "binary" else dilated(lengths, offsets, base, skip)
        return levels_of(rounds, lengths).to(device)


def dilated(lengths: Tensor, offsets: Tensor, base: int, skip: int) -> Tensor:
    """The first j [K, W] for which floor(length / base^(skip + j)) divides the offset. ``lengths`` [K, 1], ``offsets``
    [W]."""
    rounds, width = 0, int(lengths.max())
    first = torch.full((len(lengths), len(offsets)), width)
    while base ** (skip + rounds) <= width:
        stride = lengths // base ** (skip + rounds)
        hit = (stride > 0) & (offsets % stride.clamp(min=1) == 0)
        first = torch.where(hit & (first == width), rounds, first)
        rounds += 1
    return first.clamp(max=rounds)


def halved(lengths: Tensor, offsets: Tensor) -> Tensor:
    """The round [K, W] in which repeated halving of 0 to length - 1 reaches the offset as a midpoint."""
    low, high = torch.zeros_like(lengths).expand(-1, len(offsets)), (lengths - 1).expand(-1, len(offsets))
    rounds = torch.full_like(low, -1)
    for number in range(int(lengths.max()).bit_length()):
        middle = (low + high) // 2
        rounds = torch.where((rounds < 0) & (offsets == middle), number, rounds)
        low, high = torch.where(offsets > middle, middle + 1, low), torch.where(offsets < middle, middle - 1, high)
    return rounds.clamp(min=0)


def levels_of(rounds: Tensor, lengths: Tensor) -> Tensor:
    """Levels [K, W] from the round in which a rule takes each offset: rounds without an offset are dropped, and the
    last level joins the one before if it is smaller. Offsets outside of the block have some level or other."""
    inside = torch.arange(rounds.shape[1]) < lengths
    size = torch.zeros(len(rounds), int(rounds.max()) + 2, dtype=torch.int64)
    size = size.scatter_add(1, rounds, inside.long())
    level = ((size > 0).cumsum(1) - 1).clamp(min=0)
    sizes = torch.zeros_like(size).scatter_add(1, level, size)
    last = (sizes > 0).sum(1, keepdim=True).sub(1).clamp(min=0)
    merged = (last > 0) & (sizes.gather(1, last) < sizes.gather(1, (last - 1).clamp(min=0)))
    level = level.gather(1, rounds)
    return torch.where(inside, torch.minimum(level, last - merged.long()), 0).to(torch.int16)
