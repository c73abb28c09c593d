"""The kinds of attention in which not everybody sees everybody: a class for each, in rank and reach.

Columns are positions: nothing is ever moved. Where WeDLM runs known tokens before masks, it is their ranks that come
first. Letters as in ``dllm.models.network.attention_order``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.models.network.attention_order import AttentionKind, AttentionOrder, blocks_behind, columns_of


@dataclass(frozen=True)
class InBlocks(AttentionKind):
    """Attention that goes by blocks of ``length`` columns."""

    length: int  # columns of a block

    @property
    def block(self) -> int:
        return self.length


@dataclass(frozen=True)
class ByBlock(InBlocks):
    """A column sees its own block and those before it."""

    advice = "exact: keys of finished blocks never change"

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder:
        number = self.pieces(masked, start)
        return AttentionOrder(number, number)


@dataclass(frozen=True)
class FromZero(ByBlock):
    """Blocks count from column 0."""

    grid_at_zero = True

    def pieces(self, masked: Tensor, start: Tensor) -> Tensor:
        return columns_of(masked) // self.length

    def page_ends(self, start: int, decided: int) -> Sequence[int]:
        return range(self.length, decided + 1, self.length)


@dataclass(frozen=True)
class BlockCausal(FromZero):
    """Blocks count from column 0 (SDAR, LLaDA2, DreamReasoner, Stable-DiffCoder)."""

    name = is_called = "block-causal"
    form = "block-causal; decode with blocks.block_length={0.length}"


@dataclass(frozen=True)
class AnswerBlocks(ByBlock):
    """Blocks count from the answer's start, in both directions, so that the prompt's first one may be short (A2D's
    -bd3lm checkpoints, arXiv 2602.22661)."""

    name = "answer-blocks"
    is_called = "block-causal from the answer's start"
    form = "block-causal from the answer's start; decode with blocks.block_length={0.length}"

    def pieces(self, masked: Tensor, start: Tensor) -> Tensor:
        number = (columns_of(masked) - start[:, None]) // self.length
        return number - number[:, :1]

    def page_ends(self, start: int, decided: int) -> Sequence[int]:
        return range(start % self.length or self.length, decided + 1, self.length)


@dataclass(frozen=True)
class PromptBlock(ByBlock):
    """The prompt is one block, and blocks of ``length`` count from the answer's start (Efficient-DLM, arXiv
    2512.14067)."""

    name = "prompt-block"
    is_called = "block-causal after a prompt of one block"
    form = "both ways in the prompt, block-causal after it; decode with blocks.block_length={0.length}"

    def pieces(self, masked: Tensor, start: Tensor) -> Tensor:
        """The prompt, then the blocks."""
        return blocks_behind(columns_of(masked), start, self.length)

    def page_ends(self, start: int, decided: int) -> Sequence[int]:
        return range(start or self.length, decided + 1, self.length)


@dataclass(frozen=True)
class PipelinedBlocks(PromptBlock):
    """The same order, trained on blocks before which others are unfinished (D2F's adapters, arXiv 2508.09192)."""

    name = "pipelined-blocks"
    is_called = "block-causal after a prompt of one block, with several blocks open"
    pipelined = True
    form = (
        "both ways in the prompt, block-causal after it, also over unfinished blocks; decode with blocks=pipelined "
        "blocks.block_length={0.length}"
    )


@dataclass(frozen=True)
class ActiveBlock(InBlocks):
    """Of the blocks, that of the first masked column is decoded: the active one."""

    def _begin(self, masked: Tensor, start: Tensor) -> Tensor:
        """First column [B, 1] of the active block; L where nothing is masked."""
        length, grid = masked.shape[1], 0 if self.grid_at_zero else start[:, None]
        first = torch.where(masked, columns_of(masked), length).amin(1, keepdim=True)
        return torch.where(first < length, grid + (first - grid) // self.length * self.length, length)

    def _inside(self, masked: Tensor, begin: Tensor) -> Tensor:
        columns = columns_of(masked)
        return (columns >= begin) & (columns < begin + self.length)


@dataclass(frozen=True)
class Seeded(ActiveBlock):
    """Blocks whose first column is decided by the forward that finishes the block before: its last row predicts that
    column, which is committed alone (the published commit pass, and an autoregressive step). All other forwards predict
    the rest of the active block, that of the first masked column."""

    everywhere = False

    def predicted(self, masked: Tensor, start: Tensor) -> Tensor:
        begin = self._begin(masked, start)
        first = columns_of(masked) == begin
        opens = (first & masked).any(1, keepdim=True)
        return torch.where(opens, first, self._inside(masked, begin) & ~first)

    def alone(self, masked: Tensor, start: Tensor) -> Tensor:
        return masked & (columns_of(masked) == self._begin(masked, start))

    def block_rows(self, masked: Tensor, start: Tensor) -> Tensor:
        return self._inside(masked, self._begin(masked, start)) & ~self.alone(masked, start)


@dataclass(frozen=True)
class SeededBlocks(Seeded, FromZero):
    """Blocks count from column 0, and the first column of a block is committed alone (Fast-dLLM v2, arXiv 2509.26328).
    In the block that holds the prompt's end the first column is given."""

    name = "seeded-blocks"
    is_called = "block-causal, and a block's first column is decided alone"
    form = "block-causal, a block's first column decided alone; blocks of {0.length} columns"


@dataclass(frozen=True)
class CausalContext(ActiveBlock):
    """Blocks count from the answer's start, and what is before the active one is causal."""

    advice = "exact: keys of the causal context never change"
    causal = True

    def pieces(self, masked: Tensor, start: Tensor) -> Tensor:
        """The prompt, then the blocks."""
        return blocks_behind(columns_of(masked), start, self.length)


@dataclass(frozen=True)
class ContextCausal(Seeded, CausalContext):
    """The active block sees all of itself; everything else is causal (NBDiff, arXiv 2512.06776, and
    Nemotron-Labs-Diffusion). The forward that opens a block computes the rows of the block before it, which have just
    become causal, and so final."""

    name = "context-causal"
    is_called = "causal outside the block that is decoded"
    form = "causal; both ways inside the block that is decoded, of {0.length} columns from the answer's start"

    @property
    def one_by_one(self) -> bool:
        return self.length == 1

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder:
        columns, begin = columns_of(masked), self._begin(masked, start)
        return AttentionOrder(columns, torch.where(self._inside(masked, begin), begin + self.length - 1, columns))


@dataclass(frozen=True)
class DenoisedBlock(CausalContext):
    """The active block sees all of itself and of the text before it, which is causal (DiffusionGemma: its canvas and
    its context). The rows of the active block run by a pass of their own, and are thrown away; the forward that opens
    the next block computes its decided text causally, and so finally.

    In layers with a window of W columns, a causal row sees itself and the W - 1 columns before it, and every row of the
    active block the W - 1 columns before the block, and the block.
    """

    name = "denoised-block"
    is_called = "causal outside the block of noise that is decoded"
    form = "causal; both ways inside the block of noise, of {0.length} columns from the answer's start"
    judges = False
    everywhere = False

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder:
        columns, begin = columns_of(masked), self._begin(masked, start)
        inside = self._inside(masked, begin)
        reach = torch.where(inside, begin + self.length - 1, columns)
        return AttentionOrder(columns, reach, torch.where(inside, begin, columns))

    def predicted(self, masked: Tensor, start: Tensor) -> Tensor:
        return self.denoised(masked, start)

    def denoised(self, masked: Tensor, start: Tensor) -> Tensor:
        return self._inside(masked, self._begin(masked, start))


@dataclass(frozen=True)
class CausalByToken(AttentionKind):
    """Every column is a piece of its own."""

    causal = True

    def pieces(self, masked: Tensor, start: Tensor) -> Tensor:
        return columns_of(masked)


@dataclass(frozen=True)
class CausalByRank(CausalByToken):
    """Causal in an order that puts known tokens before masks, both by position (WeDLM, arXiv 2512.22737).

    A mask sees all known tokens, right of it as well, and the masks before it. A known token sees the known ones before
    it, and never a mask. So what is before the first mask is as an autoregressive model would have it, and final.
    """

    name = "causal-by-rank"
    is_called = "causal, known tokens before masks"
    advice = "exact: keys before the first mask never change"
    form = "causal, known tokens before masks; any number of masks in flight"
    judges = False

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder:
        rank = columns_of(masked) + masked * masked.shape[1]
        return AttentionOrder(rank, rank)

    def predicted(self, masked: Tensor, start: Tensor) -> Tensor:
        return masked  # the row of a known token does not predict the token itself


@dataclass(frozen=True)
class NextToken(CausalByToken):
    """Causal by token: the last decided row predicts the next column, and nothing else is predicted (Llama, Mistral,
    Qwen). In layers with a window of W columns a row sees itself and the W - 1 columns before it."""

    name = "next-token"
    is_called = "causal, for the next token"
    advice = "exact: keys never change"
    form = "causal; decode from left to right (experiment=ar)"
    everywhere = False
    next_token = True

    def order(self, masked: Tensor, start: Tensor) -> AttentionOrder:
        columns = columns_of(masked)
        return AttentionOrder(columns, columns, columns)

    def predicted(self, masked: Tensor, start: Tensor) -> Tensor:
        return masked & (masked.cumsum(1) == 1)

    def alone(self, masked: Tensor, start: Tensor) -> Tensor:
        return self.predicted(masked, start)


ORDERED_KINDS = (
    BlockCausal,
    AnswerBlocks,
    PromptBlock,
    PipelinedBlocks,
    SeededBlocks,
    ContextCausal,
    DenoisedBlock,
    CausalByRank,
    NextToken,
)
CAUSAL = frozenset(kind.name for kind in ORDERED_KINDS)  # in which decided text becomes final, piece by piece


def kinds_phrase(kinds: Collection[str]) -> str:
    """What messages say of the models that a cache of these ``kinds`` serves."""
    if set(kinds) == {ContextCausal.name}:
        return "context-causal"
    names = ("causal" if kind.causal else "block-causal" for kind in ORDERED_KINDS if kind.name in kinds)
    return "full" if "full" in kinds else " or ".join(dict.fromkeys(names))
