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
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Table = dict[tuple[str, str], list[str]]  # (heading, first cell) -> the other cells


@dataclass(frozen=True)
class Tolerance:
    """A figure agrees within ``absolute`` or ``share`` of what the document says, whichever is more."""

    absolute: float = 0.0
    share: float = 0.0

    def agrees(self, said: float, found: float) -> bool:
        return abs(said - found) <= max(self.absolute, self.share * abs(said)) + 1e-9

    def __str__(self) -> str:
        if self.absolute == float("inf"):
            return "any"
        parts = [f"{self.absolute:g}"] * bool(self.absolute) + [f"{100 * self.share:g} %"] * bool(self.share)
        return " or ".join(parts) or "equal"


ANY = Tolerance(float("inf"))


@dataclass(frozen=True)
class Entry:
    """The figures of one document.

    commands: arguments of Python, run one after the other; OUT stands for an empty folder. minutes: how long they take.
    compare: gives the differences between the document and what was printed or written to the folder. made: a pattern
    for the paths of the files that count. drawn: one for pictures that are put beside those, and not compared: they
    show the same figures in a machine's fonts. columns: those of a table with a tolerance of their own, counted from 1.
    timed: the entry measures time, and runs alone. sampled: the command takes a part of the document's items, so that
    shares agree where their 95 % intervals meet, and nothing is put into the document.
    """

    name: str
    document: str
    commands: tuple[tuple[str, ...], ...]
    minutes: float
    compare: Callable[[Entry, str, Path], Iterator[str]]
    tolerance: Tolerance = Tolerance()
    made: str = "[^/]+"
    drawn: str = ""
    columns: Mapping[int, Tolerance] = field(default_factory=dict)
    timed: bool = False
    sampled: bool = False


def cells(line: str) -> list[str]:
    """Of one line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@dataclass(frozen=True)
class Block:
    """A Markdown table: its lines ``start`` to ``end``, and the line of the ``heading`` above it (-1: none)."""

    lines: Sequence[str]
    start: int
    end: int
    heading: int

    def title(self) -> str:
        """The heading's words."""
        return self.lines[self.heading].strip("# ") if self.heading >= 0 else ""

    def name(self) -> tuple[str, list[str]]:
        """What tells a table from the others: its heading, whatever the numbers in it, and its first line."""
        return NUMBER.sub("#", self.title()), cells(self.lines[self.start])


def blocks(text: str) -> list[Block]:
    """The Markdown tables of a text."""
    found: list[Block] = []
    heading, lines = -1, text.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("#"):
            heading = at
        elif line.startswith("|") and found and found[-1].end == at:
            found[-1] = replace(found[-1], end=at + 1)
        elif line.startswith("|"):
            found.append(Block(lines, at, at + 1, heading))
    return found


def rows(found: Iterable[Block]) -> Table:
    """Of some tables, by the heading above them and their first cell."""
    return {
        (block.title(), first): rest
        for block in found for line in block.lines[block.start : block.end]
        if not re.match(r"^\|[\s:|-]+\|$", line) for first, *rest in [cells(line)]
    }  # fmt: skip


def tables(text: str) -> Table:
    """The rows of all Markdown tables of a text."""
    return rows(blocks(text))


def same_tables(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The printed tables and the document's have the same rows under the same headings, with cells that agree."""
    places, found = blocks((ROOT / entry.document).read_text()), blocks(printed)
    if not found:
        yield "the command printed no table"
        return
    made = rows(found)
    headings = {heading for heading, _ in made}
    if headings == {""}:  # the command prints a bare table: find where the document has it
        firsts = [one.name()[1] for one in found]
        places = [one for one in places if one.name()[1] in firsts]
        headings = {one.title() for one in places}
        made = {(heading, first): cells for heading in headings for (_, first), cells in made.items()}
        if not places:
            yield f"the document has no table {' | '.join(firsts[0])!r}"
    document = rows(places)
    for key in sorted({key for key in document if key[0] in headings} | made.keys()):
        if key not in made:
            yield f"{key[0]}: the document's row {key[1]!r} was not made again"
        elif key not in document:
            yield f"{key[0]}: row {key[1]!r} is missing in the document"
        else:
            yield from different_cells(f"{key[0]}: {key[1]}", document[key], made[key], entry)


def different_cells(place: str, said: Sequence[str], found: Sequence[str], entry: Entry) -> Iterator[str]:
    """Cells of one row that do not agree, by their column."""
    if len(said) != len(found):
        yield f"{place}: {len(said)} cells in the document, {len(found)} now"
        return
    for number, (one, other) in enumerate(zip(said, found, strict=True), 2):
        tolerance = entry.columns.get(number, entry.tolerance)
        if not (meet(one, other) if entry.sampled else agree(one, other, tolerance)):
            yield f"{place}, column {number}: {one!r} in the document, {other!r} now"


def agree(said: str, found: str, tolerance: Tolerance) -> bool:
    """Same words, and numbers within the tolerance."""
    if NUMBER.sub("#", said) != NUMBER.sub("#", found):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(found), strict=True)
    return all(tolerance.agrees(float(one), float(other)) for one, other in pairs)


