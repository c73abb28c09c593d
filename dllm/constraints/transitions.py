"""How sets of states pass over a cell, forward and backward, and what fits a cell between two of them.

A set is a row of bits over the places, the end of the text last. A cell holds a class of tokens, an end id, or a mask;
the last two do what its kind says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dllm.constraints.runs import Indices, Runs
from dllm.constraints.tokens import TokenAutomaton

Bits = NDArray[np.bool_]
# What an end id does: nothing may end here; it writes nothing and text goes on; it ends the text.
TEXT_CELL, GAP_CELL, TAIL_CELL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Transitions:
    """An automaton of Q places and C classes. The symbol C is an end id, ``mask`` a mask."""

    tokens: TokenAutomaton  # the automaton that it extends by end and mask
    ending: Bits  # [Q + 1] where the text may end: the accepting states, and the end itself where there are end ids

    @property
    def end(self) -> int:
        return self.tokens.size

    @property
    def mask(self) -> int:
        return self.tokens.size + 1

    def after(self, members: Bits, symbol: int, kind: int) -> Bits:
        """The states after a cell, from those before it."""
        out = np.zeros_like(members)
        if symbol >= self.end and kind == GAP_CELL:
            out |= members
        elif symbol >= self.end and kind == TAIL_CELL:
            out[-1] = (members & self.ending).any()
        source, target, runs = self._moves(symbol)
        out[target.compress(members.take(source))] = True
        if len(runs.source):
            runs.forward(members, out)
        return out

    def before(self, members: Bits, symbol: int, kind: int) -> Bits:
        """The states before a cell that lead to one of those after it."""
        out = np.zeros_like(members)
        if symbol >= self.end and kind == GAP_CELL:
            out |= members
        elif symbol >= self.end and kind == TAIL_CELL and members[-1]:
            out |= self.ending
        source, target, runs = self._moves(symbol)
        out[source.compress(members.take(target))] = True
        if len(runs.source):
            runs.backward(members, out)
        return out

    def allowed_classes(self, forward: Bits, backward: Bits, kind: int) -> Bits:
        """The classes [C + 1], ends last, that lead from a state before a cell to one after it."""
        edges, out = self.tokens.edges, np.zeros(self.end + 1, bool)
        crossed = forward.take(edges.source)
        crossed &= backward.take(edges.target)
        labels = np.zeros(len(edges.label), bool)  # far fewer are used
        labels[edges.label.compress(crossed)] = True
        label, symbol = edges.pairs
        out[symbol.compress(labels.take(label))] = True
        runs, classes, numbers = self.tokens.runs.edges
        if len(classes):
            for run in runs.crossed(forward, backward, numbers):
                out[classes[run]] = True
        if kind == GAP_CELL:
            out[-1] = (forward & backward).any()
        elif kind == TAIL_CELL:
            out[-1] = backward[-1] and (forward & self.ending).any()
        return out

    def _moves(self, symbol: int) -> tuple[Indices, Indices, Runs]:
        """The moves across a cell that writes text: sources and targets, and those of many places at once."""
        tokens = self.tokens
        if symbol == self.mask:
            return tokens.edges.source, tokens.edges.target, tokens.runs.edges[0]
        span = slice(tokens.first[symbol], tokens.first[symbol + 1]) if symbol < self.end else slice(0)
        return tokens.source[span], tokens.target[span], tokens.runs.by(symbol)
