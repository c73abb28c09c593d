"""A decode ends, also where a cache lets fewer positions be committed than a schedule wants."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from harness import build, forward_of, model, requests

from dllm import UserError
from dllm.cache.base import Cache
from dllm.cache.dual import Dual
from dllm.cache.elastic import Elastic
from dllm.cache.prefix import Prefix
from dllm.cache.window import Window
from dllm.canvas import Canvas
from dllm.denoise import denoise
from dllm.eos.base import Keep
from dllm.parts import choices
from dllm.samplers.base import Sampler
from dllm.samplers.dream import Dream
from dllm.samplers.order import Order
from dllm.samplers.pc import PC
from dllm.samplers.rcr import RCR
from dllm.samplers.remdm import ReMDM
from dllm.samplers.static import Static
from dllm.scores import Sampling
from dllm.setting import Setting, validate

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


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize("cache", NARROW)
@pytest.mark.parametrize("sampler", [*SCHEDULES, *choices("sampler")])
def test_every_mask_is_decided_in_the_end(sampler: str, cache: str, name: str) -> None:
    network, keep, blocks = model(name), Keep(), build("blocks", "fixed")
    rule = SCHEDULES[sampler] if sampler in SCHEDULES else build("sampler", sampler)
    try:
        validate(Setting(network.config, blocks, None), rule, NARROW[cache], keep)
    except UserError:
        pytest.skip("refused")
    forward = forward_of(network, (rule, blocks, NARROW[cache], keep), Sampling(tempered=rule.tempered))
    with torch.inference_mode():
        loop = denoise(Canvas.of(requests(), 61), forward, rule, blocks, keep)
        made = list(islice(loop, MOST))
    assert len(made) < MOST
    assert not made[-1].candidates.masked.any()
