"""The GPU hour without a GPU: a dry run through a cut, a failure and a crash, and its plan by arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import full

from dllm.parts import QUANTIZATIONS, ForwardCost, Machine, Model, apart, choices
from experiments.bench import kernels as bench_kernels
from experiments.bench.step import named
from experiments.gpu_hour import __main__ as command
from experiments.gpu_hour import cells, parts, peers, profiled, suite, texts, timed
from experiments.gpu_hour.cards import peak_bytes
from experiments.gpu_hour.docs import NOTHING, write_section
from experiments.gpu_hour.report import drawn
from experiments.gpu_hour.store import ROOT, Store, identity, parts_in
from experiments.gpu_hour.streams import served
from experiments.gpu_hour.targets import verdicts
from experiments.gpu_hour.work import OUT_OF_TIME, Clock, Part, Task, work
from experiments.support.marked import marks

CPU = torch.device("cpu")
BEGIN, END = marks("gpu_hour")
MINE = {
    "device": "card",
    "code": "abc",
    "commit": None,
    "python": "3",
    "cuda": None,
    "dry": True,
    "torch": "2",
    "triton": None,
    "torchao": None,
}
STATIC = replace(cells.BASE, runtime="static")
FEW = [
    STATIC,
    replace(STATIC, batch=2),
    cells.eager(replace(STATIC, cache="elastic")),
    cells.eager(STATIC),
    replace(STATIC, cache="dkv_greedy"),
]
TINY = [cells.tiny(one) for one in FEW]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Few cells, on a machine whose rates are known. Returns the names of the cells that were timed."""
    monkeypatch.setattr(parts, "measured_rates", lambda device, dtype: Machine("m", 1e12, 1e10))
    monkeypatch.setattr(parts, "grid", lambda: FEW)
    timed_cells, original = list[str](), parts.time_cell

    def noted(cell: cells.Cell, *rest: Any) -> dict[str, Any]:
        timed_cells.append(cell.name)
        return original(cell, *rest)

    monkeypatch.setattr(parts, "time_cell", noted)
    return timed_cells


def run(out: Path, *options: str) -> int:
    return command.main([str(out), "--dry", *options], tests=False)


def kinds(out: Path, part: str) -> list[str]:
    """What became of each cell of a part."""
    found = json.loads((out / f"{part}.json").read_text())["cells"].values()
    return [next(key for key in one if key not in ("seconds", "expected")) for one in found]


def test_a_run_goes_on_after_a_cut_a_failure_and_too_little_memory(
    tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults: list[Callable[[], None]] = [cut, none, broken, full_memory, none, none]
    ours = parts.time_cell
    monkeypatch.setattr(parts, "time_cell", lambda *args: faults.pop(0)() or ours(*args))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "--only", "steps")
    assert kinds(tmp_path, "steps") == ["begun"]
    assert run(tmp_path, "--only", "kernels", "steps") == 1
    assert kinds(tmp_path, "steps") == ["figures", "failed", "too_large", "figures", "refused"]
    said = capsys.readouterr().err
    assert f"FAILED steps {TINY[1].name}: RuntimeError: the host tripped. At tests/experiments/test_gpu_hour.py" in said
    report = (tmp_path / "report.md").read_text()
    assert "runtime=static" in report and "It does not fit" in report and "## Kernels" in report
    assert (tmp_path / "gpu_steps.svg").exists() and (tmp_path / "gpu_kernels.svg").exists()
    monkeypatch.setattr(command, "write_report", lambda *args: None)
    before = list(quick)
    assert run(tmp_path, "--only", "kernels", "steps") == 1
    assert quick == before, "what is done stays done, and what failed stays failed"
    monkeypatch.setattr(parts, "time_cell", ours)
    assert run(tmp_path, "--only", "steps", "--again") == 0 and quick[len(before) :] == [TINY[1].name]
    assert "All done" in capsys.readouterr().out


def none() -> None: ...


def cut() -> Any:
    raise KeyboardInterrupt


def broken() -> None:
    raise RuntimeError("the host tripped")


def full_memory() -> None:
    raise torch.OutOfMemoryError("Tried to allocate 90 GiB.")


