"""Collects the turns of one batch into results. It only observes the loop, at a few small operations a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.canvas import Request
from dllm.common.rowwise import join
from dllm.contract import ForwardCost, Turn
from dllm.models.ids import Ids
from dllm.record.cost import CostModel
from dllm.record.results import Result
from dllm.record.stopwatch import Stopwatch, machine_load
from dllm.record.trace import Trace, TurnRecord, record_turn

Text = Callable[[Sequence[int]], str]
Words = Callable[[Sequence[int]], list[str]]


def numbered(tokens: Sequence[int]) -> list[str]:
    """Words of tokens if there is no tokenizer."""
    return [f"<{token}>" for token in tokens]


@dataclass(frozen=True)
class Row:
    """A finished row: ids from column 0 of the batch, where its answer starts and where deciding ended."""

    tokens: list[int]
    start: int
    end: int
    nfe: int
    seconds: float
    cpu_seconds: float = 0.0


class Collector:
    """Collects one batch of R requests. fixed [R, L]: the turn that fixed each column (0: none). spent [R, 5], so far:
    query rows (averaged over layers), FLOPs, bytes (without the weights), rows computed, and forwards in which the row
    waited. watch: started here, and paused while a trace is recorded; other observers pause it by ``pause``."""

    def __init__(
        self, requests: Sequence[Request], ids: Ids, text: Text, stop: Sequence[str], trace: bool,
        words: Words = numbered, cost: CostModel | None = None, watch: Stopwatch | None = None,
    ) -> None:  # fmt: skip
        self.requests, self.ids, self.text, self.stop, self.trace = requests, ids, text, stop, trace
        self.words, self.cost = words, cost
        self.rows: dict[int, Row] = {}
        self.records: dict[int, list[TurnRecord]] = {number: [] for number in range(len(requests))}
        self.spent = torch.zeros(len(requests), 5, dtype=torch.float64)
        self.works: list[tuple[Tensor, ForwardCost]] = []  # not yet added to ``spent``
        self.fixed: Tensor | None = None
        self.watch = watch or Stopwatch()
        self.watch.start()

    def observe(self, turn: Turn) -> list[int]:
        """Record a turn. Returns the numbers of the requests that it finished."""
        names, canvas = turn.canvas.request, turn.canvas
        if self.fixed is None:
            self.fixed = torch.zeros_like(canvas.tokens)
            self.spent = self.spent.to(names.device)
        self.works.append((turn.tried_owner.each(names), turn.cost))
        if turn.view.blocks.shapes.waits:
            self.spent[:, 4].index_add_(0, names, (~turn.active).double())
        # A position is fixed by the last turn that still saw it masked.
        seen = self.fixed if len(names) == len(self.requests) else self.fixed[names]
        seen = torch.where(canvas.masked, turn.view.blocks.turn[:, None], seen)
        if len(names) == len(self.requests):
            self.fixed = seen
        else:
            self.fixed[names] = seen
        if self.trace:
            with self.watch.pause():
                self._record(turn, names)
        return self._finish(turn) if turn.finished else []

    def untouched(self) -> list[int]:
        """Numbers of the requests that had no turn, because nothing in them was masked."""
        return [number for number in range(len(self.requests)) if number not in self.rows]

    def _record(self, turn: Turn, names: Tensor) -> None:
        seconds = self.watch.lap()
        acts = turn.active.tolist()
        for row, name in enumerate(names.tolist()):
            if acts[row]:
                self.records[name].append(record_turn(turn, row, seconds, self.cost))

    def _add_up(self) -> None:
        """Add what is in ``works`` to ``spent``."""
        if not self.works:
            return
        owner = torch.cat([names for names, _ in self.works])
        work = join(*(work for _, work in self.works))
        none = torch.zeros_like(owner, dtype=torch.float64)
        flops, moved = (none, none) if self.cost is None else (self.cost.flops(work), self.cost.bytes(work))
        queries, computed = work.queries.double().mean(1), work.computed.double().mean(1)
        self.spent.index_add_(0, owner, torch.stack([queries, flops, moved, computed, none], 1))
        self.works = []

    def _finish(self, turn: Turn) -> list[int]:
        owner, canvas, spent = turn.step.owner, turn.candidates, (self.watch.seconds(), self.watch.cpu_seconds())
        finished = []
        for row in turn.finished:
            at = int(owner.first[row])
            nfe = int(turn.view.blocks.turn[row])
            finished.append(int(canvas.request[at]))
            if self.fixed is not None:  # no turn fixed what an end-of-text policy left masked
                self.fixed[finished[-1]].masked_fill_(canvas.masked[at], 0)
            self.rows[finished[-1]] = Row(
                canvas.tokens[at].tolist(), int(canvas.start[at]), int(canvas.end[at]), nfe, *spent
            )
        return finished

    def results(self) -> list[Result]:
        return [self.result(number) for number in range(len(self.requests))]

    def result(self, number: int) -> Result:
        request = self.requests[number]
        start, length = request.answer_start, len(request.tokens)
        self._add_up()
        row = self.rows.get(number) or Row(list(request.tokens), start, length, 0, 0.0)
        answer = slice(row.start, row.start + length - start)
        canvas = row.tokens[answer]
        decided = canvas[: row.end - row.start]
        infill = request.start is None and not all(request.masked[start:])
        if infill:
            tokens, reason = self._filled(decided), "length"
            text = self.text([*request.tokens[:start], *tokens])
        else:
            tokens, text, reason = self._answer(decided)
        # An answer may hold given tokens, such as a sampler's anchor. Only those before its end count.
        given = list(request.masked[start:] if infill else request.masked[start : start + len(tokens)]).count(False)
        turns = [0] * len(canvas) if self.fixed is None else self.fixed[number][answer].tolist()
        return Result(
            prompt_tokens=list(request.tokens[:start]), tokens=tokens, text=text, canvas=canvas,
            nfe=row.nfe, query_tokens=round(self.spent[number, 0].item()), seconds=row.seconds,
            cpu_seconds=row.cpu_seconds, load=machine_load(),
            device=self.spent.device.type,
            stop_reason=reason, seed=request.seed, turns=turns, given_tokens=given,
            flops=self.spent[number, 1].item(), bytes=self.spent[number, 2].item() + row.nfe * self._weights(),
            computed_tokens=round(self.spent[number, 3].item()), idle_forwards=round(self.spent[number, 4].item()),
            words=self.words(canvas), trace=self._trace(number) if self.trace else None,
        )  # fmt: skip

    def _weights(self) -> float:
        return 0.0 if self.cost is None else self.cost.weights()

    def _trace(self, number: int) -> Trace:
        request = self.requests[number]
        masks = [
            self.ids.mask if masked else token for token, masked in zip(request.tokens, request.masked, strict=True)
        ]
        given = [int(not masked) for masked in request.masked]
        records = self.records[number]
        committed = [token for record in records for commits in record.candidates for token in commits.tokens]
        tokens = sorted({*masks, *committed, self.ids.eos})
        words = dict(zip(tokens, self.words(tokens), strict=True))
        return Trace(masks, given, self.ids.mask, self.ids.eos, request.answer_start, len(masks), records, words)

    def _filled(self, canvas: list[int]) -> list[int]:
        """The tokens of an infilled canvas: an end of text in one gap does not end what is given after it."""
        return [token for token in canvas if token != self.ids.eos and token not in self.ids.stops]

    def _answer(self, canvas: list[int]) -> tuple[list[int], str, str]:
        """Tokens and text before the first stop id or stop string, and why the answer ends there.

        A stop string may begin inside a token. ``tokens`` leave that token out; the text keeps its part before the
        string.
        """
        ends = {self.ids.eos, *self.ids.stops}
        stop = next((at for at, token in enumerate(canvas) if token in ends), None)
        answer, reason = (canvas, "length") if stop is None else (canvas[:stop], "eos")
        text = self.text(answer)
        cuts = [text.index(string) for string in self.stop if string in text]
        if not cuts:
            return answer, text, reason
        return within(answer, min(cuts), self.text), text[: min(cuts)], "stop_string"


def within(tokens: list[int], length: int, text: Text) -> list[int]:
    """As many of the tokens as fit in ``length`` characters of text."""
    return next(tokens[:count] for count in range(len(tokens), -1, -1) if len(text(tokens[:count])) <= length)
