"""Prove and measure the framework on a GPU: ``python -m experiments.gpu_hour OUT``, in under 30 minutes on 80 GB.

Parts, in their order: ``machine`` (a large product and a large copy), ``checks`` (tokens under recordings), ``texts``
(mini-llada's text in LLaDA-8B's shape: prompts that are new to the recordings), ``peers`` (Fast-dLLM with the same
tensors and prompts; ``--fast-dllm DIR`` names a checkout), ``profile`` (where the time of a turn goes), ``lags`` (how
late the host reads), ``streams`` (the server's scheduler), ``steps`` (narrow
weights, routed experts, every cache, batches), ``kernels`` (times beside the least times), ``tests`` (all others of
tests/gpu). Each part writes OUT/PART.json after every cell. A second start goes on where the first one ended, and
refuses a folder of another device, code or version. A cell that fails is written down with its sentence, and the others
go on: the exit code is 1 then. OUT/report.md and the pictures beside it show what is there.

``--minutes 9`` ends cleanly between cells, says how many are left, and returns 0. ``--docs`` measures nothing: it
writes the results, or that it has none, into docs/measured/speed.md. ``--dry`` runs every cell at tiny shapes on a CPU,
where recordings replay their operations one by one.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dllm.common.errors import UserError
from experiments.gpu_hour.docs import write_section
from experiments.gpu_hour.parts import NAMES, Setup, parts
from experiments.gpu_hour.report import write_report
from experiments.gpu_hour.store import ROOT, Store, identity, parts_in
from experiments.gpu_hour.work import GRACE, OUT_OF_TIME, PATIENCE, Clock, Part, crashed, report_failures, work
from experiments.support.scripts import refusing


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_hour", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--fast-dllm", type=Path, metavar="DIR", help="a checkout of NVlabs/Fast-dLLM, for peers")
    parser.add_argument("--minutes", type=float, help="end cleanly within this many minutes")
    parser.add_argument("--again", action="store_true", help="run the cells again that failed")
    parser.add_argument("--dry", action="store_true", help="every cell at tiny shapes on the CPU")
    parser.add_argument("--docs", action="store_true", help="only write the results into docs/measured/speed.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)  # one part, in this process
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    if options.fast_dllm is not None and not (options.fast_dllm / "llada" / "generate.py").is_file():
        raise UserError(f"--fast-dllm={options.fast_dllm} has no llada/generate.py. Clone NVlabs/Fast-dLLM there.")
    return options


def device_of(options: argparse.Namespace) -> torch.device:
    """Raises UserError where there is no GPU and none was waived."""
    if options.dry:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"OUT={options.out}: this command measures a GPU, and PyTorch {torch.__version__} finds none here. Run it "
            "on a machine with one, or with --dry for a tiny run on the CPU."
        )
    return torch.device("cuda")


@refusing
def main(arguments: Sequence[str] | None = None, tests: bool = True) -> int:
    """tests: whether the part ``tests`` may start pytest."""
    began, options = time.monotonic(), options_of(arguments)
    if options.docs:
        print(write_section(parts_in(options.out), options.out, ROOT / "docs"))
        return 0
    return measure(options, Clock(began, options.minutes and 60 * options.minutes), tests)


def measure(options: argparse.Namespace, clock: Clock, tests: bool) -> int:
    """Run the chosen parts, then write the report. Returns the exit code."""
    device = device_of(options)
    store = Store(options.out, identity(device, options.dry))
    known = parts(Setup(device, options.dry, tests, options.fast_dllm), store)
    chosen = [part for name, part in known.items() if name in options.only or name == "machine"]
    if options.child:
        return work(known[options.only[0]], store, clock)
    for part in chosen:
        if options.again:
            store.forget(part.name, "failed")
        if run_part(part, store, clock, options) == OUT_OF_TIME:
            break
    write_report(parts_in(store.folder), known, store.folder)
    left = sum(len(part.left(store)) for part in chosen)
    print(f"{left} cells left: run the same command again." if left else f"All done: {store.folder / 'report.md'}.")
    return int(bool(report_failures(store, chosen)))


def run_part(part: Part, store: Store, clock: Clock, options: argparse.Namespace) -> int:
    """Run what is left of a part, in a process of its own: a crash of the GPU ends that process and no other part, and
    the next process goes on after the cell that crashed. A dry run stays in this process. Returns 0 or OUT_OF_TIME."""
    while left := part.left(store):
        if clock.left < part.start + left[0].seconds:
            return OUT_OF_TIME
        if options.dry:
            return work(part, store, clock)
        command = [sys.executable, "-m", "experiments.gpu_hour", str(options.out), "--child", "--only", part.name]
        if options.fast_dllm:
            command += ["--fast-dllm", str(options.fast_dllm)]
        if options.minutes:
            command += ["--minutes", str((clock.left - part.start) / 60)]
        patience = PATIENCE * sum(task.seconds for task in left) + GRACE  # nothing else ends a kernel that hangs
        try:
            code = subprocess.run(command, cwd=ROOT, timeout=patience).returncode
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        if code == OUT_OF_TIME:
            return code
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        crashed(part, store, how, len(part.left(store)) == len(left))
    return 0


if __name__ == "__main__":
    sys.exit(main())
