"""Make all numbers and pictures of README and docs again that need no GPU: ``python -m experiments.reproduce``.

Each entry runs a command and compares its output with a document. It fails when a figure differs by more than the
entry's tolerance. ``--list`` shows the entries, ``--only NAME...`` runs some of them, ``--write`` puts what is made
into the documents instead: after new weights, say.

Counts and scores repeat exactly on one machine. On another, two nearly equal logits may change places, which moves a
score by a point and a mean by less. Two entries run at a time, each on one thread. Entries that measure time run after
them, one by one, and are compared by ratios, since a speed belongs to a machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock

from experiments.figures import compare
from experiments.figures.compare import PUT, Entry
from experiments.figures.entries import ENTRIES

WRITING = Lock()  # two entries may have one document


def run(entry: Entry, write: bool = False) -> list[str]:
    """The differences. Empty: the document is reproduced. write: what was made is put there before."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "out"
        folder.mkdir()
        outputs: list[str] = []
        problems: list[str] = []
        for words in entry.commands if write else entry.part or entry.commands:
            command = [sys.executable, *(word.replace("OUT", str(folder)) for word in words)]
            done = subprocess.run(command, cwd=compare.ROOT, capture_output=True, text=True, env=surroundings(entry))
            outputs.append(done.stdout)
            if done.returncode:
                problems.append(f"exit code {done.returncode}: {last_line(done.stderr or done.stdout)}")
        printed = "\n".join(outputs)  # an empty line between the tables of two commands
        if write and not problems and not entry.sampled:
            with WRITING:
                problems += PUT.get(entry.compare, entry.compare)(entry, printed, folder)
        return problems + list(entry.compare(entry, printed, folder))


def surroundings(entry: Entry) -> dict[str, str]:
    return {**os.environ} if entry.timed else {**os.environ, "OMP_NUM_THREADS": "1"}


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing said")


def main(arguments: Sequence[str] | None = None) -> int:
    names = [entry.name for entry in ENTRIES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show the entries and stop")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--write", action="store_true", help="put what is made into the documents")
    options = parser.parse_args(arguments)
    chosen = [entry for entry in ENTRIES if entry.name in options.only]
    if options.list:
        for entry in chosen:
            words = "; ".join("python " + " ".join(command[:5]) for command in entry.part or entry.commands)
            print(
                f"{entry.name:16} {entry.document:46} about {entry.minutes:g} min, "
                f"{'intervals meet' if entry.sampled else entry.tolerance}: {words}"
            )
        return 0
    beside = sorted((entry for entry in chosen if not entry.timed), key=lambda entry: -entry.minutes)
    alone = [entry for entry in chosen if entry.timed]
    with ThreadPoolExecutor(2) as pool:
        report = partial(reported, write=options.write)
        good = [*pool.map(report, beside), *map(report, alone)]
    failed = [entry.name for entry, right in zip([*beside, *alone], good, strict=True) if not right]
    rest = f"; not: {', '.join(failed)}" if failed else ""
    done = "written or equal" if options.write else "reproduced"
    print(f"{len(chosen) - len(failed)} of {len(chosen)} {done}{rest}")
    return 1 if failed else 0


def reported(entry: Entry, write: bool) -> bool:
    """Run an entry and print its result. True: it is reproduced, or written."""
    began = time.perf_counter()
    problems = run(entry, write)
    minutes = (time.perf_counter() - began) / 60
    good = "wrote" if write and entry.compare in PUT and not entry.sampled else "equal"
    print(f"{'FAILS' if problems else good:6} {entry.name} ({entry.document}), {minutes:.1f} min", flush=True)
    for problem in problems:
        print(f"       {problem}", flush=True)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
