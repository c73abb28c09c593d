"""The benchmarks measure what they say: their kernels' calls are right, and their plain loop gives our tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dllm.record.cost import Machine
from dllm.runtime.runtime import Runtime
from experiments.bench import attention as bench_attention
from experiments.bench import cache as bench_cache
from experiments.bench import fused as bench_fused
from experiments.bench import kernels as bench_kernels
from experiments.bench import scheduler as bench_scheduler
from experiments.bench import step as bench_step

CPU = torch.device("cpu")
QUICK = ("add_norm", "rope_scatter", "sparse_credit")


@pytest.mark.parametrize("name", QUICK)
def test_every_way_of_a_kernel_runs(name: str) -> None:
    case = next(case for case in bench_kernels.cases(True, CPU, torch.float32) if case.name == name)
    case.run(True)
    times = bench_kernels.timed(lambda: case.run(False), CPU, 3)
    assert 0 < times[0] <= times[1]
    assert case.name in bench_kernels.line(case, "torch", times, Machine("m", 1e12, 1e10))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> bench_step.ModelConfig:
    config = replace(bench_step.SMALL, width=64, layers=2, heads=4, kv_heads=4, head_dim=16, mlp_width=96, vocab=300,
                     mask_id=298, eos_id=299, pad_id=299, rotary_dim=16)  # fmt: skip
    monkeypatch.setattr(bench_step, "SMALL", config)
    ours = bench_step.prompt_of
    monkeypatch.setattr(bench_step, "prompt_of", lambda length, seed=0, below=0: ours(length, seed, 290))
    return config


def test_the_plain_loop_and_ours_give_the_same_tokens(
    tiny: bench_step.ModelConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_step.against_plain(bench_step.Workload(1, 9, 24, 8, 2), repeats=1)
    assert "same tokens: True" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cache", "runtime"),
    [
        ("none", Runtime("eager")),
        ("dual", Runtime("static", 1)),
        ("window", Runtime("static", 0)),
        ("elastic", Runtime("eager")),
    ],
    ids=str,
)
def test_a_line_of_the_table(tiny: bench_step.ModelConfig, cache: str, runtime: Runtime) -> None:
    model = bench_step.random_model(tiny, CPU, torch.float32)
    line = bench_step.measure(model, cache, bench_step.Workload(2, 9, 16, 8, 2), Machine("m", 1e12, 1e10), 5, runtime)
    assert line.split()[:3] == [cache, runtime.name, "2"]
    assert all(float(number) > 0 for number in line.split()[3:8])


def test_every_cache_gets_the_runtimes_that_it_can_have() -> None:
    names = {cache: [one.name for one in bench_step.runtimes(None, cache, gpu=True)] for cache in ("dual", "elastic")}
    every = ["eager", "static", "compile", "cudagraph", "compile_cudagraph"]
    assert names == {"dual": every, "elastic": ["eager"]}


@pytest.mark.parametrize("name", bench_fused.CASES)
def test_fused_products_are_timed_against_separate_ones(name: str) -> None:
    config = bench_fused.CASES[name]
    moe = config.moe and replace(config.moe, experts=4, top_k=2, width=8)
    small = replace(config, width=32, heads=2, kv_heads=2, head_dim=16, rotary_dim=16, mlp_width=48, vocab=90, moe=moe)
    rows, apart, fused, _, difference = bench_fused.compare(small, 5, 1).split()
    assert rows == "5"
    assert float(apart) > 0
    assert float(fused) > 0
    assert float(difference) < 1e-5


@pytest.mark.parametrize("way", bench_scheduler.WAYS)
def test_every_way_of_batching_serves_everybody(way: str) -> None:
    model, asked = bench_scheduler.model_of(64, 1, 100), bench_scheduler.WAYS[way]
    todo = [
        replace(bench_scheduler.Request.answer([3, 4], length, 99, length), param_index=number)
        for number, length in enumerate((3, 9, 5))
    ]
    scheduler = bench_scheduler.Scheduler(model, "eager", bench_scheduler.Limits(max_rows=asked.rows))
    parts = bench_scheduler.chosen("static", "dual", [3, 9 if asked.whole else 4, 5])
    found = bench_scheduler.decode(scheduler, todo, parts, [0.0, 1.0, 1.0], asked)
    assert len(found.latencies) == 3 and min(found.latencies) > 0 and found.computed >= found.wanted > 0
    assert found.seconds > 1  # the clock waits for who arrives late
    turns = {"one by one": 3 + 4 + 5, "static, as published": 3 + 9, "static": 3 + 5, "continuous": 3 + 5}
    assert scheduler.told.turns == turns[way]  # the second one ends early


@pytest.mark.parametrize("words", bench_attention.ASKED)
def test_attention_weights_are_timed_against_forwards_without(words: str) -> None:
    small = replace(bench_cache.CONFIG, width=32, heads=2, kv_heads=2, head_dim=16, rotary_dim=16, mlp_width=48)
    cells = bench_attention.line(bench_cache.random_model(small), "dual", words, 5, 64).strip("| ").split(" | ")
    assert cells[:2] == ["dual", words]
    assert float(cells[2]) > 0