def meet(said: str, found: str) -> bool:
    """Equal, or 95 % intervals, ``97 (95-98)`` or ``95.7 ±0.3``, that have a number in common."""
    (low, high), (other_low, other_high) = interval(said), interval(found)
    return said == found or (low <= other_high and other_low <= high)


def interval(cell: str) -> tuple[float, float]:
    """The ends of a share's 95 % interval. A cell without numbers: none."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell)]
    if "±" in cell:
        return numbers[0] - numbers[1], numbers[0] + numbers[1]
    return (numbers[1], numbers[2]) if len(numbers) == 3 else (float("inf"), -float("inf"))


def put_tables(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """Each printed table and its heading in place of the document's; what is printed bare goes by its first line."""
    page = ROOT / entry.document
    for made in blocks(printed):
        heading, first = made.name()
        places = [one for one in blocks(page.read_text()) if one.name()[1] == first and heading in ("", one.name()[0])]
        if len(places) != 1:
            yield f"{heading or ' | '.join(first)}: the document has {len(places)} such tables"
            continue
        place, lines = places[0], [*places[0].lines]
        if made.heading >= 0:
            lines[place.heading] = made.lines[made.heading]
        lines[place.start : place.end] = made.lines[made.start : made.end]
        page.write_text("\n".join(lines) + "\n")


