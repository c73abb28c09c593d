"""The benchmarks measure what they say: their kernels' calls are right, and their plain loop gives our tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dllm import Result, UserError
from dllm.parts import Machine, Runtime
from experiments.bench import attention as bench_attention
from experiments.bench import cache as bench_cache
from experiments.bench import candidates as bench_candidates
from experiments.bench import kernels as bench_kernels
from experiments.bench import llama_cpp
from experiments.bench import scheduler as bench_scheduler
from experiments.bench import shared_prompts as bench_shared_prompts
from experiments.bench import step as bench_step
from experiments.bench.laptop import rows, tiny_a2d
from experiments.bench.llama_cpp import KINDS, blocks_of, forward_seconds, seconds
from experiments.bench.maskbench import main
from experiments.bench.wedlm import Way, qwen, random_table

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
    monkeypatch.setattr(bench_step, "SMALL", bench_step.TINY)
    ours = bench_step.prompt_of
    monkeypatch.setattr(bench_step, "prompt_of", lambda length, seed=0, below=0: ours(length, seed, 290))
    return bench_step.TINY


def test_the_plain_loop_and_ours_give_the_same_tokens(
    tiny: bench_step.ModelConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_step.against_plain(bench_step.Workload(1, 9, 24, 8, 2), repeats=1)
    assert "same tokens: True" in capsys.readouterr().out


@pytest.mark.parametrize(("cache", "runtime"), [("none", Runtime("eager")), ("dual", Runtime("static", 1))], ids=str)
def test_every_turn_is_timed_and_counted(tiny: bench_step.ModelConfig, cache: str, runtime: Runtime) -> None:
    model = bench_step.random_model(tiny, CPU, torch.float32)
    timing = bench_step.time_turns(model, cache, bench_step.Workload(2, 9, 16, 8, 2), 5, runtime)
    assert len(timing.times) == len(timing.flops) == len(timing.tokens) == 4
    assert timing.tokens[:3] == [4] * 3 and 0 < timing.median <= timing.late


def test_candidates_in_both_ways_decode_the_same(tiny: bench_step.ModelConfig) -> None:
    """Six forwards of two rows whose candidates are eight at most, and fewer where a block has fewer masks."""
    model = bench_cache.random_model(tiny)
    line = bench_candidates.row(model, "freedave", "dual", bench_candidates.Work(2, 9, 32, 6), 1)
    sampler, cache, batch, forwards, candidates, same, *figures = line
    assert (sampler, cache, batch, forwards, same) == ("freedave", "dual", "2", "6", "yes")
    assert 12 < int(candidates) <= 2 * (1 + 5 * 8) and len(figures) == 4


@pytest.mark.parametrize("way", bench_scheduler.WAYS)
def test_every_way_of_batching_serves_everybody(way: str) -> None:
    model, asked = bench_scheduler.model_of(64, 1, 100), bench_scheduler.WAYS[way]
    todo = [
        replace(bench_scheduler.Request.answer([3, 4], length, 99, length), param_index=number)
        for number, length in enumerate((3, 9, 5))
    ]
    scheduler = bench_scheduler.Scheduler(model, "eager", bench_scheduler.Limits(max_rows=asked.rows))
    parts = bench_scheduler.chosen("static", [3, 9 if asked.whole else 4, 5])
    found = bench_scheduler.decode(scheduler, todo, parts, [0.0, 1.0, 1.0], asked)
    assert len(found.latencies) == 3 and min(found.latencies) > 0 and found.computed >= found.wanted > 0
    assert found.seconds > 1  # the clock waits for who arrives late
    turns = {"one by one": 3 + 4 + 5, "static, as published": 3 + 9, "static": 3 + 5, "continuous": 3 + 5}
    assert scheduler.stats.turns == turns[way]  # the second one ends early


def test_prompts_with_one_beginning_get_the_same_answers_however_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--width 64 --layers 2 --count 3 --prompt 200 --own 8 --answer 8 --lengths 300 --whole 300"
    monkeypatch.setattr("sys.argv", ["shared_prompts", *sizes.split()])
    assert bench_shared_prompts.main() == 0
    out = capsys.readouterr().out
    assert out.count("| equal |") == 4 and "taking its known tokens over takes a request" in out


@pytest.mark.parametrize("words", bench_attention.ASKED)
def test_attention_weights_are_timed_against_forwards_without(words: str) -> None:
    small = replace(bench_cache.CONFIG, width=32, heads=2, kv_heads=2, head_dim=16, rotary_dim=16, mlp_width=48)
    cells = bench_attention.line(bench_cache.random_model(small), "dual", words, 5, 64).strip("| ").split(" | ")
    assert cells[:2] == ["dual", words]
    assert float(cells[2]) > 0


def test_cells_by_hand() -> None:
    """Nine tokens in 5 forwards of 4 rows and 2 s (the end counts nowhere), against 4 tokens in 4 s."""
    rows = [Result([1], [2] * 9, "", [2] * 9, 5, 20, 1.0, "eos", 0, [1] * 9)]
    one = Way("it", lambda number: rows[number], rows, 2.0, 1.0)
    other = Way("other", lambda number: rows[number], [replace(rows[0], tokens=[2] * 4, stop_reason="length")], 4.0)
    assert one.cells(other, "50") == ["it", "50", "1.80", "4.0", "400.00", "222.22", "111.11", "4.50"]


def test_random_weights_bring_the_tokens_that_are_prescribed() -> None:
    config = replace(qwen(), width=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_width=32, vocab=500, mask_id=499,
                     eos_id=498, pad_id=498, rotary_dim=16)  # fmt: skip
    lines = [line.split(" | ") for line in random_table(config, 5, 16, 1).splitlines()[4:]]
    assert [line[2] for line in lines] == ["1.00", "2.00", "4.00", "8.00"]


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_every_way_is_timed(weights: str) -> None:
    config = replace(tiny_a2d(), width=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_width=32, vocab=500,
                     mask_id=499, eos_id=498, pad_id=498, rotary_dim=16)  # fmt: skip
    found = rows(config, weights, 5, 8)
    assert [row[:3] for row in found] == [
        [weights, "full", "none"],
        [weights, "full", "dual"],
        [weights, "answer-blocks", "finished"],
    ]
    assert all(float(cell) >= 0 for row in found for cell in row[3:6]) and all(float(row[6]) > 0 for row in found)


PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def write(folder: Path, name: str, schema: Any, *tests: tuple[bool, Any]) -> None:
    listed = [{"description": "", "valid": valid, "data": data} for valid, data in tests]
    (folder / f"{name}.json").write_text(json.dumps({"description": name, "schema": schema, "tests": listed}))


def test_it_counts_outcomes_and_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "plain", PLAIN, (True, {"a": 1}), (True, {"a": 1, "b": 2}), (False, {"a": "x"}))
    write(tmp_path, "format", {"type": "string", "format": "uri"}, (True, "http://a/b"), (False, "no uri"))
    write(tmp_path, "refused", {"contains": {}}, (True, [1]))
    write(tmp_path, "large", {"type": "string", "pattern": "^[ab]*a[ab]{15}$"}, (False, ""))
    main([str(tmp_path)])
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in told[:3]] == ["2", "1", "1"]
    assert [line.split()[0] for line in told[:3]] == ["compiled", "refused", "too"]
    assert told[3].split() == ["valid", "accepted", "2", "of", "3"]
    assert told[4].split() == ["invalid", "accepted", "1", "of", "2"]
    assert any("'contains' is not supported" in line for line in told) and "  invalid accepted: format.json: " in told


def test_a_sample_and_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        write(tmp_path, str(number), PLAIN, (True, {"a": number, "b": 2}))
    main([str(tmp_path), "--schemas", "2", "--additional"])
    told = capsys.readouterr().out.splitlines()
    assert told[0].split() == ["compiled", "2"] and told[3].split() == ["valid", "accepted", "2", "of", "2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="holds no .json files"):
        main([str(tmp_path / "empty")])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_numbers_of_the_format(kind: str) -> None:
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed: pip install -e '.[gguf]'")
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    rows, columns, code = 8, 256, GGMLQuantizationType[kind]
    made = blocks_of(kind, rows, columns, np.random.default_rng(0))
    group, size = GGML_QUANT_SIZES[code]
    assert made.shape == (rows, columns // group * size)
    numbers = quants.dequantize(made, code)
    assert numbers.shape == (rows, columns) and abs(float(numbers.std()) - 0.02) < 0.002


def test_layers_that_are_not_there_are_counted_by_their_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that takes a second for the head, and a tenth for a layer and row."""
    program = tmp_path / "bench"
    program.write_text(
        "#!/usr/bin/env python3\nimport json, sys\n"
        "layers = int(open(sys.argv[sys.argv.index('-m') + 1]).read())\n"
        "rows = map(int, sys.argv[sys.argv.index('-p') + 1].split(','))\n"
        "print(json.dumps([{'n_prompt': n, 'samples_ns': [9e12, 1e9 + layers * n * 1e8]} for n in rows]))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(llama_cpp, "write", lambda file, kind, layers: file.write_text(str(layers)))
    found = forward_seconds(program, (1, 8), 32, 2, 1)
    assert set(found) == set(KINDS)
    assert all(times == pytest.approx([1 + 3.2, 1 + 8 * 3.2]) for times in found.values())


def test_a_program_that_fails_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not run .*Give --llama-bench a built llama-bench"):
        seconds(tmp_path / "none", tmp_path / "model.gguf", (1,), 1, 1)
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho no such file >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match="ended with 3: .*no such file"):
        seconds(program, tmp_path / "model.gguf", (1,), 1, 1)
