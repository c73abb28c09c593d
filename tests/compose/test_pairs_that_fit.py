"""Pairs of sampler and cache that fit, as a fixed list: laws take their cases from what the parts themselves allow."""

from __future__ import annotations

import pytest
from harness import model

from dllm.compose.parts import part
from dllm.compose.validate import validate
from dllm.contract.setting import Sampling, Setting
from dllm.errors import UserError

SAMPLERS = ("confidence", "klass", "remdm", "saber", "joint_threshold")
# Saber and joint_threshold read scores at committed positions, klass those behind the block. On Dream's kind of model,
# whose position predicts the one behind it.
FIT = {
    "prefix": set(SAMPLERS),
    "dual": set(SAMPLERS) - {"klass"},
    "dkv_prefill": set(SAMPLERS),  # its decoding turns compute every position
    "dkv_pd": {"confidence", "klass", "remdm"},
    "dkv": {"confidence", "klass", "remdm"},
    "window": {"confidence", "remdm"},
}


@pytest.mark.parametrize("cache", FIT)
def test_a_cache_serves_these_samplers(cache: str) -> None:
    setting = Setting(model("tiny-dream").config, part("blocks", "fixed"), None, Sampling())
    found = set()
    for name in SAMPLERS:
        try:
            validate(setting, part("sampler", name), part("cache", cache), part("eos", "none"))
            found.add(name)
        except UserError:
            continue
    assert found == FIT[cache]
