"""Commit what is of little entropy in all open blocks, and something in the first (d3LLM, arXiv 2601.07568).

The rule is that of hao-ai-lab/d3LLM@e5bfcac: d3llm/d3llm_LLaDA/d3llm_llada_generate_util.py (generate_multi_block),
d3llm/d3llm_DREAM/d3llm_dream_generate_util.py (_sample_multi_block).
"""

from __future__ import annotations

from dllm.common.errors import in_choices, in_range
from dllm.common.ranking import argmax_mask
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import PerRequest
from dllm.contract.readouts import Statistic
from dllm.contract.traits import SamplerTraits
from dllm.parts.samplers.base import Sampler


class D3LLM(Sampler):
    """Commit each open position of at most ``threshold`` nats of entropy. If none of them is in the current block,
    also its position of least entropy. form ``llada``: always the position of least entropy in all open blocks, too;
    ``dream``: the threshold is strict.

    In one block at a time that is ``DParallel``. It is meant for ``blocks=ahead``.
    """

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False, ranks_by="entropy")
    per_request = ("threshold",)

    def __init__(self, threshold: PerRequest = 0.5, form: str = "llada") -> None:
        in_range("sampler.threshold", threshold, 0.0)
        in_choices("sampler.form", form, ("llada", "dream"))
        self.threshold, self.form = threshold, form

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("entropy")),)

    def step(self, view: View, state: State) -> Step:
        entropy, bar = view.scores.statistic("entropy"), state["threshold"][:, None]
        accepted = view.open & (entropy <= bar if self.form == "llada" else entropy < bar)
        commit = accepted | argmax_mask(-entropy, view.open) if self.form == "llada" else accepted
        front = view.open & view.blocks.in_block
        commit = commit | argmax_mask(-entropy, front)  # where one of the block is committed, this one is
        commit = commit | (argmax_mask(-entropy, view.open) & ~commit.any(1, keepdim=True))
        return view.step(commit, accepted=accepted)
