"""Sets of states and of tokens, numbered, and the steps between them, each computed once for all rows of a language.

A forward set holds the states that an answer may be in before a cell; a backward set those from which its rest can
still be written. A token fits a masked cell where it leads from the one into the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.edges import NEVER
from dllm.constraints.tokens import TokenAutomaton
from dllm.constraints.transitions import Bits, Transitions

MASK = -1  # a cell to be decided
REMEMBERED = 200_000  # steps and sets kept; then all is forgotten and computed again as it is met
STEP_BYTES = 256  # of each


LARGE = 1 << 12  # from that many places on a set keeps bits


@dataclass(frozen=True, eq=False, slots=True)
class ClassSet:
    """What may be in a cell."""

    number: int  # as of a ``StateSet``
    bits: Bits  # [C + 1] by class of token, the end of the text last


@dataclass(frozen=True, eq=False, slots=True)
class StateSet:
    """A set of places."""

    number: int  # its own forever in its language; between two clearings of the memo equal sets are one
    members: Bits  # [Q + 1] by place, the end of the text last


@dataclass(frozen=True, eq=False, slots=True)
class PackedSet:
    """The same where there are many places, with a bit for each."""

    number: int  # of the set, as in ``StateSet``
    bits: NDArray[np.uint8]  # [(Q + 8) // 8] a bit for each place
    size: int  # Q + 1, how many of the bits count

    @property
    def members(self) -> Bits:
        return np.unpackbits(self.bits, count=self.size).view(bool)


PlaceSet = StateSet | PackedSet


class TokenLanguage:
    """A token automaton with the ids that end an answer: what all rows, and threads, of one language share. classes [V]
    int32: the class of each id, ``end`` = C for the ends. A row of bits over classes, indexed by it, is a row over the
    vocabulary. The symbol of a cell is the class of its id, or ``mask``. seconds: that compiling took."""

    def __init__(self, tokens: TokenAutomaton, ends: Iterable[int] = (), seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.tokens, self.ends = tokens, tuple(sorted(set(ends)))
        self.transitions = Transitions(tokens, np.append(tokens.accepting, bool(self.ends)))
        self.end, self.mask = self.transitions.end, self.transitions.mask
        self.classes = tokens.classes.copy()
        self.classes[list(self.ends)] = self.end
        self.epoch, self._numbered = 0, count().__next__
        self._forget()

    def _forget(self) -> None:
        self.entries = 0
        self._state_sets: dict[bytes, PlaceSet] = {}
        self._class_sets: dict[bytes, ClassSet] = {}
        self._within: dict[int, PlaceSet] = {}
        self._after: dict[int, PlaceSet] = {}  # by the numbers of sets and symbols, made one
        self._before: dict[int, PlaceSet] = {}
        self._meet: dict[int, bool] = {}
        self._fitting: dict[int, ClassSet] = {}

    def evict(self) -> int:
        """Clear a memo that has grown too large. Returns how often that happened: rows then look their sets up."""
        if self.entries > REMEMBERED:
            self._forget()
            self.epoch += 1
        return self.epoch

    @property
    def nbytes(self) -> int:
        """Bytes of its tables and its memo, at least."""
        return self.tokens.nbytes + STEP_BYTES * self.entries

    @cached_property
    def min_tokens(self) -> int | None:
        """The fewest tokens of a text of the language. None: the vocabulary can write none."""
        least = int(self.tokens.left[0])
        return None if least == NEVER else least

    def symbol(self, number: int) -> int:
        """The symbol of an id, or of MASK. An id that the table lacks fits nowhere."""
        if number == MASK:
            return self.mask
        return int(self.classes[number]) if 0 <= number < len(self.classes) else 0

    def start(self, begun: bytes = b"") -> PlaceSet:
        """The states before the first cell, where the answer begins with ``prefix``."""
        members = np.zeros(self.tokens.places + 1, bool)
        if (state := self.tokens.begun(begun)) is not None:
            members[state] = True
        return self.state_set(members)

    def reach_end_within(self, cells: int) -> PlaceSet:
        """The states from which the text can end in that many masked cells at most, after which nothing follows; 0
        cells: in which it ends. Where there are end ids, these cells are TAIL_CELL."""
        cells = min(cells, self.tokens.longest)
        states = self._within.get(cells)
        if states is None:
            states = self.state_set(np.append(self.tokens.left <= cells, bool(self.ends)))
            self._within[cells] = states
            self.entries += 1
        return states

    def after(self, states: PlaceSet, symbol: int, kind: int) -> PlaceSet:
        """The states after a cell of this symbol and kind, from ``states`` before it."""
        key = 3 * (states.number * (self.mask + 1) + symbol) + kind
        out = self._after.get(key)
        if out is None:
            out = self._after[key] = self.state_set(self.transitions.after(states.members, symbol, kind))
            self.entries += 1
        return out

    def before(self, states: PlaceSet, symbol: int, kind: int) -> PlaceSet:
        """The states before a cell of this symbol and kind that lead to ``states`` after it."""
        key = 3 * (states.number * (self.mask + 1) + symbol) + kind
        out = self._before.get(key)
        if out is None:
            out = self._before[key] = self.state_set(self.transitions.before(states.members, symbol, kind))
            self.entries += 1
        return out

    def intersects(self, forward: PlaceSet, backward: PlaceSet) -> bool:
        """Whether the two share a state: whether what is before and after goes together."""
        key = forward.number << 40 | backward.number
        meets = self._meet.get(key)
        if meets is None:
            meets = self._meet[key] = bool((forward.members & backward.members).any())
            self.entries += 1
        return meets

    def allowed_classes(self, forward: PlaceSet, backward: PlaceSet, kind: int) -> ClassSet:
        """What may be in a masked cell of this kind between the states before and after it."""
        key = 3 * (forward.number << 40 | backward.number) + kind
        classes = self._fitting.get(key)
        if classes is None:
            classes = self._class_set(self.transitions.allowed_classes(forward.members, backward.members, kind))
            self._fitting[key] = classes
            self.entries += 1
        return classes

    def state_set(self, members: Bits) -> PlaceSet:
        """The one set of these ``members`` [Q + 1]."""
        bits = np.packbits(members)
        key = bits.tobytes()
        states = self._state_sets.get(key)
        if states is None:
            number, large = self._numbered(), len(members) > LARGE
            states = PackedSet(number, bits, len(members)) if large else StateSet(number, members)
            self._state_sets[key] = states
            self.entries += 1 + len(members) // (1024 if large else 256)  # a set takes its bytes, a step some 200
        return states

    def _class_set(self, bits: Bits) -> ClassSet:
        """The one set of these classes [C + 1]."""
        key = np.packbits(bits).tobytes()
        classes = self._class_sets.get(key)
        if classes is None:
            classes = self._class_sets[key] = ClassSet(self._numbered(), bits)
            self.entries += 1 + len(bits) // 256
        return classes
