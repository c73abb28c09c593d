"""Show masks as mixtures of what the last forward expected there, and take a mixture back where that jumped (ReMix,
arXiv 2602.22868).

The rule is that of Serpientw/ReMix-DLLM@350fcd8: LLaDA/model/decoding.py (decoding_remix).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.common.errors import in_range, name_of
from dllm.common.ranking import argmax_mask, top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.readouts import AllLogits, ByColumn, Disallowed
from dllm.contract.setting import Setting, replaced
from dllm.contract.step import Mixture
from dllm.contract.traits import SamplerTraits, Schedule, Soft
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.credit import scatter_into

MOST_TOKENS = 50  # of a mixture, at most
DISTRIBUTIONS = 32  # distributions at a time: of 126,464 tokens in float64 they take 32 MB
LEAST_CHANCE = 2.0**-23  # the least probability that the divergence counts with


@dataclass(frozen=True)
class UnconstrainedLogits(AllLogits):
    """All logits as the model has them, without a constraint."""

    def without(self, logits: ByColumn, disallowed: Disallowed) -> ByColumn:
        return logits


class ReMix(Sampler):
    """Commit what exceeds ``threshold``, at most min(max(floor(0.7 masks), 5), 20) positions; if nothing does, the most
    confident one. In the next forward a mask of the block is given (1 - ``mix``) of the mask's embedding and ``mix`` of
    what was expected there: the likeliest tokens up to twice the largest probability, and the mask for the rest.

    A mask whose distribution moved by a Jensen-Shannon divergence of more than ``js_threshold`` nats is a plain mask
    again; nothing decided is touched. The first forward of a block, and the answer's second, are given plain masks.

    across: distributions of the next block's masks are kept too, so that its first forward is compared with the last
    one before it (as published). State: the last distributions of the open block and the next [B, 2 K, V] in float32,
    130 MB a row for K = 128 and 126,464 tokens; half without ``across``.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True, soft=Soft("undecided", MOST_TOKENS))
    per_request = ("threshold", "js_threshold", "mix")
    span = (0, 2)  # columns whose distributions are kept, from the block's first on; until it is resolved

    def __init__(
        self, threshold: PerRequest = 0.9, js_threshold: PerRequest = 0.3, mix: PerRequest = 0.5, across: bool = True
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.js_threshold", js_threshold, 0.0, 1.0, "From ln 2 = 0.694 on nothing is taken back.")
        in_range("sampler.mix", mix, 0.0, 1.0, "0 shows plain masks.")
        self.threshold, self.js_threshold, self.mix, self.across = threshold, js_threshold, mix, across

    def needs(self) -> tuple[Need, ...]:
        reads = (UnconstrainedLogits(),)
        return (Need("ahead", span=self.span, reads=reads) if self.across else Need(reads=reads),)

    def resolved(self, setting: Setting) -> Sampler:
        """Knows how many columns a block has, and how many tokens there are."""
        widest = setting.blocks.widest(setting.model.max_length)
        soft = Soft("undecided", min(MOST_TOKENS, setting.model.vocab))
        return replaced(self, span=(0, widest * (1 + self.across)), traits=self.traits.but(soft=soft))

    def warning(self, setting: Setting) -> str | None:
        if setting.model.attention.name == "full":
            return None
        return (
            f"sampler={name_of(self)} was published for models with full attention, and this one is "
            f"{setting.model.attention.is_called}: nothing is known of how it does there. Compare sampler=confidence."
        )

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """before [B, W, V]: the last distributions, by columns from ``origin`` [B] on; zero where a mixture was taken
        back. No token until the first scores tell how many there are."""
        nothing = torch.zeros(len(canvas.start), min(len(canvas.columns), self.span[1]), 0, device=canvas.start.device)
        return super().start(canvas, blocks) | {"before": nothing, "origin": torch.zeros_like(canvas.start)}

    def step(self, view: View, state: State) -> Step:
        confidence, masks = view.scores.confidence, view.canvas.undecided & view.blocks.in_block
        accepted = view.open & (confidence > state["threshold"][:, None])
        accepted = top_k_mask(confidence, accepted, (7 * masks.sum(1) // 10).clamp(5, 20))
        commit = accepted | (argmax_mask(confidence, view.open) & ~accepted.any(1, keepdim=True))
        masks_after, blocks = masks & ~commit, view.blocks
        tokens, shares, moved, now = looked_at(view, state["before"], state["origin"])
        first = (blocks.turn if self.across else blocks.forwards) == 1
        rejected = masks_after & (moved > state["js_threshold"][:, None]) & ~first[:, None]
        place = (blocks.begin[:, None] + torch.arange(now.shape[1], device=now.device)).clamp(max=masks.shape[1] - 1)
        now = now.masked_fill(rejected.gather(1, place)[..., None], 0)
        is_shown = masks_after & ~rejected & (blocks.turn > 1)[:, None]
        mixture = Mixture(is_shown, tokens, shares * state["mix"][:, None, None], rejected)
        return view.step(commit, accepted=accepted, mixture=mixture, state={"before": now, "origin": blocks.begin})


def looked_at(view: View, before: Tensor, origin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every column, the tokens of its mixture and their probabilities [B, L, k], and how far its distribution moved
    [B, L] since ``before`` [B, W, V], which is by columns from ``origin`` [B] on; and the distributions now, by columns
    from the block's first on."""
    all_logits, length, width = view.scores.of(UnconstrainedLogits()), len(view.canvas.columns), before.shape[1]
    vocab = all_logits.values.shape[-1]
    before = before if before.shape[2] else before.new_zeros(len(before), width, vocab)
    now = before.new_zeros(len(before), width + 1, vocab)
    parts = list[tuple[Tensor, Tensor, Tensor]]()
    rows = torch.arange(len(before), device=origin.device)[:, None]
    pieces = (tensor.split(DISTRIBUTIONS, 1) for tensor in (all_logits.values, all_logits.columns))
    for logits, columns in zip(*pieces, strict=True):
        p = logits.double().softmax(-1)
        last = before[rows, (columns - origin[:, None]).clamp(0, width - 1)]
        parts.append((*mixture_of(p), jensen_shannon(last, p.float())))
        place = columns - view.blocks.begin[:, None]
        now[rows, torch.where((place < 0) | (columns == length), width, place).clamp(max=width)] = p.float()
    tokens, shares, moved = (torch.cat(values, 1) for values in zip(*parts, strict=True))
    blank = view.canvas.tokens[..., None].expand(-1, -1, tokens.shape[2])
    tokens = scatter_into(blank, all_logits.columns, tokens)
    shares = scatter_into(torch.zeros_like(blank).double(), all_logits.columns, shares)
    moved = scatter_into(view.scores.confidence.float(), all_logits.columns, moved)
    return tokens, shares, moved, now[:, :-1]


def mixture_of(p: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of mixtures of distributions p [..., V], the likeliest first, and their probabilities, both [..., k]:
    those whose cumulative sum is at most min(max(2 max p, 0.2), 0.9), and the first; the others have 0."""
    best = p.topk(min(MOST_TOKENS, p.shape[-1]), -1)
    most = (2 * best.values[..., :1]).clamp(0.2, 0.9)
    inside = best.values.cumsum(-1) <= most
    inside[..., :1].fill_(True)
    return best.indices, best.values * inside


def jensen_shannon(before: Tensor, now: Tensor) -> Tensor:
    """The divergence [...] of two distributions [..., V] in nats, whose entries are ``LEAST_CHANCE`` at least and not
    normalised again, as published."""
    a, b = before.clamp(min=LEAST_CHANCE), now.clamp(min=LEAST_CHANCE)
    middle = ((a + b) / 2).log()
    return ((a * (a.log() - middle)).sum(-1) + (b * (b.log() - middle)).sum(-1)) / 2
