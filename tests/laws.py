"""Every law over every case, in a seeded order, until the time is up: ``make laws``, or ``python tests/laws.py``.

LAWS_MINUTES (30) is the budget, LAWS_SEED (0) decides the order, LAWS_PROCESSES (2) run at once. Prints the plan, what
it covered, and what broke; the exit code is 1 if anything did, or if a case takes no end.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from importlib import import_module
from itertools import chain, zip_longest
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS / "support"), str(TESTS / "laws"), str(TESTS.parent)]
MINUTES = float(os.environ.get("LAWS_MINUTES", "30"))
SEED = os.environ.get("LAWS_SEED", "0")
STUCK = 600.0  # seconds without any case finished
Broken = list[tuple[str, str]]  # law and what it said


def register() -> None:
    """Import every file of laws, with the settings of a test process."""
    import_module("conftest")
    for file in sorted(TESTS.rglob("test_*.py")):
        if "from law import law" in file.read_text():
            sys.path.insert(1, str(file.parent))
            import_module(file.stem)
    os.environ["DLLM_LAWS"] = "all"  # from now on: no test is to be made of every case


def plan() -> dict[Any, list[str]]:
    """The laws of every case, by name; the cases of each law in a seeded order, and of all laws in turn."""
    from law import LAWS

    # Drawn once: it takes 2 CPU minutes, most of them to find what goes together.
    found = [(law.name, tuple(law.all())) for law in LAWS]
    turns = chain.from_iterable(zip_longest(*(of for _, of in found)))
    cases: dict[Any, list[str]] = {case: [] for case in turns if case is not None}
    for name, of in found:
        for case in of:
            cases[case].append(name)
    return cases


def run(job: tuple[Any, list[str], float]) -> tuple[Any, list[str], Broken] | None:
    """The laws of one case: which ran and which broke. None when the time is up."""
    case, names, deadline = job
    if time.time() > deadline:
        return None
    from law import LAWS

    broken: Broken = []
    for law in LAWS:
        if law.name in names:
            try:
                law.check(case)
            except Exception as error:  # a crash breaks the law too
                broken.append((law.name, f"{type(error).__name__}: {error}".splitlines()[0]))
    return case, names, broken


def main() -> int:
    register()
    cases = plan()
    checks = Counter(name for names in cases.values() for name in names)
    processes = int(os.environ.get("LAWS_PROCESSES", "2"))
    print(
        f"{len(checks)} laws over {len(cases)} cases, {checks.total()} checks; "
        f"LAWS_MINUTES={MINUTES:g} LAWS_SEED={SEED} LAWS_PROCESSES={processes}",
        flush=True,
    )
    began, covered, ran, broken = time.time(), 0, Counter[str](), Counter[str]()
    jobs = [(case, names, began + 60 * MINUTES) for case, names in cases.items()]
    with get_context("spawn").Pool(processes, register) as pool:
        outcomes = pool.imap_unordered(run, jobs)
        for _ in jobs:
            try:
                outcome = outcomes.next(STUCK)
            except TimeoutError:
                print(f"No case has finished for {STUCK:g} s: one takes no end.")
                broken["(no end)"] += 1
                break
            if outcome is None:
                continue
            case, names, found = outcome
            covered, ran = covered + 1, ran + Counter(names)
            broken.update(name for name, _ in found)
            for name, words in found:
                print(f"BROKEN {name}: {case}: {words}", flush=True)
    for name, count in checks.items():
        print(f"{ran[name]:6} of {count:6} cases, {broken[name]} broken: {name}")
    print(
        f"covered {covered} of {len(cases)} cases, {ran.total()} of {checks.total()} checks, in "
        f"{(time.time() - began) / 60:.1f} minutes: {broken.total()} broken"
    )
    return int(bool(broken) or not covered)


if __name__ == "__main__":
    sys.exit(main())