def test_a_limit_of_time_ends_cleanly(tmp_path: Path, quick: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--minutes", "0.1") == 0
    assert "cells left: run the same command again" in capsys.readouterr().out and quick == []


def test_where_nothing_can_be_measured_there_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([str(tmp_path)]) == 2
    assert "this command measures a GPU" in capsys.readouterr().err
    Store(tmp_path, MINE).write("steps", "a", {"figures": {}})
    for name, other in (("device", "another card"), ("commit", "f00"), ("torch", "3")):
        with pytest.raises(ValueError, match=f"holds results .* of {name} .*Name another folder"):
            Store(tmp_path, {**MINE, name: other})
    (tmp_path / "tests.json").write_text("{")
    with pytest.raises(ValueError, match="tests.json is not a result of this command"):
        Store(tmp_path, MINE)
    (file := tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file. Name a folder"):
        Store(file, MINE)


def test_a_crash_costs_the_cell_that_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = Store(tmp_path, MINE), Clock(0.0)
    part = Part("steps", [Task(name, 1.0, lambda: {"x": 1.0}) for name in "abc"])

    def child(*args: Any, **options: Any) -> SimpleNamespace:
        if not store.cells("steps"):
            store.write("steps", "a", {"begun": 0.0, "cuts": 0})
            return SimpleNamespace(returncode=-11)
        return SimpleNamespace(returncode=work(part, store, clock))

    monkeypatch.setattr(command.subprocess, "run", child)
    options = SimpleNamespace(dry=False, minutes=None, out=tmp_path, fast_dllm=None)
    assert command.run_part(part, store, clock, options) == 0  # type: ignore[arg-type]
    assert kinds(tmp_path, "steps") == ["failed", "figures", "figures"]
    assert "ended by signal 11" in store.cells("steps")["a"]["failed"]
    monkeypatch.setattr(command.subprocess, "run", lambda *args, **options: SimpleNamespace(returncode=1))
    other = Part("kernels", [Task(name, 1.0, dict) for name in "ab"])
    assert command.run_part(other, store, clock, options) == 0  # type: ignore[arg-type]
    assert kinds(tmp_path, "kernels") == ["failed", "failed"], "a process that does nothing is not started for ever"
    late = Part("tests", [Task("a", 1.0, dict)])
    assert command.run_part(late, store, Clock(0.0, 1.0), options) == OUT_OF_TIME  # type: ignore[arg-type]


def test_the_plan_takes_35_minutes_and_80_gb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    plan = parts.parts(parts.Setup(cells.GPU, dry=False, fast_dllm=tmp_path), Store(tmp_path, {}))
    assert tuple(plan) == parts.NAMES and sum(part.seconds for part in plan.values()) < 35 * 60
    first = parts.NAMES[: parts.NAMES.index("steps")]
    assert sum(plan[name].seconds for name in first) < 9 * 60, "one call of --minutes 9 gets to the rest"
    assert {case.name for case in bench_kernels.cases(True, CPU, torch.float32)} == set(parts.OPERATIONS)
    longest = max(task.seconds for part in plan.values() for task in part.tasks)
    assert longest + 20 < 9 * 60, "--minutes 9 gets through every cell"
    every = [*cells.texts(), *cells.lags(), *cells.grid(), *peers.pairs()]
    assert {"bfloat16", *QUANTIZATIONS} == {cell.weights for cell in every if cells.accepted(cell, cells.GPU)}
    elsewhere = {*cells.OWN_RULES, "focus"}
    assert {cell.cache for cell in cells.grid()} | {"dual"} == {*choices("cache")} - elsewhere | {"finished"}
    for cell in every:
        if cell.weights == "bfloat16":
            cells.check(cell, cells.GPU)
        c, columns = cells.CONFIGS[cell.model], cell.batch * (cell.prompt + cell.answer)
        layer = 2 * c.width * (c.heads * c.head_dim + c.kv_heads * c.head_dim) + 3 * c.width * c.mlp_width
        layer += 3 * c.width * c.moe.width * c.moe.experts if c.moe else 0
        size = 0.65 if cell.weights == "int4" else 2  # bytes of a number; int4 with its scales
        weights, kept = size * (c.layers * layer + 2 * c.width * c.vocab), 4 * c.layers * c.kv_width * columns
        running = 2 * columns * (6 * c.width + 3 * c.mlp_width) + 8 * cell.batch * cell.block * c.vocab
        assert weights + kept * (cell.cache != "none") + running < 76e9, cell.name


def test_a_cache_is_recorded_where_its_traits_allow_it() -> None:
    """By what each cache says, in one place; nothing names those that can be."""
    for cell in cells.caches():
        traits = named("cache", cell.cache).traits
        assert (cell.runtime != "eager") == traits.bounded_shapes, cell.name
        assert (cell.runtime == "cudagraph") == traits.bounded_shapes, cell.name
        assert cell.lag == int(traits.bounds_late and cell.runtime != "eager"), cell.name


def test_texts_tell_hits_ends_and_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of new prompts: the share of turns that were replayed, of text before its end, of drifted rows, and where."""
    monkeypatch.setattr(texts, "WARM", 1)
    monkeypatch.setattr(texts, "FRESH", 1)
    cell, ended = cells.tiny(cells.REAL), [5, 0, 7, 7]
    assert texts.text_of(ended, 0) == [5, 0] and texts.text_of(ended, 9) == ended
    one = torch.tensor([[[0, 0, 9], [0, 0, 0]], [[9, 9, 9], [0, 9, 9]]])  # two turns of two rows, three layers
    costs = [ForwardCost(found, found, found, found, found[:, 0]) for found in one]
    assert texts.drifts(costs) == {"drifted": 2 / 3, "drift_layer": 1.5}  # a row of the second turn began whole
    model = timed.Models(CPU).text(cell)
    assert texts.equal_texts(cell, model, 2) == {"texts": 2, "equal": 2}
    figures = timed.time_cell(cell, Fixed(model), Machine("m", 1e12, 1e10), None)
    assert 0 < figures["hits"] < 1 and 0 < figures["useful"] < 1 and figures["turns"] > 3


class Fixed(timed.Models):
    """One model, which is there."""

    def __init__(self, model: Model) -> None:
        super().__init__(CPU)
        self.kept = ("tiny-text", "float32"), model


def test_a_peer_computes_with_our_tensors(tmp_path: Path) -> None:
    """A stand-in for the repository, which answers with id 7: its network's parameters are ours, not copies."""
    (tmp_path / "llada" / "model").mkdir(parents=True)
    (tmp_path / "llada" / "generate.py").write_text(GENERATE)
    (tmp_path / "llada" / "model" / "__init__.py").write_text("")
    (tmp_path / "llada" / "model" / "configuration_llada.py").write_text(CONFIGURATION)
    (tmp_path / "llada" / "model" / "modeling_llada.py").write_text(MODELING)
    cell, models = cells.tiny(cells.REAL), timed.Models(CPU)
    known = {*sys.modules}
    try:
        figures = peers.beside(cell, tmp_path, models)
        peer = peers.FastDLLM.of(tmp_path, models.text(cell)).network
    finally:
        sys.path.remove(str(tmp_path / "llada"))
        for name in {*sys.modules} - known:
            if name.partition(".")[0] in ("generate", "model"):
                del sys.modules[name]
    ours = dict(apart(models.text(cell).transformer))["layers.1.attn.k.weight"]
    assert peer.state["model.transformer.blocks.1.k_proj.weight"].data_ptr() == ours.data_ptr()
    assert peer.settings["use_cache"] is False and peer.settings["d_model"] == models.text(cell).config.width
    assert figures["equal"] == 0 and figures["theirs_forwards"] == 3 and figures["prompts"] == peers.COUNT["threshold"]
    with pytest.raises(ValueError, match="Name a checkout of NVlabs/Fast-dLLM"):
        peers.FastDLLM.of(tmp_path / "none", models.text(cell))


GENERATE = """import torch
def generate(model, prompt, threshold=None, gen_length=0, **options):
    return torch.cat([prompt, torch.full((1, gen_length), 7)], 1), 3
generate_with_prefix_cache = generate_with_dual_cache = generate
"""
CONFIGURATION = """class LLaDAConfig:
    def __init__(self, **keys):
        self.__dict__.update(keys)
"""
MODELING = """import torch
class LLaDAModel:
    def __init__(self, config, init_params):
        assert config.init_device == "meta" and not init_params
def create_model_config_from_pretrained_config(config):
    return config
class LLaDAModelLM:
    device = torch.device("cpu")
    def __init__(self, config, model):
        self.settings = vars(config)
    def load_state_dict(self, state, assign):
        assert assign
        self.state = state
    def eval(self):
        return self
"""


def test_streams_of_the_scheduler_are_timed() -> None:
    cell = replace(cells.tiny(cells.REAL), batch=2, runtime="static")
    found = served(cell, timed.Models(CPU))
    assert found["tokens_per_s"] > 0 and 0 < found["p50_s"] <= found["p95_s"]


@pytest.mark.program
def test_every_cell_runs_at_tiny_shapes(tmp_path: Path) -> None:
    names = [name for name in parts.NAMES if name not in ("checks", "kernels", "tests")]
    assert run(tmp_path, "--only", *names) == 0
    report = (tmp_path / "report.md").read_text()
    assert "## Streams" in report and "8 of 8 texts are those of mini-llada" in report
    refused = {name for name, one in Store(tmp_path, identity(CPU, True)).cells("steps").items() if "refused" in one}
    assert not refused, "a line that nothing can run has no place in the plan"


def test_what_pytest_said_is_read(tmp_path: Path) -> None:
    (file := tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped message="rounding"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert suite.outcomes(file) == {"passed": 1, "skipped": 1, "notes": {"rounding": 1}}
    file.write_text('<suite><testcase name="a"/><testcase name="b"><error message="x != y"/></testcase></suite>')
    with pytest.raises(suite.TestsFailed, match="1 of 2 tests failed. b: x != y"):
        suite.outcomes(file)


def test_targets_are_judged() -> None:
    base = {
        "model": "llada-8b",
        "cache": "dual",
        "rule": "fixed",
        "weights": "bfloat16",
        "runtime": "cudagraph",
        "lag": 1,
    }
    steps = {
        "one": {"figures": {**base, "batch": 1, "p50_ms": 4.4, "share_weights": 0.82}},
        "all": {"figures": {**base, "batch": 16, "p50_ms": 15.0, "share_weights": 0.2}},
    }
    rows = {"row_statistics": {"figures": {"256 x 9": {"triton": {"copy": 0.79}}, "32 x 9": {"triton": {"copy": 0.1}}}}}
    tests = {"tokens under static": {"figures": {"passed": 3}}, "tokens under compile": {"failed": "1 of 2"}}
    found = [one.met for one in verdicts({"steps": steps, "kernels": rows, "tests": tests}, "NVIDIA H200")]
    assert found == [True, None, False, True, None, False]  # 16 * 4.4 / 15 = 4.7 times
    assert [one.met for one in verdicts({"steps": steps}, "NVIDIA H100 PCIe")] == [True, None, None, False, None, None]


def test_cards_are_known_by_their_names() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": 3.35,
        "NVIDIA H100 PCIe": 2.0,
        "NVIDIA H200": 4.8,
        "NVIDIA A100-SXM4-40GB": 1.555,
        "NVIDIA A100-SXM4-80GB": 2.039,
        "NVIDIA A100 80GB PCIe": 1.935,
        "NVIDIA A100-PCIE-40GB": 1.555,
        "NVIDIA L4": 0.3,
        "NVIDIA L40S": 0.864,
        "NVIDIA H100 NVL": 3.9,
    }
    assert {name: (peak_bytes(name) or 0) / 1e12 for name in names} == names
    assert peak_bytes("AMD Instinct MI300X") is None


def test_a_profile_counts_what_runs_and_what_waits() -> None:
    found = profiled.summary([("b", 20.0, 30.0), ("a", 0.0, 10.0), ("a", 5.0, 12.0)], turns=2)
    assert (found["turn_ms"], found["idle_ms"], found["launches"]) == pytest.approx((0.015, 0.004, 1.5))
    assert found["kernels"][0] == pytest.approx({"name": "a", "ms": 0.0085, "launches": 1.0})


def test_the_results_go_between_two_lines_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "measured" / "speed.md").read_text()
    inside = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert inside == NOTHING.strip() or inside.startswith("Measured on ")
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "speed.md").write_text(f"# A\n{BEGIN}\nold\n{END}\nrest\n")
    (tmp_path / "pictures").mkdir()
    store = Store(tmp_path / "out", {**MINE, "dry": False})
    store.write("machine", "rates", {"figures": {"flops": 1e15, "bytes": 3e12, "peak": None, "obstacle": None}})
    write_section(parts_in(tmp_path / "out"), tmp_path / "out", tmp_path)
    text = (tmp_path / "measured" / "speed.md").read_text()
    assert "Measured on card" in text and "\n### Targets" in text and "old" not in text and text.endswith("rest\n")
    write_section({}, tmp_path / "out", tmp_path)
    assert (tmp_path / "measured" / "speed.md").read_text() == f"# A\n{BEGIN}\n\n{NOTHING}\n{END}\nrest\n"
    with pytest.raises(ValueError, match="holds a dry run"):
        write_section({"machine": {"identity": MINE, "cells": {}}}, tmp_path, tmp_path)


