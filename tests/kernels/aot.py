"""Compiles every shipped kernel ahead of time: ``python tests/kernels/aot.py [NAME@TARGET ...]`` prints lines of JSON,
and with ``--table`` a table of registers and shared memory.

Needs no GPU, and a process without TRITON_INTERPRET, in which kernels are no kernels. NVIDIA's numbers come from the
cubin by way of cuobjdump, AMD's from the assembly's metadata.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dllm.parts import Build
from tests.kernels.builds import BUILDS

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compiled(build: Build, target: GPUTarget) -> Any:
    kernel = build.kernel.built
    types = {name: kind for name, kind in build.types.items() if kind is not None}
    given = {**dict.fromkeys(build.types.keys() - types.keys()), **build.constants, **build.config.blocks}
    constants = {name: given[name] for name in kernel.arg_names if name in given}
    signature = {name: types.get(name, "constexpr").removesuffix("/16") for name in kernel.arg_names}
    # What Triton finds out by itself at a launch: pointers of tensors, and arguments marked /16, are multiples of 16.
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(kernel.arg_names)
        if types.get(name, "").startswith("*") or types.get(name, "").endswith("/16")
    }
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values, aligned)
    options = {"num_warps": build.config.warps, "num_stages": build.config.stages}
    return triton.compile(source, target=target, options=options)


def nvidia(result: Any) -> dict[str, int | bool]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(result.asm["cubin"])
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    spilled, wgmma = found["STACK"] + found["LOCAL"], "wgmma" in result.asm["ptx"]
    return {"registers": found["REG"], "spilled": spilled, "wgmma": wgmma}


def amd(result: Any) -> dict[str, int | bool]:
    text = result.asm["amdgcn"]
    spills = sum(int(count) for count in re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)", text))
    scratch = int(re.findall(r"\.private_segment_fixed_size:\s*(\d+)", text)[0])
    registers = int(re.findall(r"\.vgpr_count:\s*(\d+)", text)[0])
    return {"registers": registers, "spilled": spills + scratch, "wgmma": False}


def lines(wanted: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """What each build takes on each target (none wanted: all)."""
    for build in BUILDS:
        for name, target in TARGETS.items():
            if wanted and f"{build.name}@{name}" not in wanted:
                continue
            result = compiled(build, target)
            usage = amd(result) if target.backend == "hip" else nvidia(result)
            line = {"build": build.name, "target": name, "claims_wgmma": build.wgmma, "warps": build.config.warps}
            yield line | {"shared": result.metadata.shared} | usage


def table(found: Iterable[dict[str, Any]]) -> str:
    """Registers of a thread and bytes of shared memory of each kernel's builds, as a Markdown table."""
    kernels: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in found:
        kernels.setdefault(line["build"].split("-")[0], {}).setdefault(line["target"], []).append(line)
    rows = ["| kernel | builds | " + " | ".join(TARGETS) + " |", "|---|---:|" + "---:|" * len(TARGETS)]
    for name, by_target in kernels.items():
        cells = [
            " / ".join(between([line[what] for line in by_target[target]]) for what in ("registers", "shared"))
            for target in TARGETS
        ]
        rows.append(f"| `{name}` | {len(by_target['sm_80'])} | {' | '.join(cells)} |")
    return "\n".join(rows)


def between(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def main() -> None:
    if sys.argv[1:] == ["--table"]:
        print(table(lines()))
        return
    for line in lines(sys.argv[1:]):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
