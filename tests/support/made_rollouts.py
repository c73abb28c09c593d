"""Rollouts from recorded or enumerated tokens, as no decode of ours made them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dllm.parts import Model, Origin, Rollouts, Sampling


def made_rollouts(
    model: Model,
    prompt: Sequence[int],
    answers: Tensor,
    step_map: Tensor,
    *,
    completion_mask: Tensor | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
    temperature: float = 1.0,
    draw_ids: Tensor | None = None,
    canvas_ids: Tensor | None = None,
) -> Rollouts:
    """Rows of one prompt. answers, step_map [R, G]: forwards from 1."""
    rows, forwards = len(answers), step_map.amax(1)
    prompts = torch.tensor(prompt).repeat(rows, 1)
    width = torch.full((rows, int(forwards.max())), len(prompt) + answers.shape[1], dtype=torch.int32)
    unknown = torch.full(answers.shape, torch.nan, dtype=torch.float64)
    assert model.ids.mask is not None
    return Rollouts(
        prompt_ids=prompts, prompt_mask=torch.ones_like(prompts), completion_ids=answers,
        completion_mask=torch.ones_like(answers) if completion_mask is None else completion_mask,
        step_map=step_map.int(), origin=torch.full(answers.shape, Origin.DRAWN, dtype=torch.int8), own_logps=unknown,
        drawn_logps=unknown, block=torch.zeros_like(step_map).int(), width=width, forwards=forwards,
        seeds=torch.arange(rows), group=torch.zeros(rows, dtype=torch.int64),
        temperature=torch.full((rows,), temperature, dtype=torch.float64), bent=torch.zeros(rows, dtype=torch.bool),
        draw_ids=draw_ids, canvas_ids=canvas_ids, finish=["length"] * rows, texts=[""] * rows, notes=[], results=[],
        mask_id=model.ids.mask, pad_id=model.ids.eos, ends=model.ids.ends, sampling=sampling,
    )  # fmt: skip