@pytest.mark.skipif(not full(), reason="DLLM_LAWS=all: starts Python and pytest anew")
def test_the_command_itself(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "experiments.gpu_hour", str(tmp_path), "--dry"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "| device | 2 |" in (tmp_path / "report.md").read_text()


def test_without_matplotlib_there_are_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"row_statistics": {"figures": {"256 x 9": {"triton": {"share": 0.79}}}}}
    assert drawn({"kernels": rows}, tmp_path) == ["gpu_kernels.svg"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "experiments.gpu_hour.plots")
    assert drawn({"kernels": rows}, tmp_path) == []


def test_every_way_of_a_kernel_has_its_bar(tmp_path: Path) -> None:
    """More ways than colours: none is left out, none covers another."""
    plots = pytest.importorskip("experiments.gpu_hour.plots")
    ways = {f"way {number}": {"share": number / 10} for number in range(1, 10)}
    figure = plots.ceilings({"norm": {"figures": {"4": ways, "8": ways}}})
    (axis,) = figure.axes
    bars = sorted((bar.get_y(), bar.get_y() + bar.get_height(), bar.get_width()) for bar in axis.patches)
    assert sorted(round(width) for *_, width in bars) == sorted(10 * number for number in range(1, 10) for _ in "48")
    assert all(before[1] <= after[0] for before, after in zip(bars, bars[1:], strict=False))
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axis.patches}) == 9
