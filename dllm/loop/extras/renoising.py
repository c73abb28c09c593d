"""What a model of noise needs: noise where nothing is decided, and the temperature that its rule sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dllm.contract.canvas import Canvas
from dllm.contract.process import Process
from dllm.loop.extras.base import Extra, Work
from dllm.parts.samplers.base import Sampler


@dataclass(frozen=True)
class Noise(Extra):
    """Undecided positions show noise, for a model that learned to undo it."""

    process: Process  # that noise

    def first_canvas(self, canvas: Canvas) -> Canvas:
        return self.process.fill(canvas)


@dataclass(frozen=True)
class RuleTemperature(Extra):
    """A rule that renoises sets the temperature of every forward itself."""

    sampler: Sampler  # that rule

    def before(self, work: Work) -> Work:
        temperature = self.sampler.turn_temperature(work.rows.blocks, work.rows.state)
        if temperature is None:
            return work
        candidates = replace(work.rows.candidates, temperature=temperature)
        return replace(work, rows=replace(work.rows, candidates=candidates)).on(candidates)
