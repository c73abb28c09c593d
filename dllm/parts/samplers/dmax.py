"""Write an unsure prefix early, show it as mixtures of token and mask, and revise it in every forward (DMax, arXiv
2604.08302).

The rule is that of czg1225/DMax@82bc29e: dInfer/python/dinfer/decoding/parallel_strategy.py (decode_uniform,
get_transfer_index_uniform).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import Set, in_range, name_of
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest
from dllm.contract.clash import Clash
from dllm.contract.readouts import AllLogits
from dllm.contract.setting import Setting
from dllm.contract.step import Mixture
from dllm.contract.traits import SamplerTraits, Soft
from dllm.parts.samplers.base import Sampler

CLOSES_AT = 0.9  # a block whose positions are all this confident is closed; fixed in the published code
TRAINED_NAME = "dmax"  # in the names of weights that were trained to recover text from their own wrong tokens


class DMax(Sampler):
    """Commit the open positions left of the first one whose confidence is below ``threshold``, and the leftmost one at
    least. In the same turn replace every token of the block whose position proposes another one, however unsure.

    The next forward is not given the block's tokens, but mixtures: the ``top_k`` likeliest tokens and the mask by their
    probabilities, stretched to the mean of the norms. A full block closes when all of its positions are at 0.9, when a
    forward changes nothing in it, or after as many forwards as it has columns.
    """

    traits = SamplerTraits(
        stateless=False, deterministic=True, by_confidence=False, edits=True, soft=Soft("decided", 1, True)
    )
    per_request = ("threshold",)
    clashes = (
        Clash(
            lambda c: c.part.top_k > c.model.vocab,
            "{sampler.top_k} is more than the {model.vocab:value} tokens of this model.",
            [Set("sampler.top_k", 1)],
        ),
    )

    def __init__(self, threshold: PerRequest = 0.5, top_k: int = 1) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.top_k", top_k, 1, advice="It counts the tokens of a mixture.")
        self.threshold, self.top_k = threshold, top_k
        self.traits = self.traits.but(soft=Soft("decided", top_k, True))

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True, reads=(AllLogits(),) if self.top_k > 1 else ()),)

    def warning(self, setting: Setting) -> str | None:
        if TRAINED_NAME in setting.name.lower():
            return None
        return (
            f"sampler={name_of(self)} shows {setting.name or 'a model'} mixtures of tokens and the mask, for which it "
            "may not be trained: LLaDA2.0 and 2.1 lose quality. Use DMax's weights, such as model=dmax-16b, or "
            "sampler=joint_threshold."
        )

    def may_wait(self, canvas: Canvas) -> Tensor:
        """A full block is revised for as many turns as it has columns at most."""
        return torch.maximum(super().may_wait(canvas), canvas.end)

    def step(self, view: View, state: State) -> Step:
        blocks, scores, open_ = view.blocks, view.scores, view.open
        unsure = open_ & (scores.confidence < state["threshold"][:, None])
        accepted = open_ & (unsure.cumsum(1) == 0)
        leftmost = open_ & (open_.cumsum(1) == 1)
        commit = torch.where(accepted.any(1, keepdim=True), accepted, leftmost)
        edit = view.editable & (scores.token != view.canvas.tokens)
        active = open_ | view.editable
        changed, has_masks = (commit | edit).any(1), (open_ & ~commit).any(1)
        sure = (~active | (scores.confidence >= CLOSES_AT)).all(1)
        keep_open = has_masks | (~sure & changed & (blocks.forwards < blocks.end - blocks.begin))
        tokens, weights = self.mixtures(view)
        mixture = Mixture(view.editable | commit, tokens, weights)
        return view.step(commit, accepted=accepted, edit=edit, keep_open=keep_open, mixture=mixture)

    def mixtures(self, view: View) -> tuple[Tensor, Tensor]:
        """The likeliest tokens of every position and their probabilities, both [B, L, k]."""
        scores = view.scores
        if self.top_k == 1:
            return scores.token[..., None], scores.confidence[..., None]
        logits, length = scores.of(AllLogits()), scores.token.shape[1]
        best = logits.values.double().softmax(-1).topk(self.top_k, -1)
        at = logits.columns[..., None].expand_as(best.indices)
        shape = (len(at), length + 1, self.top_k)
        tokens, weights = best.indices.new_zeros(shape), best.values.new_zeros(shape)
        return tokens.scatter(1, at, best.indices)[:, :-1], weights.scatter(1, at, best.values)[:, :-1]
