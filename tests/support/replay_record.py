"""What a decode did, in the terms of the golden files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dllm.parts import FeaturePass, ForwardPass, PatternPass, SparsePass, Turn


@dataclass
class Record:
    """What a decode did, in the terms of the golden files.

    Booking follows each source: most count what a turn's step changed, ``fills`` included or not (LocalLeap counts
    what the end-of-text policy fills); FreeDave books a draft on the forward that verifies it; LoPA books what the
    kept state has decided on the forward that drafted it.
    """

    gen_length: int
    asked: int | None = None  # of these, where the canvas was filled up (None: all)
    expected: list[list[int]] | None = None  # the recorded commits, where a decode that strays may end
    fills: bool = True
    counts_changes: bool = False
    verified: bool = False
    drafted: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    forward_tokens: list[int] = field(default_factory=list)
    layer_tokens: list[list[int]] = field(default_factory=list)
    layer_values: list[list[int]] = field(default_factory=list)
    first_refreshed_layer: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)
    remasked: list[list[int]] = field(default_factory=list)
    filled: list[list[int]] = field(default_factory=list)
    committed_tokens: list[list[int]] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    open_ends: list[int] = field(default_factory=list)
    stopped: int | None = None  # the turn that committed all that was left
    exit_step: int | None = None
    static_nfe: int | None = None
    lossless: bool | None = None
    branches: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    edited: list[list[list[int]]] = field(default_factory=list)
    masked: torch.Tensor | None = None
    untested_forwards: int = 0
    start: int = 0
    entropies: list[float] = field(default_factory=list)
    passes: list[ForwardPass] = field(default_factory=list)
    sure_first: list[list[int]] = field(default_factory=list)
    forwards: int = 0  # of the network
    hidden: list[list[int]] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)  # slow forwards (1) and fast ones (2)
    span: list[int] = field(default_factory=list)
    settled: list[bool] = field(default_factory=list)

    def observe(self, turn: Turn, start: int) -> None:
        self.start = start
        layers = turn.cost.queries.sum(0).tolist()
        refreshed = [bool(rows) for rows in turn.cost.refreshed.sum(0).tolist()] + [True]
        self.forward_tokens.append(layers[0])
        self.layer_tokens.append(layers)
        self.layer_values.append([] if isinstance(turn.cost.values, int) else turn.cost.values.sum(0).tolist())
        self.first_refreshed_layer.append(refreshed.index(True) if self.layer_tokens[1:] else -1)
        self.branches.append(len(turn.tried.row_id))
        self.kept.append((int(turn.chosen[0]) - 1) % self.branches[-1])  # LoPA's own order: its anchor is the last
        if "entropy" in turn.view.scores.statistics and turn.step.owner.is_single:
            said = turn.view.scores.statistic("entropy")[turn.step.commit].tolist()
            self.entropies.append(max(said, default=0.0))
        canvas, edit = turn.candidates, turn.step.edit
        places = [] if edit is None else edit[0].nonzero()[:, 0].tolist()
        self.edited.append([[at - start, int(canvas.tokens[0, at])] for at in places])
        if self.verified:
            self._book_verified(turn, start)
        elif self.drafted:
            self._book_drafted(turn, start)
        else:
            changed = turn.step.commit[0] & ~(self.counts_changes & (turn.step.tokens[0] == turn.canvas.tokens[0]))
            changed = changed | (turn.canvas.masked[0] & ~canvas.masked[0] & self.fills)
            self.committed.append(relative(changed, start))
        written = turn.step.commit[0] & (turn.step.tokens[0] != turn.canvas.tokens[0])
        self.committed_tokens.append(turn.step.tokens[0, written].tolist())
        stepped = turn.canvas.commit(turn.step.commit[:1], turn.step.tokens[:1]).tokens[0]
        self.filled.append(relative((stepped != canvas.tokens[0]) & canvas.valid[0], start))
        self.keys.append(int(turn.cost.keys[0, 0]))
        self.remasked.append(relative(~turn.canvas.masked[0] & canvas.masked[0], start))
        if self.stopped is None and bool(turn.step.stop[0]):
            self.stopped = int(turn.view.blocks.turn[0])
        blocks = turn.view.blocks
        self.untested_forwards += not bool((turn.canvas.undecided & blocks.in_block).any())
        self.blocks.append((int(blocks.index[0]), int(blocks.begin[0]), int(blocks.end[0])))
        self.open_ends.append(int(blocks.open_end[0]))
        self.tokens = canvas.tokens[0][canvas.valid[0]].tolist()[: start + self.gen_length]
        sure = torch.where(turn.step.commit[0], turn.step.confidence[0], -1).sort(descending=True, stable=True)
        self.forwards += turn.cost.copies
        if "doubted" in turn.view.scores.statistics:
            self.hidden.append(relative(turn.view.scores.statistic("doubted")[0], start))
        if "phase" in turn.step.state:
            self._note_span({name: value[0].tolist() for name, value in turn.step.state.items()})
        self.sure_first.append(sure.indices[: int(turn.step.commit[0].sum())].tolist())

    def _note_span(self, state: Mapping[str, Any]) -> None:
        """A slow forward of slowfast shows its last horizon, a fast one the end of the span."""
        fast = state["phase"] == 2
        self.phase.append(state["phase"])
        self.span.append(state["span"] if fast else state["horizons"][-1])
        self.settled.append(fast or bool(state["fixed"]))

    def _book_verified(self, turn: Turn, start: int) -> None:
        """A draft counts on the forward that confirmed it; what the cache forces and a block's last mask need none."""
        before = turn.tried.masked.any(0) if self.masked is None else self.masked
        now = turn.canvas.masked[0]
        now = now & ~(turn.step.commit[0] if turn.step.owner.is_single else turn.view.forced_positions[0])
        self.committed.append(relative(before & ~now, start))
        self.masked = now

    def _book_drafted(self, turn: Turn, start: int) -> None:
        """What this forward kept counts on the last one; what it leaves decided in all candidates counts on itself,
        until the next one is known."""
        now = turn.canvas.masked[0]
        if self.masked is not None:
            self.committed[-1] = relative(self.masked & ~now, start)
        self.committed.append(relative(now & ~turn.candidates.masked.any(0), start))
        self.masked = now

    @property
    def strayed(self) -> bool:
        """Whether the commits before the last turn's are no longer the expected ones."""
        seen = len(self.committed) - 1
        return self.expected is not None and seen > 0 and self.committed[:seen] != self.expected[:seen]

    @property
    def nfe(self) -> int:
        return len(self.forward_tokens)

    @property
    def full(self) -> list[bool]:
        """Whether each forward computed everything."""
        return [queries is None for queries in self.queries]

    @property
    def schedule(self) -> list[list[int]]:
        """Commits of each forward, by groups that begin with a full one."""
        groups = list[list[int]]()
        for places, full in zip(self.committed, self.full, strict=True):
            groups += [[]] if full else []
            groups[-1].append(len(places))
        return groups

    @property
    def counted(self) -> int:
        """d3LLM counts the turn that finds the answer finished by the early stop."""
        return self.nfe + bool(self.filled[-1])

    @property
    def answer(self) -> list[int]:
        """The answer's tokens up to and with its first end of text, which is 61 in the tiny models; no more than were
        asked for."""
        tokens = self.tokens[self.start :][: self.asked]
        return tokens[: tokens.index(61) + 1] if 61 in tokens else tokens

    @property
    def first_column(self) -> list[int]:
        return [first for first, _ in self.ranges]

    @property
    def duplicates(self) -> int:
        """The most columns that a forward attended to twice."""
        return max(self.keys) - self.start - self.gen_length

    @property
    def block_lengths(self) -> list[int]:
        return [end - begin for _, begin, end in dict.fromkeys(self.blocks)]

    @property
    def nfe_per_block(self) -> list[int]:
        return [self.blocks.count(block) for block in dict.fromkeys(self.blocks)]

    @property
    def last_layer(self) -> list[int]:
        """Rows that the last layer of each forward computed."""
        return [layers[-1] for layers in self.layer_tokens]

    @property
    def selected(self) -> list[list[list[int] | None]]:
        """Positions that each layer of each forward chose by their values; None: it chose none."""
        assert all(call.columns is None for one in self.passes for call in one.calls)
        return [
            [None if rows is None else relative(rows[0], self.start) for rows in one.selections]
            for one in self.passes
            if isinstance(one, FeaturePass)
        ]

    @property
    def query_positions(self) -> list[list[int]]:
        """Of each forward the first column of its queries and the one after the last, how many candidates compute
        these, the keys of the forward, and how many of them each query sees."""
        return [positions_of(one) for one in self.passes]

    @property
    def value_tokens(self) -> list[list[int]]:
        """Rows of which each layer of each forward computed the value."""
        chose = [[len(layer or ()) for layer in layers] for layers in self.selected]
        return [
            [rows + more - twice for rows, more, twice in zip(*one, strict=True)]
            for one in zip(self.layer_tokens, self.layer_values, chose, strict=True)
        ]

    @property
    def kept_columns(self) -> list[list[list[int]]]:
        """Columns outside each block that every layer keeps, chosen in the second forward of the block."""
        return [
            [sorted(layer[0][layer[0] < one.valid.shape[1]].tolist()) for layer in one.found["chosen"]]
            for one in self.passes
            if isinstance(one, SparsePass) and one.found["chosen"]
        ]

    @property
    def pattern(self) -> list[list[list[list[int]]]]:
        """Blocks of keys of each layer, head and block of queries; empty where no forward used them."""
        measured = [one for one in self.passes if isinstance(one, PatternPass) and one.found["patterns"]]
        if not measured or self.passes[-1] is measured[0]:
            return []
        return [
            [[blocks.nonzero()[:, 0].tolist() for blocks in head] for head in layer[0]]
            for layer in measured[0].found["patterns"]
        ]

    @property
    def first_answer_block(self) -> int | None:
        last = self.passes[-1]
        assert isinstance(last, PatternPass)
        return int(last.answer[0]) if self.pattern else None

    @property
    def kept_masks(self) -> list[list[int]]:
        """Positions behind each block that its forwards saw."""
        first = [self.blocks.index(block) for block in dict.fromkeys(self.blocks)]
        columns = [relative(self.passes[at].keys[0], 0) for at in first]
        ends = [self.blocks[at][2] for at in first]
        return [
            [column - self.start for column in seen if column >= end] for seen, end in zip(columns, ends, strict=True)
        ]

    @property
    def opened(self) -> list[int]:
        """How many blocks were opened before each forward."""
        length = self.blocks[0][2] - self.blocks[0][1]
        return [-(-(end - self.start) // length) for end in self.open_ends]

    @property
    def not_kept(self) -> list[int]:
        """Columns of blocks that each forward computed. D2F's cache of Dream holds what the last column of a kept block
        predicts; ours computes that row again."""
        begins = [begin for _, begin, _ in self.blocks]
        return [end - first - (first + 1 == begin) for (first, end), begin in zip(self.ranges, begins, strict=True)]

    @property
    def eos_stop(self) -> bool:
        return len(self.tokens) < self.start + self.gen_length

    @property
    def queries(self) -> list[list[int] | None]:
        """Columns that each forward computed; None: all. Where it verified, the rows beside, in their order."""
        return [
            self._beside(at) if verifies else None if one.queries.equal(one.valid) else relative(one.queries[0], 0)
            for at, (one, verifies) in enumerate(zip(self.passes, self.verify, strict=True))
        ]

    def _beside(self, at: int) -> list[int]:
        """The commits of the forward before are the last decided rows, in the order of their confidence."""
        one, new = self.passes[at], self.sure_first[at - 1]
        columns = [column for column in one.shadows[0].tolist() if column < one.queries.shape[1]]
        last = max((place for place, column in enumerate(columns) if column in new), default=-1)
        return [column for column in columns[: last + 1] if column not in new] + new + columns[last + 1 :]

    @property
    def verify(self) -> list[bool]:
        """Whether each forward computed rows beside the columns alone."""
        return [not bool(one.queries.any()) for one in self.passes]

    @property
    def steps(self) -> int:
        return self.verify.count(False)

    @property
    def ranges(self) -> list[list[int]]:
        """The first of them, and the one behind the last."""
        found = [relative(one.queries[0], 0) for one in self.passes]
        assert all(one == list(range(one[0], one[-1] + 1)) for one in found)
        return [[one[0], one[-1] + 1] for one in found]


def relative(where: torch.Tensor, start: int) -> list[int]:
    return (where.nonzero()[:, 0] - start).tolist()


def positions_of(forward: ForwardPass) -> list[int]:
    """As ``Record.query_positions``, of one forward of one row."""
    (call,), columns = forward.calls, forward.queries[0].nonzero()[:, 0].tolist()
    if call.side_by_side is None:
        keys = int(forward.keys[0].sum())
        return [columns[0], columns[-1] + 1, len(forward.owner.row), keys, keys]
    assert call.columns is not None
    queries, width = call.side_by_side.pack(call.columns)[0].tolist(), call.side_by_side.width
    assert queries == columns * width, "candidates lie one after the other in one row"
    mask = call.visible.of_queries(0, len(queries)).mask
    assert mask is not None
    (visible,) = set(mask[0].sum(1).tolist())
    return [columns[0], columns[-1] + 1, width, int(mask[0].any(0).sum()), visible]
