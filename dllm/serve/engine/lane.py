"""A running batch of one setting: rows join between turns, and leave as they finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import nan

import torch
from torch import Tensor

from dllm.common.errors import UserError
from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.loop.prefill import Prefill, is_long
from dllm.loop.rows import Rows
from dllm.loop.runner import Runner, beginning_of, keep_pages
from dllm.parts.cache.pages import KnownPrefix, PageStore
from dllm.prompts import Prompts
from dllm.record.collector import Collector
from dllm.record.cost import CostModel
from dllm.record.likeliest import Likeliest, likeliest, own_and_drawn
from dllm.record.results import Result
from dllm.record.stopwatch import Stopwatch
from dllm.record.turns import mixtures_of
from dllm.serve.engine.jobs import DeviceShare, Event, Job, Progress

COLUMNS = 64  # canvases grow in such steps, so that joining rows seldom make the batch wider
# Of up to 128, 512, 2,048, ... columns: padded to more than four times its width, a row would cost more than a forward
# of its own, and its client would wait for forwards of the widest.
WIDTHS = 2


@dataclass(eq=False)
class Entry:
    """A job on its way."""

    number: int  # its name
    job: Job  # what is to be decoded
    deliver: Callable[[Event], None]  # takes its events
    submit_time: float = field(default_factory=time.monotonic)  # seconds by ``time.monotonic``
    start_time: float | None = None  # of its first turn, seconds by ``time.monotonic``; None: not yet
    turns: int = 0  # turns of the loop that it was in
    alone: bool = False  # its batch has failed, so it decodes in a lane of its own
    cached_tokens: int | None = None  # tokens of its prompt that were known when it joined; None: its cache shares none
    along: bool = False  # another row of its request has joined, so that the request is under way
    stuck: UserError | None = None  # why it would never end
    last_turn: int = 0  # forwards at its last event; a job that began again is silent until it is there again
    last_canvas: tuple[list[int], list[bool]] | None = None  # tokens and masks of its last event
    # by column and forward the tokens that were likeliest there, where it wrote
    likeliest: dict[tuple[int, int], Likeliest] = field(default_factory=dict)
    # by column, forward and token the log-probabilities of what it wrote
    logprobs: dict[tuple[int, int, int], tuple[float, float]] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Columns that its row takes in a lane."""
        return -(-self.job.columns // COLUMNS) * COLUMNS

    @property
    def request_name(self) -> str | int:
        """Its request: several choices of an answer are one."""
        return self.job.ident or self.number

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for jobs that may share a lane."""
        job = self.job
        return (job.setting.key, job.trace, job.logprobs, job.likeliest > 0, self.number if self.alone else None)

    @property
    def width(self) -> int:
        """Equal for jobs that share a lane, unless all lanes are taken: columns by powers of four."""
        return ((self.columns - 1) // COLUMNS).bit_length() // WIDTHS

    def note_logprobs(self, turn: Turn, row: int) -> None:
        """Note how likely it was what its row wrote, and what was likeliest there, if its client asked for it."""
        if not self.job.logprobs or not bool(turn.active[row]):
            return
        forward = int(turn.view.blocks.turn[row])
        for (column, token), pair in own_and_drawn(turn, row).items():
            self.logprobs[column, forward, token] = pair
        if self.job.likeliest:
            tokens_by_column = likeliest(turn, row, self.job.likeliest)
            self.likeliest.update({(column, forward): tokens for column, tokens in tokens_by_column.items()})

    def follow(self, turn: Turn, row: int) -> None:
        """Keep what was noted by the columns of its row, where these are after a turn that moved them."""
        if turn.reshape is None or not (self.logprobs or self.likeliest):
            return
        is_kept = turn.reshape.kept[row]
        columns = dict(zip(turn.reshape.source[row, is_kept].tolist(), is_kept.nonzero()[:, 0].tolist(), strict=True))
        self.logprobs = {(columns[at], *more): value for (at, *more), value in self.logprobs.items() if at in columns}
        self.likeliest = {(columns[at], turn): value for (at, turn), value in self.likeliest.items() if at in columns}

    def logprobs_of(self, result: Result) -> list[tuple[float, float]]:
        """Of each token of the answer, in the forward that decided it; nothing where no one asked."""
        begin = self.job.request.answer_start
        places = [(begin + at, *commit) for at, commit in enumerate(zip(result.turns, result.canvas, strict=True))]
        return [self.logprobs.get(place, (nan, nan)) for place in places] if self.job.logprobs else []

    def likeliest_of(self, result: Result) -> list[Likeliest]:
        """Of each position of the answer, in the forward that decided it; nothing where no one asked."""
        begin = self.job.request.answer_start
        places = enumerate(result.turns, begin)
        return [self.likeliest.get(place, []) for place in places] if self.job.likeliest else []


class SettingBatch:
    """Rows of one setting. columns: of the widest row that it has had since it was empty. share: what each request of
    its rows has had of the device. number: by which followers know it. pages: what requests share (None: nothing).
    chunk: columns of longer prompts that are computed between two turns (None: prompts are computed whole)."""

    def __init__(
        self,
        runner: Runner,
        prompts: Prompts,
        trace: bool,
        logprobs: bool = False,
        offers: bool = False,
        number: int = 0,
        pages: PageStore | None = None,
        chunk: int | None = None,
    ) -> None:
        self.base_runner, self.logprobs, self.offers, self.number = runner, logprobs, offers, number
        self.pages, self.chunk = pages if runner.shares_prompts else None, chunk if runner.in_chunks else None
        self.prefills: dict[int, Prefill] = {}  # prompts of waiting jobs that are computed in chunks
        self.searches: dict[int, Iterator[list[Request]]] = {}  # for the sizes of waiting jobs' gaps
        runner = runner.scoring() if logprobs else runner
        runner = runner.offering() if offers else runner
        self.runner, self.trace = runner.traced() if trace else runner, trace
        network = runner.model.transformer
        cost = CostModel(runner.model.config, network.dtype.itemsize)
        self.collector = Collector(
            (), runner.model.ids, prompts.text, (), trace, prompts.words, cost, Stopwatch.on(network.device)
        )
        self.entries: dict[int, Entry] = {}  # in the order of the rows
        self.waiting: list[Entry] = []
        self.running: Iterator[Turn] | None = None
        self.aborted_numbers: set[int] = set()
        self.columns, self.share = 0, DeviceShare()

    def __len__(self) -> int:
        return len(self.entries) - len(self.aborted_numbers) + len(self.waiting)

    def everyone(self) -> list[Entry]:
        """Its jobs, those included that join before the coming turn."""
        return [entry for entry in self.entries.values() if entry.number not in self.aborted_numbers] + self.waiting

    def add(self, entry: Entry) -> None:
        """Let a job join before the coming turn."""
        self.columns = max(self.columns if len(self) else 0, entry.columns)
        self.waiting.append(entry)

    def drop(self, number: int) -> None:
        """Let a row leave before the coming turn."""
        if number in self.entries:
            self.aborted_numbers.add(number)
        self.waiting = [entry for entry in self.waiting if entry.number != number]
        self.prefills.pop(number, None)
        self.searches.pop(number, None)

    def turn(self) -> Turn | None:
        """Take a turn, after a chunk of a prompt that waits and a size of a gap. None: there are no rows."""
        self._prefill()
        self._size()
        while self.running is not None or self._in_turn()[0]:
            if self.running is None:
                self._forget(list(self.entries))
                self.running = self.runner.turns(self._fresh(), self._between, self._stuck, self._keep_pages)
            turn = next(self.running, None)
            if turn is not None:
                return turn
            self.running = None
        self._forget(list(self.entries))
        return None

    def finish(self, turn: Turn) -> list[Entry]:
        """Note what a turn did. Returns the jobs that it finished; the collector has their results until the next."""
        order = list(self.entries.values())
        for row, entry in enumerate(order):
            entry.note_logprobs(turn, row)
            entry.follow(turn, row)
            entry.turns += 1
        self.collector.observe(turn)
        finished_entries = [order[row] for row in turn.finished]
        for entry in finished_entries:
            del self.entries[entry.number]
        return [entry for entry in finished_entries if entry.number not in self.aborted_numbers]

    def _fresh(self) -> Rows:
        """The rows of the jobs that wait to join. Each starts with its own parts, whose parameters it keeps."""
        joining, self.waiting = self._in_turn()
        alike: dict[str, list[Entry]] = {}
        for entry in joining:
            alike.setdefault(entry.job.setting.recipe, []).append(entry)
        rows: Rows | None = None
        for entries in alike.values():
            setting, requests = entries[0].job.setting, [entry.job.request for entry in entries]
            names = [entry.number for entry in entries]
            fresh = self.runner.start(requests, names, COLUMNS, setting.parts, self._prefixes(entries))
            rows = fresh if rows is None else rows.join(fresh)
            for entry in entries:
                entry.start_time = entry.start_time or time.monotonic()
                self.entries[entry.number] = entry
                self.collector.join(entry.number, entry.job.request)
        assert rows is not None, "nothing waits"
        return rows

    def _in_turn(self) -> tuple[list[Entry], list[Entry]]:
        """The jobs that join now, and those that wait: for the size of a gap, for chunks of their own prompts, or a
        turn for a job before them that computes what they begin with."""
        ahead, now, later = set[bytes](), list[Entry](), list[Entry]()
        for entry in self.waiting:
            beginning, pages = beginning_of(entry.job.request, entry.job.tenant), self.pages
            missing = (
                pages.missing(beginning) if pages is not None and beginning.decided_columns <= pages.most else None
            )
            has_gap = entry.job.request.gap is not None
            (later if has_gap or missing in ahead or self._has_chunks(entry) else now).append(entry)
            ahead |= {missing} if missing is not None else set()
        return now, later

    def _prefill(self) -> None:
        """Compute a chunk of the first long prompt that waits for one."""
        for entry in filter(self._has_chunks, self.waiting):
            request = entry.job.request
            if entry.number not in self.prefills:
                prefix, network = self._stored_prefix(entry), self.runner.model.transformer
                self.prefills[entry.number] = Prefill(network, request, prefix, self.chunk or 0)
            prefill = self.prefills[entry.number]
            if not prefill.columns_to_compute:
                continue
            prefill.step()
            if not prefill.columns_to_compute and self.pages is not None:
                self.pages.add(beginning_of(request, entry.job.tenant), 0, prefill.stores, prefill.end)
            return

    def _size(self) -> None:
        """Try one size of the first gap that waits for its own."""
        entry = next((entry for entry in self.waiting if entry.job.request.gap is not None), None)
        if entry is None:
            return
        if entry.number not in self.searches:
            self.searches[entry.number] = self.runner.sizing([entry.job.request], 1)
        (request,) = next(self.searches[entry.number])
        if request.gap is None:
            del self.searches[entry.number]
            entry.job = replace(entry.job, request=request)

    def _has_chunks(self, entry: Entry) -> bool:
        """Whether a job that waits has a long prompt that is not computed yet."""
        request = entry.job.request
        if self.chunk is None or not is_long(request, self.chunk):
            return False
        return entry.number not in self.prefills or self.prefills[entry.number].columns_to_compute > 0

    def _prefixes(self, entries: Sequence[Entry]) -> list[KnownPrefix | None]:
        """What is computed of each job's first columns."""
        prefills = [self.prefills.pop(entry.number, None) for entry in entries]
        return [
            self._stored_prefix(entry) if prefill is None else prefill.prefix()
            for entry, prefill in zip(entries, prefills, strict=True)
        ]

    def _stored_prefix(self, entry: Entry) -> KnownPrefix | None:
        """What earlier requests have computed of a job's first columns."""
        if self.pages is None:
            return None
        prefix = self.pages.find(beginning_of(entry.job.request, entry.job.tenant))
        entry.cached_tokens = 0 if prefix is None else min(prefix.columns, entry.job.request.answer_start)
        return prefix

    def _keep_pages(self, rows: Rows, turn: Turn) -> None:
        """Keep what is final of a row after its first turn, which has computed its prompt, and after its last."""
        if self.pages is None:
            return
        tenants = {
            row: entry.job.tenant
            for row, entry in enumerate(self.entries.values())
            if entry.turns == 0 or row in turn.finished
        }
        if tenants:
            keep_pages(self.pages, rows, tenants, tenants.values())

    def _between(self, rows: Rows) -> Rows:
        """Let rows leave and join."""
        if self.aborted_numbers:
            rows = rows.without([row for row, number in enumerate(self.entries) if number in self.aborted_numbers])
            self._forget(list(self.aborted_numbers))
        return rows.join(self._fresh()) if len(rows) and self._in_turn()[0] else rows

    def _stuck(self, row: int, error: UserError) -> None:
        """Note that a row would never end; the others go on."""
        list(self.entries.values())[row].stuck = error

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.entries.pop(number, None)
            self.collector.forget(number)
            self.aborted_numbers.discard(number)


Guesses = dict[int, tuple[int, float]]  # token and probability by position


def progress_of(turn: Turn, parts: Parts, entries: Sequence[Entry], rows: Sequence[int]) -> list[Progress]:
    """What the ``rows`` look like after a turn, whose rows were those of ``entries``. Copies them from the device."""
    rule, jobs, at = parts.sampler.traits, [entries[row].job for row in rows], torch.tensor(rows).to(turn.chosen.device)
    canvas = turn.candidates.select(turn.step.owner.first[at])
    final = final_end(turn, rule.revocable or rule.edits or parts.blocks.traits.rolls_back)
    if parts.length.traits.takes_back:  # decided columns may be cut off as long as a row is not done
        final = torch.zeros_like(final)
    of_rows = torch.stack([turn.view.blocks.turn, turn.blocks.index, final], 1)[at]
    counts = torch.cat([of_rows, canvas.initial_end[:, None]], 1).tolist()
    out = list(map(_progress, jobs, counts, canvas.tokens.tolist(), canvas.masked.tolist()))
    if not any(job.snapshots for job in jobs):
        return out
    turns = turn.ledger.commit_turn[at].masked_fill(canvas.masked, 0).tolist()
    snapshots = map(_with_snapshot, jobs, out, turns, guesses_of(turn, canvas, at))
    if "where" not in turn.carried:
        return list(snapshots)
    mixtures = (mixtures_of(turn, row, job.request.answer_start) for row, job in zip(rows, jobs, strict=True))
    return [
        replace(progress, mixtures=mixture.likeliest()) if mixture and job.snapshots else progress
        for progress, mixture, job in zip(snapshots, mixtures, jobs, strict=True)
    ]


def _progress(job: Job, counts: list[int], tokens: list[int], masked: list[bool]) -> Progress:
    """Of one row, from all its columns. counts: forwards, block, and the columns where what is final ends, and all."""
    begin = job.request.answer_start
    forwards, block, final, end = counts
    return Progress(forwards, block, tokens[begin:end], masked[begin:end], max(0, min(final, end) - begin))


def _with_snapshot(job: Job, progress: Progress, turns: list[int], guesses: Guesses) -> Progress:
    """With what a snapshot shows beside the tokens, if its client wants snapshots."""
    if not job.snapshots:
        return progress
    begin, end = job.request.answer_start, job.request.answer_start + len(progress.tokens)
    visible = {column - begin: guess for column, guess in guesses.items() if begin <= column < end}
    return replace(progress, turns=turns[begin:end], guesses=visible)


def guesses_of(turn: Turn, canvas: Canvas, at: Tensor) -> list[Guesses]:
    """The model's proposals for what is masked on ``canvas``, the rows ``at`` of the turn, by their columns."""
    token, sure = turn.guesses
    is_scored, token, sure = map(turn.followed, (turn.view.scores.scored, token, sure))
    parts = (canvas.masked & is_scored[at], token[at], sure[at])
    return [
        {column: (token, sure) for column, (is_masked, token, sure) in enumerate(zip(*row, strict=True)) if is_masked}
        for row in zip(*(part.tolist() for part in parts), strict=True)
    ]


def final_end(turn: Turn, takes_back: bool) -> Tensor:
    """The column [B] before which nothing of a row will change any more. takes_back: the rule or the schedule may undo
    or replace what is in the current block."""
    canvas, owner, blocks = turn.candidates, turn.step.owner, turn.blocks
    end = torch.where(canvas.undecided, canvas.columns, canvas.end[:, None]).amin(1)
    if not owner.is_single:  # final is what all candidates of the row agree on
        length, first = len(canvas.columns), canvas.select(owner.first[owner.row])
        same = (first.tokens == canvas.tokens) & (first.masked == canvas.masked)
        end = torch.minimum(end, torch.where(same, length, canvas.columns).amin(1))
        end = torch.full_like(blocks.begin, length).scatter_reduce(0, owner.row, end, "amin")
    return torch.where(blocks.done, end, torch.minimum(end, blocks.begin)) if takes_back else end
