"""Draw each canvas from the posterior of the uniform process (D3PM, arXiv 2107.03006; DUO, arXiv 2506.10892;
diffusers 0.42.1: ``DiscreteDDIMScheduler``)."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.errors import in_range
from dllm.common.noise import uniform
from dllm.contract import BlockState, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.process import Uniform
from dllm.contract.setting import Setting, replaced
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler

ROUTE = 1 << 41  # keeps the choice of a route apart from draws and noise


class Ancestral(Sampler):
    """Commit a block's draws in the last of its ``steps`` forwards. alpha is the share of its positions that the
    process has left clean: 0 in the first, 1 after the last. Each forward draws what a position may be in the end, at
    ``temperature``. Then the position shows that draw, or what it showed, or fresh noise, by the posterior q(x_s | x_t,
    x_0) of the uniform process between two alphas (``routes``).
    """

    traits = SamplerTraits(stateless=True, renoises=True, tempered=True, deterministic=False, by_confidence=False)
    per_request = ("steps", "temperature")

    def __init__(self, steps: PerRequest = 32, temperature: PerRequest = 1.0) -> None:
        in_range("sampler.steps", steps, 1, advice="It is the forwards of a block.")
        in_range("sampler.temperature", temperature, 0.0, advice="0 is the argmax.")
        self.steps, self.temperature = steps, temperature
        self.process: Uniform | None = None  # known with the model

    def resolved(self, setting: Setting) -> Sampler:
        return replaced(self, process=Uniform(setting.model.vocab))

    def may_wait(self, canvas: Canvas) -> Tensor:
        return per_row(self.steps, canvas).long()

    def turn_temperature(self, blocks: BlockState, state: State) -> Tensor:
        return state["temperature"]

    def step(self, view: View, state: State) -> Step:
        assert self.process is not None, "the model is known before the first turn"
        canvas, blocks, steps = view.canvas, view.blocks, state["steps"]
        draw, now, then = view.scores.token, (blocks.forwards - 1) / steps, blocks.forwards / steps
        clean, stay, fresh = routes(now[:, None], then[:, None], draw == canvas.tokens, self.process.vocab)
        at = uniform(canvas.seed[:, None], canvas.columns, blocks.turn[:, None], ROUTE) * (clean + stay + fresh)
        is_drawn, is_kept = at < clean, at < clean + stay
        noise = self.process.noise(canvas, blocks.turn)
        last = view.open & (then >= 1)[:, None]
        return view.step(
            last,
            accepted=view.open & (is_drawn | last),
            shown=torch.where(is_drawn, draw, torch.where(is_kept, canvas.tokens, noise)),
        )


def routes(now: Tensor, then: Tensor, same: Tensor, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """How much of q(x_s | x_t, x_0) goes to x_0, to x_t, and to noise, where these can be told apart; they add up to
    the share of x_t. now, then: alpha_t < alpha_s. same: x_t is x_0."""
    survival = now / then  # of a clean token from s to t
    clean = (then - now) / vocab + now * same
    return clean, survival * (1 - then) / vocab * torch.ones_like(clean), (1 - survival) * (1 - then) / vocab
