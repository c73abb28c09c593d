"""A decode ends, also where a cache lets fewer positions be committed than a schedule wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, starmap

import torch
from harness import Shown, build, drawn, forward_of, model, requests
from law import law

from dllm import UserError
from dllm.blocks.fixed import Fixed
from dllm.cache.base import Cache
from dllm.cache.dual import Dual
from dllm.cache.elastic import Elastic
from dllm.cache.prefix import Prefix
from dllm.cache.window import Window
from dllm.compose.fitted import Parts
from dllm.compose.parts import choices
from dllm.compose.validate import validate
from dllm.contract.canvas import Canvas
from dllm.contract.setting import Sampling, Setting
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise
from dllm.samplers.base import Sampler
from dllm.samplers.dream import Dream
from dllm.samplers.order import Order
from dllm.samplers.pc import PC
from dllm.samplers.rcr import RCR
from dllm.samplers.remdm import ReMDM
from dllm.samplers.static import Static

BLOCKS = Fixed(8)
MOST = 200  # turns; 24 positions at one a turn, and what revocable rules add, take fewer

# Caches that commit less than they are asked for: one at a time, or one first.
NARROW: dict[str, Cache] = {
    "elastic": Elastic(window_length=1), "window": Window(1, 4, 3), "window-first": Window(
        4, 12, 2, "range", refresh_candidates="first"),
    "dual": Dual(query_left=False), "prefix": Prefix(query_left=False),
}  # fmt: skip
SCHEDULES: dict[str, Sampler] = {
    "one-step": Static(1), "steps": Static(7), "three": Static(per_step=3), "order": Order(steps=5),
    "order-four": Order(per_step=4), "pc": PC(steps=3), "dream": Dream(steps=4), "rcr": RCR(3), "remdm": ReMDM(4),
}  # fmt: skip


@dataclass(frozen=True)
class Narrow(Shown):
    """A sampler under a cache that commits less than it is asked for."""

    sampler: str
    cache: str
    model: str

    @property
    def rule(self) -> Sampler:
        return SCHEDULES[self.sampler] if self.sampler in SCHEDULES else build("sampler", self.sampler)

    def accepted(self) -> bool:
        try:
            validate(Setting(model(self.model).config, BLOCKS, None), self.rule, NARROW[self.cache], FullLength())
        except UserError:
            return False
        return True


def narrow() -> Iterator[Narrow]:
    cases = starmap(Narrow, drawn([*SCHEDULES, *choices("sampler")], list(NARROW), ("tiny-llada", "tiny-dream")))
    return filter(Narrow.accepted, cases)


@law(narrow, daily=15, least=200)
def test_every_mask_is_decided_in_the_end(case: Narrow) -> None:
    rule, keep = case.rule, FullLength()
    forward = forward_of(
        model(case.model), Parts(rule, BLOCKS, NARROW[case.cache], keep), Sampling(tempered=rule.traits.tempered)
    )
    with torch.inference_mode():
        loop = denoise(Canvas.of(requests(), 61), forward, Parts(rule, BLOCKS, NARROW[case.cache], keep))
        made = list(islice(loop, MOST))
    assert len(made) < MOST
    assert not made[-1].candidates.masked.any()
