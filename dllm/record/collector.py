"""Collects the turns of a batch into results. It only observes the loop, at a few small operations a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.contract import ForwardCost, Turn
from dllm.contract.canvas import Request
from dllm.contract.constrained import ConstraintReport
from dllm.models.text.ids import Ids
from dllm.record.cost import CostModel
from dllm.record.results import Result
from dllm.record.stopwatch import Stopwatch, machine_load
from dllm.record.trace import Trace
from dllm.record.turns import LastGuesses, TurnRecord, record_turn

Text = Callable[[Sequence[int]], str]
Words = Callable[[Sequence[int]], list[str]]


def id_words(tokens: Sequence[int]) -> list[str]:
    """Words of tokens if there is no tokenizer."""
    return [f"<{token}>" for token in tokens]


@dataclass(frozen=True)
class Row:
    """A finished row: what it decided, and what it spent."""

    tokens: list[int]  # ids from column 0 of the batch on
    start: int  # where its answer starts
    end: int  # where deciding ended
    until: int  # where the answer ended, decided or not
    turns: list[int]  # the turn that fixed each column (0: none)
    began: float = 0.0  # the second at which it joined
    nfe: int = 0  # forwards that ran it
    query_tokens: float = 0.0  # query tokens of these forwards
    computed_tokens: float = 0.0  # query tokens that were computed, averaged over layers
    flops: float = 0.0  # of these forwards, by ``CostModel``
    bytes: float = 0.0  # that they read and wrote, without the weights
    idle: float = 0.0  # forwards in which it waited
    seconds: float = 0.0  # of the batch's clock when it finished
    cpu_seconds: float = 0.0  # part of them in which the decoding thread had a core
    device: str = "cpu"  # that computed it
    constraint: ConstraintReport | None = None  # what its constraint did to it; None: it has none


class Collector:
    """Collects a batch of requests, named 0, 1, ... as on the canvas; others may join it. watch: it starts here, and
    pauses while a trace is recorded; other observers pause it by ``pause``."""

    def __init__(
        self,
        requests: Sequence[Request],
        ids: Ids,
        text: Text,
        stop: Sequence[str],
        trace: bool,
        words: Words = id_words,
        cost: CostModel | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self.ids, self.text, self.stop, self.trace, self.words, self.cost = ids, text, stop, trace, words, cost
        self.requests: dict[int, Request] = dict(enumerate(requests))
        self.rows: dict[int, Row] = {}
        self.records: dict[int, list[TurnRecord]] = {number: [] for number in self.requests}
        self.guesses: dict[int, LastGuesses] = {number: {} for number in self.requests}
        self.first: dict[int, list[int]] = {}  # the first canvas of each, where it shows noise
        self.began: dict[int, float] = {}  # seconds at which one joined that was not there from the start
        self.watch = watch or Stopwatch()
        self.watch.start()

    def join(self, number: int, request: Request) -> None:
        """A request joins the batch under the name ``number``."""
        self.requests[number], self.records[number], self.began[number] = request, [], self.watch.seconds()
        self.guesses[number] = {}

    def forget(self, number: int) -> None:
        """A request has left, and its result is not asked for any more."""
        for table in (self.requests, self.records, self.rows, self.began, self.guesses, self.first):
            table.pop(number, None)

    def observe(self, turn: Turn) -> list[int]:
        """Record a turn. Returns the numbers of the requests that it finished."""
        if self.trace:
            with self.watch.pause():
                self._record(turn, turn.canvas.row_id)
        return self._finish(turn) if turn.finished else []

    def without_turns(self) -> list[int]:
        """Numbers of the requests that had no turn, because nothing in them was masked."""
        return [number for number in self.requests if number not in self.rows]

    def _record(self, turn: Turn, names: Tensor) -> None:
        seconds = self.watch.lap()
        acts = turn.active.tolist()
        for row, name in enumerate(names.tolist()):
            if acts[row]:
                if self.ids.mask is None and not self.records[name]:
                    self.first[name] = turn.canvas.tokens[row].tolist()
                self.records[name].append(record_turn(turn, row, seconds, self.cost, self.guesses[name]))

    def _finish(self, turn: Turn) -> list[int]:
        seconds, cpu_seconds = self.watch.seconds(), self.watch.cpu_seconds()
        owner, canvas, ledger, names = turn.step.owner, turn.candidates, turn.ledger, []
        price = [torch.zeros_like(ledger.idle)] * 2
        if self.cost is not None:
            price = [self.cost.spent_flops(ledger), self.cost.spent_bytes(ledger)]
        spent = torch.stack([ledger.queries.mean(1), ledger.computed.mean(1), *price, ledger.idle], 1).tolist()
        # No turn fixed what an end-of-text policy left masked.
        fixed = ledger.commit_turn.masked_fill(owner.per_row(canvas.masked), 0)
        places = torch.stack([canvas.row_id, canvas.start, canvas.end, canvas.initial_end], 1)[owner.first].tolist()
        for row in turn.finished:
            at, (queries, computed_tokens, flops, moved, idle) = int(owner.first[row]), spent[row]
            name, start, end, until = places[row]
            names.append(name)
            self.rows[name] = Row(
                canvas.tokens[at].tolist(), start, end, until, fixed[row].tolist(), self.began.get(name, 0.0),
                int(turn.view.blocks.turn[row]), queries, computed_tokens, flops, moved, idle, seconds, cpu_seconds,
                fixed.device.type, turn.constraints.report(row),
            )  # fmt: skip
        return names

    def results(self) -> list[Result]:
        return [self.result(number) for number in self.requests]

    def result(self, number: int) -> Result:
        request = self.requests[number]
        start, length = request.answer_start, len(request.tokens)
        row = self.rows.get(number) or Row(list(request.tokens), start, length, length, [0] * length)
        columns = slice(row.start, row.until)
        canvas = row.tokens[columns]
        answer = canvas[: row.end - row.start]
        if request.infill_prefix is not None:
            # An end of text in one gap does not end what is given after it.
            tokens, reason = [token for token in answer if token not in (self.ids.eos, *self.ids.stops)], "length"
            text = self.text([*request.infill_prefix, *tokens])
        else:
            tokens, text, reason = self._answer(answer)
        # An answer may hold given tokens, such as a sampler's anchor. Only those before its end count.
        probe_columns = [length - sum(request.masked) + size for size, _ in request.probes]
        answer_end = length if request.infill_prefix is not None else start + len(tokens)
        given_count = list(request.masked[start:answer_end]).count(False)
        return Result(
            prompt_tokens=list(request.tokens[:start]),
            tokens=tokens,
            text=text,
            canvas=canvas,
            nfe=row.nfe + len(probe_columns),
            query_tokens=round(row.query_tokens) + sum(probe_columns),
            seconds=row.seconds,
            cpu_seconds=row.cpu_seconds,
            load=machine_load(),
            device=row.device,
            stop_reason=reason,
            seed=request.seed,
            turns=row.turns[columns],
            given_tokens=given_count,
            flops=row.flops + self._probe_flops(probe_columns),
            bytes=row.bytes + (row.nfe + len(probe_columns)) * self._weights(),
            computed_tokens=round(row.computed_tokens) + sum(probe_columns),
            idle_forwards=round(row.idle),
            began=row.began,
            words=self.words(canvas),
            constraint=row.constraint,
            trace=self._trace(number) if self.trace else None,
        )

    def _weights(self) -> float:
        return 0.0 if self.cost is None else self.cost.weights()

    def _probe_flops(self, columns: Sequence[int]) -> float:
        """Operations of the forwards that found the size of a gap. columns: of each forward, all scored."""
        if self.cost is None or not columns:
            return 0.0
        rows = torch.tensor(columns)[:, None]
        return float(self.cost.flops(ForwardCost(rows, rows, torch.zeros_like(rows), rows, rows[:, 0])).sum())

    def _trace(self, number: int) -> Trace:
        request = self.requests[number]
        masks = [
            self.ids.placeholder if masked else token
            for token, masked in zip(request.tokens, request.masked, strict=True)
        ]
        masks = self.first.get(number, masks)[: len(masks)]
        turns = self.records[number]
        ids = {*masks, self.ids.eos}
        for record in turns:
            ids.update(record.guesses.tokens, *(record.mixtures.tokens if record.mixtures else ()))
            ids.update(*(commits.tokens for commits in (*record.candidates, *record.edited)))
            ids.update(*(noise.tokens for noise in record.shown))
        tokens = sorted(ids)
        words = dict(zip(tokens, self.words(tokens), strict=True))
        given, probes = [int(not masked) for masked in request.masked], list(map(list, request.probes))
        return Trace(masks, given, self.ids.mask, self.ids.eos, request.answer_start, len(masks), turns, words, probes)

    def _answer(self, canvas: list[int]) -> tuple[list[int], str, str]:
        """Tokens and text before the first stop id or stop string, and why the answer ends there.

        A stop string may begin inside a token. ``tokens`` leave that token out; the text keeps its part before the
        string.
        """
        ends = {self.ids.eos, *self.ids.stops}
        stop = next((at for at, token in enumerate(canvas) if token in ends), None)
        answer, reason = (canvas, "length") if stop is None else (canvas[:stop], "eos")
        text = self.text(answer)
        cut = first_stop(text, self.stop)
        if cut is None:
            return answer, text, reason
        return within(answer, cut, self.text), text[:cut], "stop_string"


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the first of the stop strings begins; None: the text holds none."""
    return min((text.index(string) for string in stop if string in text), default=None)


def within(tokens: list[int], length: int, text: Text) -> list[int]:
    """As many of the tokens as fit in ``length`` characters of text."""
    return next(tokens[:count] for count in range(len(tokens), -1, -1) if len(text(tokens[:count])) <= length)