def put_page(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The output as the document."""
    (ROOT / entry.document).write_text(printed)
    yield from ()


def put_files(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """What was written, into the document's folder, or over the document if that is a file."""
    place = ROOT / entry.document
    for file in sorted(folder.rglob("*")):
        if re.fullmatch(f"{entry.made}|{entry.drawn}", file.relative_to(folder).as_posix()):
            shutil.copyfile(file, place / file.name if place.is_dir() else place)
    yield from ()


def same_page(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The output is the document."""
    if printed != (ROOT / entry.document).read_text():
        yield "the document differs from what the command prints"


def same_files(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """Every written file is in the document's folder, with the same content."""
    made = sorted(f for f in folder.rglob("*") if re.fullmatch(entry.made, f.relative_to(folder).as_posix()))
    if not made:
        yield "the command wrote no file"
    for file in made:
        there = ROOT / entry.document / file.name
        if not there.is_file():
            yield f"{entry.document} lacks {file.name}"
        elif not agree(there.read_text(), file.read_text(), entry.tolerance):
            yield f"{there.relative_to(ROOT)} differs"


def same_ratio(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The printed speed-up agrees with the table's first row of as many threads, and the tokens are the same."""
    threads = entry.commands[0][entry.commands[0].index("--threads") + 1]
    rows = [line.strip("|").split("|") for line in (ROOT / entry.document).read_text().splitlines() if "x |" in line]
    said = next((cells[-1].strip() for cells in rows if cells[1].strip() == threads), None)
    found = re.search(r"(\d+\.\d+x)   same tokens: True", printed)
    if said is None or found is None:
        yield f"no row of {threads} threads in the document" if said is None else "the tokens are not the same"
    elif not agree(said, found[1], entry.tolerance):
        yield f"{said} in the document, {found[1]} now"


def same_story(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The made picture tells of the same forwards, tokens and texts; its seconds belong to a machine."""
    said, made = (
        re.search("<desc>(.*?)</desc>", file.read_text(), re.DOTALL)
        for file in (ROOT / entry.document, folder / Path(entry.document).name)
    )
    if said is None or made is None or said[1] != made[1]:
        yield f"{said and said[1]} in the document, {made and made[1]} now"


def all_equal(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The command compares by itself, and its exit code tells the result."""
    if not printed.strip():
        yield "the command printed nothing"


DATA = ROOT / "tests" / "data"
CONSTRAINED = "tests/data/goldens/constrained.json"
GOLDENS = [name for file in sorted(DATA.glob("goldens/*.json")) if (name := str(file.relative_to(ROOT))) != CONSTRAINED]
MODELS = [str(file.parent.relative_to(ROOT)) for file in sorted(DATA.glob("models/*/logits.safetensors"))]
# How what an entry makes gets into its document; what is not here has nothing to put there.
PUT: dict[Callable[[Entry, str, Path], Iterator[str]], Callable[[Entry, str, Path], Iterator[str]]] = {
    same_tables: put_tables, same_page: put_page, same_files: put_files, same_story: put_files,
}  # fmt: skip
CARD = "dllm/models/checkpoints/{}/README.md"

LAPTOP = ("float32", "bfloat16", "int8", "int4")
CAUSAL_MODELS = ("mini-ar", "mini-wedlm", "mini-nbdiff")


def claim(part: str) -> tuple[tuple[str, ...], ...]:
    """The command of a method's claim."""
    return (("-m", "experiments.method_claims", "--only", part),)


SWEEP = (
    ("run.py", "-m", "experiment=small", "output=OUT", "name=small"),
    ("-m", "experiments.report", "OUT/small", "--out", "OUT/report"),
)

ENTRIES = [
    Entry("pictures", "docs/pictures", (("-m", "experiments.pages.pictures", "OUT"),), 0.3, same_files, Tolerance(0.2)),
    Entry(
        "race", "docs/pictures/race.svg", (("-m", "experiments.pages.race", "OUT/race.svg"),), 0.2, same_story,
    ),
    Entry("compatibility", "docs/compatibility.md", (("-m", "dllm.analysis.compatibility"),), 0.2, same_page),
    Entry(
        "rules", "docs/reproducing.md",
        (("-m", "experiments.pages.golden_sources"), ("-m", "experiments.compare.changed_rules", "mini-llada")),
        6, same_tables, Tolerance(3), columns={3: Tolerance(1)},
    ),
    Entry("parity", "docs/reproducing.md", (("tests/parity.py", *MODELS),), 0.3, all_equal),
    Entry(
        "goldens", "docs/reproducing.md", (("tests/replay.py", *GOLDENS), ("tests/constraints.py", CONSTRAINED)), 1,
        all_equal,
    ),
    Entry("caches", "docs/caches.md", (("-m", "experiments.compare.caches"),), 4, same_tables, Tolerance(3)),
    Entry(
        "blocks", "docs/blocks.md", (("-m", "experiments.compare.blocks"),), 8, same_tables, Tolerance(3, 0.05),
    ),
    Entry("defaults", "docs/defaults.md", (("-m", "experiments.compare.defaults"),), 10, same_tables, Tolerance(4)),
    Entry("kinds", "docs/models.md", (("-m", "experiments.compare.kinds"),), 3, same_tables, Tolerance(3, 0.05)),
    Entry(
        "speed", "docs/caches.md", (("-m", "experiments.bench.cache", "--window", "--threads", "2"),), 4, same_tables,
        Tolerance(share=0.03), columns={2: ANY, 3: Tolerance(share=0.4), 5: ANY, 6: Tolerance(0.2)}, timed=True,
    ),
    Entry(
        "samplers", "docs/samplers.md",
        (("-m", "experiments.compare.samplers"), ("-m", "experiments.compare.parallelism")), 12, same_tables,
        Tolerance(2, 0.05),
    ),
    Entry(
        "filters", "docs/samplers/learn2pd.md", (("-m", "experiments.distill.judge_filter"),), 2, same_tables,
        Tolerance(1, 0.03),
    ),
    Entry(
        "wedlm", "docs/models.md", (("-m", "experiments.bench.wedlm"),), 3, same_tables, Tolerance(3, 0.05),
        columns={5: ANY, 6: ANY, 7: ANY, 8: Tolerance(share=0.4)}, timed=True,
    ),
    Entry(
        "laptop", "docs/models.md",
        tuple(("-m", "experiments.bench.laptop", "--weights", kind) for kind in LAPTOP), 5,
        same_tables, Tolerance(1), columns={4: ANY, 5: ANY, 6: ANY, 7: Tolerance(share=0.3)}, timed=True,
    ),
    Entry(
        "rounding", "docs/kernels.md", (("-m", "experiments.compare.rounding"),), 1, same_tables,
        Tolerance(1.5, 0.15),
    ),
    Entry(
        "scout", "docs/samplers/scout.md",
        (("-m", "experiments.compare.own_sampler"),), 14, same_tables, Tolerance(2, 0.05),
        columns={9: ANY},
    ),
    Entry("claim-prophet", "docs/samplers/prophet.md", claim("prophet"), 5, same_tables, Tolerance(4)),
    Entry(
        "claim-eotp", "docs/eos.md", claim("eotp"), 4, same_tables, Tolerance(4),
        columns={3: Tolerance(share=0.05), 4: Tolerance(share=0.05)},
    ),
    Entry(
        "claim-ete", "docs/samplers/ete.md", claim("ete"), 2, same_tables, Tolerance(0.05, 0.1),
        columns={2: Tolerance(4), 10: Tolerance(4)},
    ),
    Entry(
        "claim-credit", "docs/samplers/credit.md", claim("credit"), 1, same_tables, Tolerance(4),
        columns={3: Tolerance(share=0.05), 5: Tolerance(share=0.05)},
    ),
    Entry(
        "constrained", "docs/constraints.md", (("-m", "experiments.compare.constrained_tasks"),), 4, same_tables,
        Tolerance(3),
    ),
    Entry(
        "decisions", "docs/decisions.md", (("-m", "experiments.compare.decisions"),), 4, same_tables, Tolerance(2, 0.1),
        columns={2: Tolerance(3), 7: Tolerance(share=0.3)},
    ),
    Entry(
        "decisions-served", "docs/decisions.md", (("-m", "experiments.bench.decisions"),), 1, same_tables, ANY,
        timed=True,
    ),
    Entry(
        "plain", "docs/benchmarks.md",
        (("-m", "experiments.bench.step", "--plain", "--answer", "32", "--per-turn", "2", "--threads", "2"),), 1,
        same_ratio, Tolerance(share=0.5), timed=True,
    ),
    *(
        Entry(
            f"card-{name}", CARD.format(name),
            (("-m", "experiments.mini.card", name, "--again", "speed", "--items", "100", "20"),), 5, same_tables,
            sampled=True,
        )
        for name in ("mini-llada", "mini-dream")
    ),
    *(
        Entry(
            f"card-{name}", CARD.format(name), (("-m", "experiments.mini.card", name, "--again", "way"),), 0.5,
            same_tables, Tolerance(3),
        )
        for name in CAUSAL_MODELS
    ),
    Entry(
        "distillation", "docs/distillation.md",
        (
            ("-m", "experiments.distill.ablations", "recipe=mini-llada-distilled", "out=OUT/distilled"),
            ("-m", "experiments.distill.thresholds"),
        ),
        20, same_tables, Tolerance(3, 0.1),
    ),
    Entry(
        "sweep", "docs/pictures/small", SWEEP, 18, same_files, Tolerance(3, 0.05),
        r"report/(curves|table|tasks|limits)-.*\.csv", r"report/(quality-tpf|tasks-mini-llada)\.png",
    ),
]  # fmt: skip


def run(entry: Entry, write: bool = False) -> list[str]:
    """The differences. Empty: the document is reproduced. write: what was made is put there before."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "out"
        folder.mkdir()
        outputs: list[str] = []
        problems: list[str] = []
        for words in entry.commands:
            command = [sys.executable, *(word.replace("OUT", str(folder)) for word in words)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=surroundings(entry))
            outputs.append(done.stdout)
            if done.returncode:
                problems.append(f"exit code {done.returncode}: {last_line(done.stderr or done.stdout)}")
        printed = "\n".join(outputs)  # an empty line between the tables of two commands
        if write and not problems and not entry.sampled:
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
            words = "; ".join("python " + " ".join(command[:5]) for command in entry.commands)
            print(f"{entry.name:16} {entry.document:46} about {entry.minutes:g} min, "
                  f"{'intervals meet' if entry.sampled else entry.tolerance}: {words}")  # fmt: skip
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
