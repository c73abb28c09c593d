"""What an entry of the documentation's figures is, whether what was made agrees with it, and how it is put there."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
    shares agree where their 95 % intervals meet, and nothing is put into the document. part: commands that make some of
    the document's tables or files, and run instead where those are compared and not written. shown: a pattern for the
    headings of the tables that the document has; the command may print more. rows: CSV files beside the document, one
    for each of those tables.
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
    part: tuple[tuple[str, ...], ...] = ()
    shown: str = ".*"
    rows: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """The CSV files."""
        return [ROOT / "docs" / "measured" / f"{name}.csv" for name in self.rows]

    def printed_rows(self, printed: str) -> list[list[list[str]]]:
        """The printed tables by line and cell; what several commands print of one table is one."""
        found: dict[str, list[list[str]]] = {}
        for block in self.printed_tables(printed):
            names, *lines = block.cells()
            found.setdefault(str(block.name()), [names]).extend(lines)
        return [*found.values()]

    def printed_tables(self, printed: str) -> list[Block]:
        """The printed tables that the document has."""
        return [block for block in blocks(printed) if re.fullmatch(self.shown, block.title())]


def same_tables(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """The printed tables and the document's have the same rows under the same headings, with cells that agree."""
    places, found = blocks((ROOT / entry.document).read_text()), entry.printed_tables(printed)
    if not found:
        yield "the command printed no table"
        return
    made = rows(found)
    kinds = [one.name() for one in found if one.heading >= 0]
    places = [one for one in places if not kinds or one.name() in kinds]  # others may have the same heading
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


def same_rows(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """Each printed table has the rows of its CSV file, in their order, with cells that agree."""
    found = entry.printed_rows(printed)
    if len(found) != len(entry.rows):
        yield f"the command printed {len(found)} tables for {', '.join(entry.rows)}"
        return
    for file, made in zip(entry.files(), found, strict=True):
        firsts = {row[0] for row in made}
        said = [row for row in read_rows(file) if not entry.part or row[0] in firsts]
        for one, other in zip_longest(said, made, fillvalue=[""]):
            if one[0] != other[0]:
                yield f"{file.stem}: row {one[0]!r} in the file, {other[0]!r} now"
                return
            yield from different_cells(f"{file.stem}: {one[0]}", one[1:], other[1:], entry)


def read_rows(file: Path) -> list[list[str]]:
    """Of a CSV file, the names of the columns first."""
    return [*csv.reader(file.read_text("utf-8").splitlines())]


def put_rows(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """Each printed table as its CSV file."""
    for file, made in zip(entry.files(), entry.printed_rows(printed), strict=False):
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(made)
    yield from ()


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
    for made in entry.printed_tables(printed):
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


def put_files(entry: Entry, printed: str, folder: Path) -> Iterator[str]:
    """What was written, into the document's folder, or over the document if that is a file."""
    place = ROOT / entry.document
    for file in sorted(folder.rglob("*")):
        if re.fullmatch(f"{entry.made}|{entry.drawn}", file.relative_to(folder).as_posix()):
            shutil.copyfile(file, place / file.name if place.is_dir() else place)
    yield from ()


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
    """The printed speed-up agrees with the file's first row of as many threads, and the tokens are the same."""
    threads = entry.commands[0][entry.commands[0].index("--threads") + 1]
    said = next((row[-1] for row in read_rows(entry.files()[0]) if row[1] == threads), None)
    found = re.search(r"(\d+\.\d+x)   same tokens: True", printed)
    if said is None or found is None:
        yield f"no row of {threads} threads in the file" if said is None else "the tokens are not the same"
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


# How what an entry makes gets into its document; what is not here has nothing to put there.
PUT: dict[Callable[[Entry, str, Path], Iterator[str]], Callable[[Entry, str, Path], Iterator[str]]] = {
    same_tables: put_tables,
    same_rows: put_rows,
    same_files: put_files,
    same_story: put_files,
}


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Table = dict[tuple[str, str], list[str]]  # (heading, first cell) -> the other cells


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

    def cells(self) -> list[list[str]]:
        """Its rows, the names of the columns first."""
        lines = self.lines[self.start : self.end]
        return [cells(line) for line in lines if not re.match(r"^\|[\s:|-]+\|$", line)]

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
        for block in found
        for line in block.lines[block.start : block.end]
        if not re.match(r"^\|[\s:|-]+\|$", line)
        for first, *rest in [cells(line)]
    }
