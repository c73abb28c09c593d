"""Fill masks at a low threshold and replace the tokens that turn out wrong, until nothing changes (LLaDA2.1, arXiv
2602.08676), or mask them again (token-to-mask, arXiv 2604.18738)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from torch import Tensor

from dllm.common.errors import Refusal, Set, in_range
from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.clash import NEUTRAL_SAMPLING, UNGUIDED, Clash, switched_off
from dllm.contract.readouts import AllLogits
from dllm.contract.setting import Setting
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.credit import scatter_into
from dllm.parts.samplers.doubts import Doubts

EDIT = Set("sampler.repair", "edit")  # the way out where tokens are doubted


class JointThreshold(Sampler):
    """Commit each open position whose confidence exceeds ``threshold``, and ``minimum`` of them at least, the most
    confident first. In the same turn replace each token of the block whose position proposes another one with a
    confidence above ``edit_threshold`` (None: never; 0: whenever it differs).

    A full block is held until a forward replaces nothing in it, or has had ``post_edit_steps`` of them. penalty: is
    taken from the logit of the token that is one column to the left in the block, masks included.

    repair: ``edit``, or a test of ``Doubts`` by which tokens are masked again instead, so that a later forward fills
    them from a cleaner context; remask_threshold (None: the published one of the test), budget and ratio are its own.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True, edits=True)
    per_request = ("threshold", "edit_threshold")
    clashes = (
        Clash(
            lambda c: c.part.doubts and c.model.prediction_shift,
            "{sampler.repair} judges a token at its own position, but this model predicts it from the one before "
            "(Dream).",
            [EDIT, Set("sampler", "saber")],
            "Saber remasks, too.",
        ),
        Clash(
            lambda c: c.part.doubts and c.sampling.guidance,
            "{sampler.repair} judges tokens by the model's own probabilities, which {sampling.guidance} changes.",
            [UNGUIDED, EDIT],
        ),
        Clash(
            lambda c: c.part.penalty and (c.sampling.eos_last or not c.sampling.plain),
            "{sampler.penalty}: {sampler} then proposes the argmax of other logits, to which "
            "{sampling.temperature:name}, {sampling.top_p:name}, {sampling.top_k:name} and {sampling.eos_last:name} "
            "do not apply.",
            [switched_off(*NEUTRAL_SAMPLING), Set("sampler.penalty", 0)],
        ),
    )

    def __init__(
        self,
        threshold: PerRequest = 0.7,
        edit_threshold: PerRequest | None = 0.5,
        post_edit_steps: int = 16,
        minimum: int = 1,
        penalty: float = 0.0,
        repair: str = "edit",
        remask_threshold: float | None = None,
        budget: int = 5,
        ratio: float = 0.25,
    ) -> None:
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.edit_threshold", edit_threshold, 0.0, 1.0, "{null} replaces nothing.")
        in_range("sampler.post_edit_steps", post_edit_steps, 0, advice="It counts the forwards of a full block.")
        in_range("sampler.minimum", minimum, 1, advice="A turn with masks commits at least one.")
        in_range("sampler.penalty", penalty, 0.0, advice="0 is off.")
        self.threshold, self.edit_threshold, self.penalty = threshold, edit_threshold, penalty
        self.post_edit_steps, self.minimum = post_edit_steps, minimum
        self.repair, self.doubts = repair, Doubts.of(repair, remask_threshold, budget, ratio)
        if self.doubts and penalty:
            raise Refusal(
                "{sampler.penalty} changes what is proposed, and {sampler.repair} doubts tokens by the model's own "
                "probabilities.",
                [penalty, repair],
                (Set("sampler.penalty", 0), Set("sampler.repair", "edit")),
            )
        self.traits = self.traits.but(
            patience=max(self.traits.patience, post_edit_steps), revocable=self.doubts is not None
        )

    @property
    def per_block(self) -> Mapping[str, float]:
        return {"forwards": 0}

    def needs(self) -> tuple[Need, ...]:
        reads = self.doubts.reads if self.doubts else (AllLogits(),) if self.penalty else ()
        return (Need(committed=True, reads=reads),)

    def warning(self, setting: Setting) -> str | None:
        family = setting.model.family
        if family == "llada2" or (self.edit_threshold is None and not self.doubts):  # 2.0 and 2.1 have the same files
            return None
        if self.doubts:
            return (
                f"sampler.repair={self.repair}: models of the family {family} were not trained to see wrong tokens, so "
                "what they think of a token that they see may tell little. Use sampler=confidence, or LLaDA2.1, which "
                "was trained so."
            )
        return (
            f"sampler.edit_threshold={self.edit_threshold}: models of the family {family} were not trained to replace "
            "tokens, so what they propose instead of a visible token may be worse than it. Set "
            "sampler.edit_threshold=null, or use a model that was, such as LLaDA2.1."
        )

    def may_wait(self, canvas: Canvas) -> Tensor:
        patience = super().may_wait(canvas)
        if self.doubts is None:
            return patience
        return torch.maximum(patience, self.doubts.most_turns(canvas.undecided.sum(1), self.post_edit_steps))

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """forwards [B]: those that began with a full block. kept_open [B]: it was kept open by the last turn. The rest
        is that of ``Doubts``."""
        edit = inf if self.edit_threshold is None else self.edit_threshold
        return {
            "threshold": per_row(self.threshold, canvas),
            "edit_threshold": per_row(edit, canvas),
            "forwards": torch.zeros_like(canvas.start),
            "kept_open": torch.zeros_like(canvas.shortened),
            **(self.doubts.start(canvas) if self.doubts else {}),
        }

    def least(self, view: View) -> Tensor:
        """How many positions [B] the turn commits at least."""
        return torch.full_like(view.canvas.start, self.minimum)

    def step(self, view: View, state: State) -> Step:
        token, confidence = (
            penalised(view, self.penalty) if self.penalty else (view.scores.token, view.scores.confidence)
        )
        masks = (view.canvas.undecided & view.blocks.in_block).any(1)
        accepted, least = view.open & (confidence > state["threshold"][:, None]), self.least(view)
        enough = accepted.sum(1, keepdim=True) >= least[:, None]
        commit = torch.where(enough, accepted, top_k_mask(confidence, view.open, least))
        forwards, among = state["forwards"] + ~masks, view.editable & (masks | state["kept_open"])[:, None]
        if self.doubts:
            remask, remembered = self.doubts.remask(view, state, among)
            edit, waits = None, masks | remask.any(1)
        else:
            bar, remask, remembered = state["edit_threshold"], None, State()
            edit = among & (confidence > bar[:, None]) & (token != view.canvas.tokens)
            waits = (masks | edit.any(1)) & (bar < inf)
        keep_open = waits & (forwards < self.post_edit_steps)
        return view.step(
            commit,
            tokens=token,
            confidence=confidence,
            accepted=accepted,
            edit=edit,
            remask=remask,
            keep_open=keep_open,
            state={"forwards": forwards, "kept_open": keep_open, **remembered},
        )


def penalised(view: View, penalty: float) -> tuple[Tensor, Tensor]:
    """Proposals and confidences [B, L] when ``penalty`` is taken from the logit of the token to the left, for all but
    the block's first column."""
    scores, tokens, logits = view.scores, view.canvas.tokens, view.scores.of(AllLogits())
    length = tokens.shape[1]
    inside = (logits.columns > view.blocks.begin[:, None]) & (logits.columns < length)
    previous = tokens.gather(1, (logits.columns - 1).clamp(0, length - 1))[..., None]
    values = logits.values.double().scatter_add(2, previous, -penalty * inside.double()[..., None])
    token = values.argmax(-1)
    confidence = values.softmax(-1).gather(-1, token[..., None])[..., 0]
    columns = logits.columns
    return scatter_into(scores.token, columns, token), scatter_into(scores.confidence, columns, confidence)
