"""What cannot work with a cache is refused, with the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from harness import Combination, build, model, requests, turns

from dllm import UserError
from dllm.blocks.whole import Whole
from dllm.cache.dkv import DKV
from dllm.cache.dkv_greedy import DKVGreedy
from dllm.cache.elastic import Elastic
from dllm.cache.recap import Recap
from dllm.cache.window import Window
from dllm.compose.validate import validate
from dllm.contract.setting import Setting
from dllm.eos.none import FullLength


@pytest.mark.parametrize(
    ("combination", "way_out"),
    [
        (Combination("prophet", "fixed", "dual"), "cache=prefix"),
        (Combination("freedave", "fixed", "dkv"), "cache=dual"),
        (Combination("saber", "fixed", "dkv"), "cache=dual"),
        (Combination("confidence", "fixed", "dkv_pd"), "cache=dual"),
        (Combination("wino", "fixed", "elastic"), "cache=dual"),
        (Combination("confidence", "fixed", "dkv_greedy"), "sampler=order"),
        (Combination("order", "fixed", "dkv_greedy", model="tiny-dream"), "cache=dual"),
        (Combination("confidence", "fixed", "dual", "eotp"), "cache=prefix"),
        (Combination("confidence", "fixed", "dual", model="sdar_b4"), "cache=finished"),
        (Combination("freedave", "fixed", "finished", model="sdar_b4"), "cache=none"),
        (Combination("confidence", "fixed", "dual", model="tiny-wedlm"), "known tokens before masks.*cache=finished"),
        (Combination("confidence", "fixed", "elastic", model="tiny-nbdiff"), "the block that is .*cache=finished"),
        (Combination("wino", "fixed", model="tiny-wedlm"), "sampler=wino computes extra queries"),
        (Combination("saber", "fixed", model="tiny-wedlm"), "sampler=saber scores committed tokens.*=confidence"),
        (Combination("ete", "fixed", model="tiny-nbdiff"), "sampler=ete tries .* one block at a time.*=confidence"),
        (Combination("confidence", "fixed", eos="eotp", model="tiny-nbdiff"), "what lies behind the open block"),
        (Combination("confidence", "tccf", model="tiny-nbdiff"), "blocks=tccf .* context-causal model.*blocks=fixed"),
        (Combination("confidence", "fixed", "finished"), "cache=dual"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_the_way_out(combination: Combination, way_out: str) -> None:
    with pytest.raises(UserError, match=way_out):
        list(turns(combination, requests()[:1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Elastic(gamma=1.5), "cache.gamma=1.5"),
        (lambda: Elastic(gamma=-0.1), "first_layer=0 forces"),
        (lambda: Elastic(similarity="head"), "Did you mean 'heads'"),
        (lambda: Elastic(trigger="now"), "same_step, next_step"),
        (lambda: Elastic(window_length=0), "window_length=0"),
        (lambda: Elastic(first_layer=-1), "first_layer=-1"),
        (lambda: Window(refresh_interval=0), "refresh_interval=0 must be at least 1"),
        (lambda: Window(queries="mask"), "Did you mean 'masks'"),
        (lambda: DKV(0), "refresh_interval=0 must be at least 1"),
        (lambda: DKVGreedy(0), "refresh_interval=0 must be at least 1"),
        (lambda: DKVGreedy(window=-1), "window=-1"),
        (lambda: Recap(local_steps=-1), "local_steps=-1"),
        (lambda: Recap(start_fraction=2), "start_fraction"),
        (lambda: Recap(targets="blocks"), "block, all_masked"),
    ],
)
def test_options_that_cannot_work_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_window_that_would_strand_its_queries_is_refused() -> None:
    setting = Setting(model("tiny-llada").config, Whole(), 128)
    sampler, eos = build("sampler", "confidence"), FullLength()
    validate(setting, sampler, Window(16, 48, 32), eos)
    with pytest.raises(UserError, match="Use at least 48"):
        validate(setting, sampler, Window(16, 47, 32), eos)
    validate(replace(setting, gen_length=32), sampler, Window(16, 32, 100), eos)  # the answer ends before
