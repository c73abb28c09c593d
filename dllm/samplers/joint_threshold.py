"""Fill masks at a low threshold and replace the tokens that turn out wrong, until nothing changes (LLaDA2.1, arXiv
2602.08676)."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from dllm.common.ranking import top_k_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.readouts import AllLogits
from dllm.contract.setting import Setting
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.errors import UserError, in_range, name_of
from dllm.samplers.base import Sampler
from dllm.samplers.credit import scatter_into


class JointThreshold(Sampler):
    """Commit each open position whose confidence exceeds ``threshold``, and ``minimum`` of them at least, the most
    confident first. In the same turn replace each token of the block whose position proposes another one with a
    confidence above ``edit_threshold`` (None: never; 0: whenever it differs).

    A full block is held until a forward replaces nothing in it, or has had ``post_edit_steps`` of them. penalty: is
    taken from the logit of the token that is one column to the left in the block, masks included.
    """

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True, edits=True)
    per_request = ("threshold", "edit_threshold")

    def __init__(
        self, threshold: PerRequest = 0.7, edit_threshold: PerRequest | None = 0.5, post_edit_steps: int = 16,
        minimum: int = 1, penalty: float = 0.0,
    ) -> None:  # fmt: skip
        in_range("sampler.threshold", threshold, 0.0, 1.0)
        in_range("sampler.edit_threshold", edit_threshold, 0.0, 1.0, "null replaces nothing.")
        in_range("sampler.post_edit_steps", post_edit_steps, 0, advice="It counts the forwards of a full block.")
        in_range("sampler.minimum", minimum, 1, advice="A turn with masks commits at least one.")
        in_range("sampler.penalty", penalty, 0.0, advice="0 is off.")
        self.threshold, self.edit_threshold, self.penalty = threshold, edit_threshold, penalty
        self.post_edit_steps, self.minimum = post_edit_steps, minimum
        self.traits = self.traits.but(patience=max(self.traits.patience, post_edit_steps))

    def needs(self) -> tuple[Need, ...]:
        return (Need(committed=True, reads=(AllLogits(),) if self.penalty else ()),)

    def check(self, setting: Setting) -> None:
        if self.penalty and (setting.sampling.eos_last or not setting.sampling.plain):
            raise UserError(
                f"sampler.penalty={self.penalty:g}: sampler={name_of(self)} then proposes the argmax of other logits, "
                "to which sampling.temperature, top_p, top_k and eos_last do not apply. Set them to 0, null and false, "
                "or sampler.penalty to 0."
            )

    def warning(self, setting: Setting) -> str | None:
        family = setting.model.family
        if family == "llada2" or self.edit_threshold is None:  # LLaDA2.0 and 2.1 have the same files
            return None
        return (
            f"sampler.edit_threshold={self.edit_threshold}: models of the family {family} were not trained to replace "
            "tokens, so what they propose in the place of a token that they see may be worse than it. Set "
            "sampler.edit_threshold=null, or use a model that was, such as LLaDA2.1."
        )

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """spent [B]: forwards that the block has had since it is full. held [B]: it was kept open by the last turn."""
        edit = inf if self.edit_threshold is None else self.edit_threshold
        return {
            "threshold": per_row(self.threshold, canvas), "edit_threshold": per_row(edit, canvas),
            "spent": torch.zeros_like(canvas.start), "held": torch.zeros_like(canvas.shortened),
        }  # fmt: skip

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
        spent, bar = torch.where(masks, 0, state["spent"] + 1), state["edit_threshold"]
        surer = (confidence > bar[:, None]) & (token != view.canvas.tokens)
        edit = view.editable & surer & (masks | state["held"])[:, None]
        keep_open = (masks | edit.any(1)) & (spent < self.post_edit_steps) & (bar < inf)
        return view.step(
            commit, tokens=token, confidence=confidence, accepted=accepted, edit=edit, keep_open=keep_open,
            state={"spent": spent, "held": keep_open},
        )  # fmt: skip


def penalised(view: View, penalty: float) -> tuple[Tensor, Tensor]:
    """Proposals and confidences [B, L] when ``penalty`` is taken from the logit of the token to the left, for all but
    the block's first column."""
    scores, tokens, logits = view.scores, view.canvas.tokens, view.scores.of(AllLogits())
    length = tokens.shape[1]
    inside = (logits.columns > view.blocks.begin[:, None]) & (logits.columns < length)
    left = tokens.gather(1, (logits.columns - 1).clamp(0, length - 1))[..., None]
    values = logits.values.double().scatter_add(2, left, -penalty * inside.double()[..., None])
    token = values.argmax(-1)
    confidence = values.softmax(-1).gather(-1, token[..., None])[..., 0]
    columns = logits.columns
    return scatter_into(scores.token, columns, token), scatter_into(scores.confidence, columns, confidence)
