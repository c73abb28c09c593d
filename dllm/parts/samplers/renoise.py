"""Draw a whole block again in every forward, keep the draws that an entropy bound admits, and commit it at once
(DiffusionGemma; transformers 5.24: ``generation_diffusion_gemma.py``)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dllm.common.errors import Refusal, in_range
from dllm.common.ranking import within_budget
from dllm.contract import BlockState, Need, State, Step, View
from dllm.contract.canvas import Canvas, PerRequest, per_row
from dllm.contract.process import Uniform
from dllm.contract.readouts import Statistic
from dllm.contract.setting import Setting, replaced
from dllm.contract.traits import SamplerTraits, Schedule
from dllm.parts.samplers.base import Sampler

NOT_YET = -1  # an id that no forward proposes
MOST_HEAT = 100.0  # a temperature at which every token is as likely as another


class Renoise(Sampler):
    """Commit a block whole, after at most ``steps`` forwards, s = steps, ..., 1, at the temperatures t_min + (t_max -
    t_min) s / steps. Each draws a token for every position. Sorted by entropy, H(1) <= H(2) <= ..., the longest prefix
    whose sum without its largest entry is at most ``entropy_bound`` nats shows its draws in the next forward, and all
    others fresh noise: nothing is decided. A block is committed whole, to the likeliest tokens of its last forward:
    when these are those of ``stability`` forwards before, too, and the mean entropy is under ``stop_entropy`` nats; or
    by the last forward.
    """

    traits = SamplerTraits(stateless=False, renoises=True, tempered=True, deterministic=False, by_confidence=False)
    per_request = ("steps", "entropy_bound", "t_min", "t_max", "stop_entropy")

    def __init__(
        self,
        steps: PerRequest = 48,
        entropy_bound: PerRequest = 0.1,
        t_min: PerRequest = 0.4,
        t_max: PerRequest = 0.8,
        stability: int = 1,
        stop_entropy: PerRequest = 0.005,
    ) -> None:
        in_range("sampler.steps", steps, 1, advice="It is the most forwards of a block.")
        in_range("sampler.entropy_bound", entropy_bound, 1e-9, advice="It is in nats.")
        in_range("sampler.t_min", t_min, 0.0)
        in_range("sampler.t_max", t_max, 1e-9, MOST_HEAT)
        in_range("sampler.stability", stability, 0, 64, "It counts forwards; 0 asks for none.")
        in_range("sampler.stop_entropy", stop_entropy, 1e-12, advice="It is in nats.")
        if bool((torch.as_tensor(t_max) <= torch.as_tensor(t_min)).any()):
            raise Refusal("{sampler.t_max} must be larger than {sampler.t_min}: a block cools down.", [t_max, t_min])
        self.steps, self.entropy_bound, self.stability = steps, entropy_bound, stability
        self.t_min, self.t_max, self.stop_entropy = t_min, t_max, stop_entropy
        self.process: Uniform | None = None  # known with the model

    @property
    def per_block(self) -> Mapping[str, float]:
        return {"history": NOT_YET}

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy", "first", "likeliest")),)

    def resolved(self, setting: Setting) -> Sampler:
        return replaced(self, process=Uniform(setting.model.vocab))

    def may_wait(self, canvas: Canvas) -> Tensor:
        return per_row(self.steps, canvas).long()

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """history [B, k, L]: the likeliest tokens of the last k forwards of the block."""
        rows, length = canvas.tokens.shape
        history = canvas.tokens.new_full((rows, self.stability, length), NOT_YET)
        return super().start(canvas, blocks) | {"history": history}

    def turn_temperature(self, blocks: BlockState, state: State) -> Tensor:
        share = (state["steps"] - blocks.forwards) / state["steps"]
        return state["t_min"] + (state["t_max"] - state["t_min"]) * share.clamp(min=0)

    def step(self, view: View, state: State) -> Step:
        open_, scores, history = view.open, view.scores, state["history"]
        entropy, likeliest = scores.statistic("entropy"), scores.statistic("likeliest")
        accepted = within_budget(entropy, open_, state["entropy_bound"])
        steady = ((history == likeliest[:, None]) | ~open_[:, None]).all(2).all(1)
        mean = (entropy * open_).sum(1) / open_.sum(1).clamp(min=1)
        last = view.blocks.forwards >= state["steps"]
        stop = (steady & (mean < state["stop_entropy"])) | last
        return view.step(
            open_ & stop[:, None],
            tokens=likeliest,
            confidence=scores.statistic("first"),
            accepted=accepted,
            shown=torch.where(accepted, self.draws(view), self.noise(view)),
            state={"history": torch.cat([history[:, 1:], likeliest[:, None]], 1)[:, : self.stability]},
        )

    def draws(self, view: View) -> Tensor:
        """A draw for every position [B, L]; the accepted ones are shown."""
        return view.scores.token

    def noise(self, view: View) -> Tensor:
        """What the other positions show [B, L]."""
        assert self.process is not None, "the model is known before the first turn"
        return self.process.noise(view.canvas, view.blocks.turn)
