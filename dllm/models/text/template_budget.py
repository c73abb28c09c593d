"""What one rendering of a chat template may take: its time, the bytes of all that it makes, the size of each value.

Bytes that a template makes stay counted when it drops them: nothing tells whether it does. Lists are measured as they
are written out, since ``[x, x]`` of itself, 60 times, takes little memory and 2^60 steps to print, hash or compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from sys import getsizeof
from threading import local
from time import thread_time
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError

RENDER_BYTES = 64 << 20  # in a rendering; one of 20,000 messages makes 7 MB
LONGEST_TEXT = 1 << 22  # characters
MOST_ENTRIES = 1 << 18  # of a list, those of lists in it included
MOST_CHARACTERS = 1 << 24  # of all texts in a list
DEEPEST_VALUE = 200  # lists in lists
LARGEST_BITS = 1 << 14  # of a whole number; one in JSON has at most 4,300 digits
_RENDERING = local()
_ITEMS: Any = type({}.items())
_LISTS: Any = (dict, list, tuple, set, frozenset, type({}.keys()), type({}.values()), _ITEMS)


class Size(NamedTuple):
    """Of a value, written out."""

    entries: int
    characters: int
    depth: int

    @property
    def text_length(self) -> int:
        """Characters that its text has at most: a character may be written by ten, as in ``\\U0010ffff``."""
        return self.characters if self.depth == 0 else 10 * self.characters + 8 * self.entries


class RenderingBudget:
    """What a rendering has left. Every method raises SecurityError where it is not enough."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.room_left = seconds, RENDER_BYTES
        self.end = thread_time() + seconds
        self.holders: list[dict[str, Any]] = []  # of what a template's names stand for
        self._sizes: dict[int, tuple[object, Size]] = {}  # by id; the objects are held, so that no id comes twice

    @staticmethod
    def now() -> RenderingBudget:
        """That of the rendering under way."""
        return _RENDERING.budget  # type: ignore[no-any-return]

    @staticmethod
    @contextmanager
    def together(seconds: float) -> Iterator[None]:
        """Renderings that share ``seconds``."""
        _RENDERING.end = thread_time() + seconds
        try:
            yield
        finally:
            del _RENDERING.end

    @staticmethod
    @contextmanager
    def begun(seconds: float) -> Iterator[None]:
        """A rendering, which may take ``seconds`` of its thread."""
        budget = _RENDERING.budget = RenderingBudget(seconds)
        budget.end = min(budget.end, getattr(_RENDERING, "end", budget.end))
        try:
            yield
        finally:
            del _RENDERING.budget
            for holder in budget.holders:  # they may hold themselves, and much else
                holder.clear()

    def room(self, size: int) -> None:
        """Asks whether ``size`` bytes may be made."""
        if size > self.room_left:
            raise SecurityError(f"it makes more than {RENDER_BYTES >> 20} MiB of texts and lists")

    def spend(self, size: int = 0) -> None:
        """Counts ``size`` bytes, and asks for the time."""
        self.room(size)
        self.room_left -= size
        if thread_time() > self.end:
            raise SecurityError(f"it does not end within {self.seconds} s")

    def keep(self, value: Any) -> Any:
        """Counts a value that was made, and gives it back."""
        if isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise SecurityError(f"a text of {len(value)} characters is too long")
            self.spend(getsizeof(value))
        elif isinstance(value, int):
            if value.bit_length() > LARGEST_BITS:
                raise SecurityError("a number is too large")
            self.spend()
        else:
            self.size(value)
            self.spend()
        return value

    def size(self, value: Any) -> Size:
        """Of any value; lists are counted when they are seen first."""
        if isinstance(value, str):
            return Size(1, len(value), 0)
        if isinstance(value, int):
            return Size(1, value.bit_length() // 3 + 2, 0)
        if (entry := self._sizes.get(id(value))) is not None:
            return entry[1]
        if not isinstance(value, _LISTS):
            return Size(1, 100, 0)
        pairs = value.items() if isinstance(value, dict) else value if isinstance(value, _ITEMS) else None
        parts: Iterable[Any] = value if pairs is None else chain.from_iterable(pairs)
        sizes = [self.size(part) for part in parts]
        return self._note(
            value,
            Size(
                1 + sum(part_size.entries for part_size in sizes),
                sum(part_size.characters for part_size in sizes),
                1 + max((part_size.depth for part_size in sizes), default=0),
            ),
        )

    def _note(self, value: Any, size: Size) -> Size:
        if size.entries > MOST_ENTRIES or size.characters > MOST_CHARACTERS:
            raise SecurityError(f"a list of {size.entries} entries and {size.characters} characters is too long")
        if size.depth > DEEPEST_VALUE:
            raise SecurityError(f"lists within lists go deeper than {DEEPEST_VALUE}")
        self.spend(getsizeof(value) + 200)
        self._sizes[id(value)] = (value, size)
        return size

    def stream(self, values: Iterator[Any], source: Any) -> Iterator[Any]:
        """Values that come one by one, made from those of ``source``."""
        size = self.size(source)
        entries = self.each(values)
        self._note(entries, size._replace(depth=size.depth + 1))
        return entries

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """Values one by one, as a loop takes them."""
        for value in values:
            self.spend(48 + (getsizeof(value) if isinstance(value, list | tuple) else 0))
            yield value

    def text(self, value: Any) -> str:
        """``str(value)``."""
        if isinstance(value, str):
            return str(value)
        self.room(4 * self.size(value).text_length)
        return str(self.keep(str(value)))
