"""A sampler of one's own: every other position first, the positions between them afterwards."""

from dllm import Decoder, load
from dllm.common.ranking import argmax_mask
from dllm.contract import SamplerTraits, State, Step, View
from dllm.parts.samplers.base import Sampler


class Alternate(Sampler):
    """Commit even offsets whose confidence reaches 0.9, and then the others; always the most confident one."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=False)

    def step(self, view: View, state: State) -> Step:
        even = view.open & ((view.canvas.columns - view.blocks.begin[:, None]) % 2 == 0)
        turn = even | (view.open & ~even.any(1, keepdim=True))  # [B, L]: the odd ones where a row has no even one left
        accepted = turn & (view.scores.confidence >= 0.9)
        return view.step(accepted | argmax_mask(view.scores.confidence, turn), accepted=accepted)


model = load("mini-llada")
for sampler in (Alternate(), "confidence"):
    (result,) = Decoder(model, sampler, gen_length=32)('Copy the list:\n["Kai", "Emma", "Ada"]')
    print(f"{result.text}  forwards: {result.nfe}; of each token: {result.turns}")
