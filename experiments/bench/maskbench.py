"""Compile the schemas of MaskBench, and judge its instances: ``experiments.bench.maskbench FOLDER --schemas 200``.

FOLDER: ``maskbench/data`` of github.com/guidance-ai/jsonschemabench. Each file has a ``schema`` and ``tests``, each of
these ``data`` and whether it is ``valid``. Prints how many schemas were compiled, refused, too large or too slow; how
many valid and invalid instances the compiled ones accept, written by ``json.dumps`` in the order of the file; the
seconds to compile at the median and at 95 %; why schemas were refused; and each invalid instance that was accepted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dllm.common.errors import UserError
from dllm.constraints import JsonSchema, automaton_of

LIMIT, SECONDS = 60_000, 6.0  # states of an automaton, and what one may take
LIMITS = ("the constraint needs more", "the constraint took more")


@dataclass
class Tally:
    """What became of the schemas, and of the instances by whether they are valid."""

    outcomes: Counter[str] = field(default_factory=Counter)
    accepted: Counter[bool] = field(default_factory=Counter)
    judged: Counter[bool] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def take(self, name: str, case: dict[str, Any], additional: bool) -> None:
        """Compile one file's schema and judge its instances."""
        begin = time.thread_time()
        try:
            automaton = automaton_of(
                JsonSchema(case["schema"], additional=additional, strict=False, limit=LIMIT, seconds=SECONDS)
            )
        except UserError as error:
            slow = str(error).startswith(LIMITS)
            self.outcomes["too large or too slow" if slow else "refused"] += 1
            self.reasons[reason(str(error))] += 1
            return
        self.seconds.append(time.thread_time() - begin)
        self.outcomes["compiled"] += 1
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
            accepted = automaton.accepts(text)
            self.judged[test["valid"]] += 1
            self.accepted[test["valid"]] += accepted
            if accepted and not test["valid"]:
                self.wrong.append(f"{name}: {test.get('description', '')}")

    def lines(self) -> Iterator[str]:
        """The table."""
        for outcome in ("compiled", "refused", "too large or too slow"):
            yield f"{outcome:<22}{self.outcomes[outcome]:>6}"
        for valid, word in ((True, "valid accepted"), (False, "invalid accepted")):
            yield f"{word:<22}{self.accepted[valid]:>6} of {self.judged[valid]}"
        if self.seconds:
            median, high = np.quantile(self.seconds, [0.5, 0.95])
            yield f"seconds to compile: {median:.3f} at the median, {high:.2f} at 95 %"
        yield from (f"  {count:>5}  {why}" for why, count in self.reasons.most_common(20))
        yield from (f"  invalid accepted: {name}" for name in self.wrong)


def reason(sentence: str) -> str:
    """A refusal without its place and values, so that alike ones count together."""
    said = sentence if sentence.startswith(LIMITS) else sentence.partition(": ")[2] or sentence
    return said.partition(". ")[0][:60]


def read(folder: Path, count: int | None) -> list[Path]:
    """The files, or ``count`` of them at random. Raises UserError if there are no files."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"FOLDER={str(folder)!r} holds no .json files. Give maskbench/data of jsonschemabench.")
    return files if count is None else random.Random(0).sample(files, min(count, len(files)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schemas", type=int, help="how many at random; without it all")
    parser.add_argument("--additional", action="store_true", help="members may be added where none are named")
    given = parser.parse_args(arguments)
    tally = Tally()
    try:
        for file in read(given.folder, given.schemas):
            tally.take(file.name, json.loads(file.read_text("utf-8")), given.additional)
    except UserError as error:
        sys.exit(str(error))
    print(*tally.lines(), sep="\n")


if __name__ == "__main__":
    main()
