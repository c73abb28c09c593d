"""Every shipped configuration, compiled without a GPU for each kind of GPU we claim, keeps within its limits."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from harness import full

from dllm import kernels
from dllm.parts import Kernel
from tests.kernels.builds import BUILDS, KERNELS

ROOT = Path(__file__).parents[2]
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}  # bytes that one program may use
REGISTERS = {"sm_80": 65536, "sm_90": 65536, "gfx942": 4 * 512 * 64}  # of all threads of one processor


def compiled(cache: Path, chosen: list[str]) -> list[dict[str, int | str | bool]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("aot.py")), *chosen],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def chosen() -> list[str]:
    """Every build for every target under DLLM_LAWS=all; else the first of each kernel, for a target in turn, and the
    first that claims something of Hopper."""
    if full():
        return [f"{build.name}@{target}" for build in BUILDS for target in SHARED]
    kinds, out = set[tuple[object, bool]](), []
    for build in BUILDS:
        if (kind := (build.kernel, build.wgmma)) not in kinds:
            out.append(f"{build.name}@{'sm_90' if build.wgmma else list(SHARED)[len(kinds) % len(SHARED)]}")
        kinds.add(kind)
    return out


@pytest.mark.program
def test_no_spills_and_registers_shared_memory_and_wgmma_as_claimed(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    lines = compiled(tmp_path, chosen())
    assert sorted(f"{line['build']}@{line['target']}" for line in lines) == sorted(chosen())
    assert len({build.name for build in BUILDS}) == len(BUILDS)
    for line in lines:
        target, threads = str(line["target"]), int(line["warps"]) * (64 if line["target"] == "gfx942" else 32)
        assert line["spilled"] == 0, line
        assert int(line["shared"]) <= SHARED[target], line
        assert int(line["registers"]) * threads <= REGISTERS[target], line
        assert line["wgmma"] == (line["claims_wgmma"] and target == "sm_90"), line


FOLDER = Path(kernels.__file__).parent
DIFFERENT = {"head_statistics"}  # takes the product as a function too


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def launchers(module: ModuleType) -> list[str]:
    """Public functions of the file itself that can run a kernel."""
    functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    return [
        name
        for name, function in functions.items()
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and "triton" in inspect.signature(function).parameters
    ]


def test_every_file_with_a_kernel_is_listed() -> None:
    with_kernels = {file.stem for file in FOLDER.glob("*.py") if re.search(r"^@jit\(", file.read_text(), re.MULTILINE)}
    assert with_kernels == {name_of(module) for module in KERNELS}
    assert len(BUILDS) == sum(len(module.BUILDS) for module in KERNELS) > 0


@pytest.mark.parametrize("module", KERNELS, ids=name_of)
def test_reference_kernel_launcher_and_builds(module: ModuleType) -> None:
    own_kernels = [one for one in vars(module).values() if isinstance(one, Kernel)]
    assert all(build.kernel in own_kernels for build in module.BUILDS)
    launcher = next(name for name in launchers(module) if name != "chunked_head")
    own = inspect.signature(vars(module)[launcher]).parameters
    assert list(own)[-1] == "triton" and own["triton"].default is False
    if name_of(module) not in DIFFERENT:
        assert list(own)[:-1] == list(inspect.signature(module.reference).parameters)


@pytest.mark.parametrize("module", KERNELS, ids=name_of)
def test_the_head_of_a_file_gives_shapes_and_a_formula(module: ModuleType) -> None:
    assert module.__doc__ and re.search(r"\[[A-Z.]", module.__doc__), "shapes"
    assert " = " in module.__doc__ or "where" in module.__doc__, "formula"
