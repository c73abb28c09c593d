"""Which of make's targets run how many tests: ``python tests/counted.py``.

Collects the tests as each target's own pytest commands in the Makefile do, and all of them, and compares: exit 1 where
a test is in no target. With FILE, the output of a run, it lists why tests were skipped there, and how many, instead:
``.ci/run | tee log; python tests/counted.py log``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SKIP = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$", re.MULTILINE)
PYTEST = re.compile(r"^\t((?:\w+=\w+ )*)\S+ -m pytest -n \S+ --dist worksteal ?(.*)$", re.MULTILINE)


def commands(makefile: str) -> dict[str, list[tuple[dict[str, str], list[str]]]]:
    """By target the variables and arguments of its pytest commands, without how tests are shared out."""
    text = makefile.replace("\\\n", "")
    for name, value in re.findall(r"^([A-Z]+) := (tests/.*)$", text, re.MULTILINE):
        text = text.replace(f"$({name})", value)
    found = {}
    for target, body in re.findall(r"^(test[a-z-]*):[^\n]*\n((?:\t[^\n]*\n)+)", text, re.MULTILINE):
        found[target] = [
            (dict(one.split("=") for one in given.split()), shlex.split(line)) for given, line in PYTEST.findall(body)
        ]
    return found


def collected(given: dict[str, str], arguments: list[str]) -> set[str]:
    """The ids of the tests that pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | given, capture_output=True, text=True)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line}


def skips(text: str) -> Counter[str]:
    """How many tests were skipped, by reason."""
    found = Counter[str]()
    for count, reason in SKIP.findall(text):
        found[reason] += int(count)
    return found


def report(targets: dict[str, set[str]], whole: set[str]) -> int:
    seen = Counter(name for ids in targets.values() for name in ids)
    missing = sorted(whole - seen.keys())
    for target, ids in targets.items():
        print(f"{len(ids):7}  make {target}")
    print(
        f"{seen.total():7}  sum\n{seen.total() - len(seen):7}  of them a second time\n{len(whole):7}  all\n"
        f"{len(missing):7}  in no target"
    )
    print(*missing, sep="\n")
    return 1 if missing or seen.keys() - whole else 0


def main(files: list[str]) -> int:
    for file in files:
        for reason, count in skips(Path(file).read_text()).most_common():
            print(f"{count:7}  {reason}")
    if files:
        return 0
    runs = commands((ROOT / "Makefile").read_text())
    targets = {target: set[str]().union(*(collected(*one) for one in given)) for target, given in runs.items()}
    return report(targets, collected({"DLLM_DEVICE": "cpu"}, []))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
