"""Checks that parts and model fit a rule under which positions show mixtures of tokens and the mask."""

from __future__ import annotations

from dllm.contract.setting import Setting
from dllm.errors import UserError, name_of
from dllm.samplers.base import Sampler

ATTENTIONS = {"decided": ("block-causal",), "undecided": ("full", "block-causal")}  # kinds of attention, by ``Soft.at``


def check_soft(setting: Setting, sampler: Sampler) -> None:
    """Raise UserError for what mixtures mean nothing to, or would be wrong under."""
    soft, model, sampling, schedule = sampler.traits.soft, setting.model, setting.sampling, setting.blocks
    if soft is None:
        return
    name, kind = f"sampler={name_of(sampler)} shows mixtures of tokens and the mask", model.attention
    if model.prediction_shift or model.seed_shift:
        raise UserError(
            f"{name} at the position that they predict, but this model predicts it from the one before. Use "
            "sampler=confidence, or a model without that shift, such as LLaDA2."
        )
    if kind.name not in ATTENTIONS[soft.at] or model.carries:
        kinds = " or ".join(ATTENTIONS[soft.at])
        raise UserError(
            f"{name} to models with {kinds} attention, and this one is {kind.is_called}. Use sampler=confidence."
        )
    if not schedule.traits.follows or sampler.traits.lookahead:
        raise UserError(
            f"{name} in one block at a time, whose columns are known before it opens, and blocks={name_of(schedule)} "
            "does otherwise. Use blocks=fixed."
        )
    if sampling.guidance:
        raise UserError(
            f"{name}, which say what the model alone expects, and sampling.guidance={sampling.guidance:g} mixes two "
            "forwards. Set sampling.guidance=0."
        )
    if not sampling.plain or sampling.eos_last:
        raise UserError(
            f"{name}, and its published code takes the argmax: sampling.temperature, top_p, top_k and eos_last do not "
            "apply. Set them to 0, null, null and false."
        )
