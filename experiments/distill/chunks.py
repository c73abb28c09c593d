"""Work cut into parts that are written one by one: a run that was killed does the one it was at again, whole.

What a part gives then depends on nothing but the part, in float32 too, where a row may round by its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from experiments.support.course import write

Item = TypeVar("Item")
PARTS_OF = 4  # batches of rows in a part: as a row ends, the next joins


def cut(items: Sequence[Item], rows: int, key: Callable[[Item], int]) -> list[list[Item]]:
    """The items by ``key``, in parts of some batches of ``rows``."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    size = PARTS_OF * rows
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]


def worked(
    folder: Path,
    parts: Sequence[list[Item]],
    work: Callable[[list[Item]], list[Any]],
    title: str,
    process: int = 0,
    processes: int = 1,
) -> None:
    """Leave what ``work`` makes of each part as JSON in ``folder``; what is there already stays. Of several processes
    each takes its share of the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    mine = [number for number in range(len(parts)) if number % processes == process]
    left = [number for number in mine if not place(folder, number).is_file()]
    for number in track(left, title, console=Console(stderr=True), disable=not left or process > 0):
        write(place(folder, number), json.dumps(work(parts[number])))


def found(folder: Path, parts: Sequence[list[Item]]) -> Iterator[tuple[Item, Any]]:
    """Every item with what was made of it."""
    for number, part in enumerate(parts):
        yield from zip(part, json.loads(place(folder, number).read_text()), strict=True)


def is_whole(folder: Path, parts: Sequence[list[Any]]) -> bool:
    """Whether nothing is left to do."""
    return all(place(folder, number).is_file() for number in range(len(parts)))


def place(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"
