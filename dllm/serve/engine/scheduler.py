"""Decodes the jobs of many clients on one model: one thread takes turns, and jobs join and leave between them.

A lane is a running batch of one setting. First come, first served: the job at the head of the queue joins as soon as
rows, cells, opening columns and lanes allow it, and no one overtakes it, so no one starves. The lane whose requests
will have had the least of the device after it takes the next turn (fair queueing by finish times), so that a short
answer waits for few turns of a long one, or of many; reads of decisions (``reads``) count as a lane. What a
row sees never depends on its neighbours, so its answer is the same alone and under load, but for products that round
otherwise in another batch (``task.exact`` and ``kernels=invariant`` rule them out), and a job that must begin again
comes to where it was.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from dllm.common.errors import Refusal, UserError
from dllm.loop.runner import Runner
from dllm.loop.runtime.out_of_memory import free_bytes
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.parts.cache.pages import page_store
from dllm.prompts import Prompts
from dllm.serve.engine.followers import Lead, RankDivergence
from dllm.serve.engine.jobs import Closing, Event, Full, Job, JobFailure, JobResult, Limits, RequestParts, Stats
from dllm.serve.engine.lane import Entry, SettingBatch, progress_of
from dllm.serve.engine.reads import ReadEntry, ReadJob, ReadQueue, ReadResult
from dllm.serve.http.log import tell

LOG = logging.getLogger("dllm.serve")
MOST_RUNNERS = 16  # runners of past settings that are kept for the next request
LaneKey = tuple[object, int]  # settings, and width


class Scheduler:
    """``start`` begins its thread. All other methods may be called from any thread. Events are delivered from the
    scheduler's thread, which waits for no one: ``deliver`` must not block."""

    def __init__(
        self,
        model: Model,
        runtime: Runtime | str = "auto",
        limits: Limits = Limits(),  # noqa: B008
        lead: Lead | None = None,
    ) -> None:
        self.model, self.limits, self.lead = model, limits, lead
        self.runtime = runtime if isinstance(runtime, Runtime) else Runtime(runtime)
        self.prompts = Prompts(model.config, model.tokenizer, model.ids, model.name, 1)
        self.condition = threading.Condition()
        self.queue: deque[Entry] = deque()
        self.dropped_numbers: set[int] = set()
        self.lanes: dict[LaneKey, SettingBatch] = {}  # by settings and width
        self.runners: OrderedDict[object, Runner] = OrderedDict()
        self.reads = ReadQueue(model, limits, lead)
        self.clock = 0.0  # the most that any has had of the device: a newcomer has no claim to what was before
        self.pages = page_store(model, limits.prefix_gib * 2**30)
        self.rows, self.count, self.lane_count, self.stops_at = limits.max_rows, 0, 0, 0.0
        self.state = "ready"  # ``closing``: what runs is finished; ``closed``; ``failed``: the thread died of an error
        self.stats, self.refuses_waiting = Stats(), False
        self.thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        """Begin to decode."""
        self.thread.start()

    @property
    def health(self) -> str:
        """Its state; ``failed``, too, while another rank is late."""
        return "failed" if self.lead is not None and self.lead.links.late else self.state

    def figures(self) -> Stats:
        """What it has done, and what waits."""
        with self.condition:
            lanes = [lane for lane in self.lanes.values() if len(lane)]
            return replace(
                self.stats,
                waiting=len(self.queue) + len(self.reads),
                rows=sum(map(len, lanes)),
                lanes=len(lanes),
                tokens_in_flight=sum(len(lane) * lane.columns for lane in lanes),
                prefix_columns=0 if self.pages is None else len(self.pages),
                prefix_evicted=0 if self.pages is None else self.pages.evicted,
                endings=Counter(self.stats.endings),
            )

    def submit(self, job: Job, deliver: Callable[[Event], None]) -> int:
        """Queue a job, and return its number. Raises Full, Closing, and UserError for one that can never be decoded."""
        job = replace(job, request=job.setting.parts.sampler.prepare(job.request))
        entry = Entry(0, job, deliver, alone=self.limits.exact)
        if job.request.gap is not None and self.lead is not None:
            raise UserError("a hole without a number is not sized by a model of several ranks. Give it a number.")
        if entry.columns > self.limits.max_tokens_in_flight:
            raise Refusal(
                f"the prompt and its answer take {job.columns} tokens, and the server decodes at most "
                f"{self.limits.max_tokens_in_flight} at a time (max_tokens_in_flight).",
                note="Shorten the prompt or lower {gen_length:name}.",
            )
        self.runner_of(job.setting)
        with self._place() as entry.number:
            self.queue.append(entry)
        return entry.number

    def submit_read(self, job: ReadJob, deliver: Callable[[ReadResult | JobFailure], None]) -> int:
        """Queue what one request reads, and return its number. Raises as ``submit``."""
        longest = max(len(query.canvas.tokens) for queries in job.groups for query in queries)
        if longest > self.limits.max_tokens_in_flight:
            raise UserError(
                f"the prompt and its template take {longest} tokens, and the server reads at most "
                f"{self.limits.max_tokens_in_flight} at a time (max_tokens_in_flight). Shorten the prompt."
            )
        with self._place() as number:
            self.reads.add(ReadEntry(number, job, deliver), self.clock)
        return number

    @contextmanager
    def _place(self) -> Iterator[int]:
        """The number of a job, which is queued meanwhile. Raises Full and Closing."""
        with self.condition:
            if self.state != "ready":
                raise Closing(f"the server is {self.state} and takes no more requests.")
            if len(self.queue) + len(self.reads) >= self.limits.max_waiting:
                raise Full(len(self.queue) + len(self.reads))
            self.count += 1
            yield self.count
            self.condition.notify()

    def abort(self, number: int) -> None:
        """Drop a job before the coming turn. No event follows."""
        with self.condition:
            self.dropped_numbers.add(number)
            self.condition.notify()

    def close(self, grace: float, waiting: bool = True) -> None:
        """Take no more jobs, finish what is under way for ``grace`` seconds, then fail the rest. waiting: what has not
        begun counts as under way; else it fails at once, so that its client may ask another server. Called again, it
        may only take less time."""
        ends = time.monotonic() + grace
        with self.condition:
            if self.state == "ready":
                self.state, self.stops_at = "closing", ends
            self.stops_at = min(self.stops_at, ends)
            self.refuses_waiting = self.refuses_waiting or not waiting
            self.condition.notify()

    def runner_of(self, setting: RequestParts) -> Runner:
        """The runner of a setting, made once. Raises UserError for parts that the runtime cannot run."""
        with self.condition:
            if setting.key in self.runners:
                self.runners.move_to_end(setting.key)
                return self.runners[setting.key]
        runner = Runner.of(self.model, setting.parts, self.runtime)
        with self.condition:
            self.runners[setting.key] = runner
            while len(self.runners) > MOST_RUNNERS:
                self.runners.popitem(last=False)
        return runner

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # whatever it was, no one may wait forever
            LOG.exception("the decode thread died")
            self.fail("error", f"the server failed ({type(error).__name__}).")

    def fail(self, kind: str, message: str) -> None:
        """Decode nothing more, and tell all clients why."""
        with self.condition:
            self.state = "failed"
            everyone = self._everyone()
            self.queue.clear()
            self.lanes.clear()
            self.reads.entries.clear()
        for entry in everyone:
            self._fail(entry, kind, message)

    def _work(self) -> None:
        while self.state != "closed":
            with self.condition:
                while not (self.queue or self.lanes or self.reads or self.dropped_numbers or self.state == "closing"):
                    self.condition.wait()
            self.step()

    def step(self) -> None:
        """Let jobs leave and join, and take a turn of one lane. For the scheduler's thread, or a caller without one."""
        with self.condition:
            self._leave()
            late = self._late(time.monotonic())
            self._admit()
            lanes, reads = dict(self.lanes), len(self.reads) > 0
            if self.state == "closing" and not self.queue and not lanes and not self.reads:
                self.state = "closed"
        for entry, kind, message in late:
            self._fail(entry, kind, message)
        key = min(lanes, key=lambda key: lanes[key].share.due, default=None)
        if reads and (key is None or self.reads.share.due <= lanes[key].share.due):
            self._run_read()
        elif key is not None:
            self._turn(key, lanes[key])

    def _leave(self) -> None:
        """Drop what was aborted."""
        if not self.dropped_numbers:
            return
        self.stats.endings["aborted"] += sum(entry.number in self.dropped_numbers for entry in self._everyone())
        self._drop(self.dropped_numbers)
        self.dropped_numbers.clear()

    def _everyone(self) -> list[Entry | ReadEntry]:
        """Whoever waits for something."""
        lane_entries = (entry for lane in self.lanes.values() for entry in lane.everyone())
        return [*self.queue, *self.reads.entries, *lane_entries]

    def _drop(self, numbers: set[int]) -> None:
        """Let jobs leave."""
        self.queue = deque(entry for entry in self.queue if entry.number not in numbers)
        self.reads.drop(numbers)
        for lane in self.lanes.values():
            for number in numbers:
                lane.drop(number)
        self._close_lanes()

    def _late(self, now: float) -> list[tuple[Entry | ReadEntry, str, UserError | str]]:
        """Drop the jobs whose time is up, or whose rows would never end."""
        out: list[tuple[Entry | ReadEntry, str, UserError | str]] = []
        closing = self.state == "closing" and now > self.stops_at
        for entry in self._everyone():
            is_under_way = entry.start_time is not None or (isinstance(entry, Entry) and entry.along)
            if closing or (self.refuses_waiting and not is_under_way):
                out.append((entry, "closing", "the server has stopped."))
            elif now > entry.job.deadline:
                out.append((entry, "timeout", "the answer took too long."))
            elif isinstance(entry, Entry) and entry.stuck:
                out.append((entry, "forwards", entry.stuck))
        if out:
            self._drop({entry.number for entry, _, _ in out})
        return out

    def _close_lanes(self) -> None:
        self.lanes = {key: lane for key, lane in self.lanes.items() if len(lane)}

    def _admit(self) -> None:
        """Let the jobs at the head of the queue join, as far as the limits allow."""
        opening, forwards = 0, set[Hashable]()
        while self.queue:
            entry = self.queue[0]
            key = self._lane_for(entry)
            forward = key, self._first_forward(entry)
            shared = forward in forwards  # with a row that joins now
            if key is None or not self._fits(entry, key, 0 if shared else opening):
                return
            self.queue.popleft()
            for other in self.queue:
                other.along = other.along or other.request_name == entry.request_name
            forwards.add(forward)
            opening += 0 if shared else entry.columns
            if key not in self.lanes:
                job = entry.job
                self.lane_count += 1
                kind, chunk = (job.trace, job.logprobs, job.likeliest > 0), self.limits.prefill_chunk
                runner = self.runner_of(job.setting)
                lane = SettingBatch(runner, self.prompts, *kind, self.lane_count, self.pages, chunk)
                lane.share.had = self.clock
                self.lanes[key] = lane
            self.lanes[key].add(entry)

    def _first_forward(self, entry: Entry) -> Hashable:
        """Equal for jobs that share their first forwards."""
        setting, runner = entry.job.setting, self.runner_of(entry.job.setting)
        if not runner.leads:
            return entry.number
        return setting.recipe, runner.first_forward(entry.job.request)

    def _lane_for(self, entry: Entry) -> LaneKey | None:
        """The key of the lane that a job joins or opens: of its settings, and of its width unless all are taken."""
        key_of_entry, most = (entry.key, entry.width), self.rows if self.limits.exact else self.limits.max_lanes
        if key_of_entry in self.lanes or len(self.lanes) < most:
            return key_of_entry
        return next((key for key in self.lanes if key[0] == entry.key), None)

    def _fits(self, entry: Entry, lane_key: LaneKey, opening: int) -> bool:
        rows = sum(map(len, self.lanes.values()))
        if rows > self.rows or (rows == self.rows and not self._shut_out(entry)):
            return False
        if opening and opening + entry.columns > self.limits.max_prefill_tokens:
            return False
        cells = 0
        for key, lane in self.lanes.items():
            joins = key == lane_key
            cells += (len(lane) + joins) * max(lane.columns, entry.columns if joins else 0)
        if cells + (0 if lane_key in self.lanes else entry.columns) > self.limits.max_tokens_in_flight:
            return False
        return not rows or self._has_room(entry, self.lanes.get(lane_key))

    def _has_room(self, entry: Entry, lane: SettingBatch | None) -> bool:
        """Whether memory is left for what the cache keeps of a lane's rows and a job's: a row that joins has all of it
        copied to wider buffers. A job that waits for it joins at the latest when nothing else is decoded."""
        if self.lead is not None:  # ranks ask when rows start
            return True
        rows, widest = (0, 0) if lane is None else (len(lane), lane.columns)
        network = self.model.transformer
        of_row = entry.job.setting.parts.kept_numbers(max(widest, entry.columns), self.model.config)
        return (rows + 1) * of_row * network.dtype.itemsize <= free_bytes(network.device, 1)

    def _shut_out(self, entry: Entry) -> bool:
        """Whether a request has no row where another has several, which might be all: ``n`` answers of a long prompt
        take as long as they take. It gets one more, unless memory has run out."""
        rows = Counter(entry_of_lane.request_name for lane in self.lanes.values() for entry_of_lane in lane.everyone())
        return self.rows == self.limits.max_rows and entry.request_name not in rows and max(rows.values()) > 1

    def _run_read(self) -> None:
        """Run a forward of reads, and tell their clients."""
        began = time.perf_counter()
        finished_entries, failures = self.reads.turn()
        with self.condition:
            self.reads.drop({entry.number for entry in finished_entries} | {entry.number for entry, _, _ in failures})
            self.clock = max(self.clock, self.reads.share.had)
            self.stats.read_forwards += 1
            self.stats.read_seconds += time.perf_counter() - began
            self.stats.reads += len(finished_entries)
        for entry in finished_entries:
            self._deliver(entry, entry.outcome())
        for entry, kind, message in failures:
            self._fail(entry, kind, message)

    def _turn(self, key: LaneKey, lane: SettingBatch) -> None:
        """Take a turn of a lane, and tell its clients. If it fails, its jobs begin again."""
        began, requests = time.perf_counter(), len({entry.request_name for entry in lane.everyone()})
        try:
            if self.lead is not None:
                self.lead.turn(lane, self.lanes.values(), self.runners.values())
            turn = lane.turn()
            if turn is None:
                with self.condition:
                    lane.share.take((time.perf_counter() - began) / max(requests, 1))
                    self._close_lanes()
                return
            order = list(lane.entries.values())
            finished_entries = lane.finish(turn)
            events = [(entry, self._done_event(lane, entry)) for entry in finished_entries]
            follow = [row for row, entry in enumerate(order) if entry.job.follow and row not in turn.finished]
            progresses = progress_of(turn, lane.runner.parts, order, follow) if follow else []
        except torch.OutOfMemoryError:
            self._smaller(key, lane)
            return
        except Exception as error:  # of a part or a prompt: it must not take its neighbours along
            self._retry(key, lane, error)
            return
        seconds = time.perf_counter() - began
        with self.condition:
            lane.share.take(seconds / max(requests, 1))
            self.clock = max(self.clock, lane.share.had)
            self.stats.turns += 1
            self.stats.turn_seconds += seconds
            self._close_lanes()
        for row, progress in zip(follow, progresses, strict=True):
            entry, now = order[row], (progress.tokens, progress.masked)
            if progress.turn > entry.last_turn and now != entry.last_canvas:
                entry.last_canvas, entry.last_turn = now, progress.turn
                self._deliver(entry, replace(progress, cached_tokens=entry.cached_tokens))
        for entry, event in events:
            self._deliver(entry, event)

    def _done_event(self, lane: SettingBatch, entry: Entry) -> JobResult:
        result = lane.collector.result(entry.number)
        lane.collector.forget(entry.number)
        with self.condition:
            stats = self.stats
            stats.endings["done"] += 1
            stats.forwards, stats.tokens = stats.forwards + result.nfe, stats.tokens + result.useful_tokens
            stats.cached_tokens += entry.cached_tokens or 0
            stats.query_tokens += result.query_tokens
            stats.computed_tokens += result.computed_tokens
        wait_seconds = (entry.start_time or entry.submit_time) - entry.submit_time
        return JobResult(
            result,
            entry.logprobs_of(result),
            wait_seconds,
            entry.turns,
            entry.likeliest_of(result),
            entry.cached_tokens,
            entry.job.request,
        )

    def _retry(self, key: LaneKey, lane: SettingBatch, error: Exception) -> None:
        """Its turn failed: one of its rows may be to blame, so each begins again in a lane of its own."""
        self._agree(error)
        entries = lane.everyone()
        with self.condition:
            del self.lanes[key]
            if len(entries) > 1:
                kind = type(error).__name__  # its text may quote a prompt
                LOG.warning("a turn of %d rows failed (%s); each begins again alone", len(entries), kind)
                self.queue.extendleft(reversed([again(entry, alone=True) for entry in entries]))
                return
        for entry in entries:
            why = error if isinstance(error, UserError) else f"decoding failed ({type(error).__name__})."
            self._fail(entry, "error", why, error)

    def _smaller(self, key: LaneKey, lane: SettingBatch) -> None:
        """Memory ran out: its rows begin again, and fewer are decoded together from now on."""
        self._agree()
        entries = lane.everyone()
        with self.condition:
            del self.lanes[key]
            lane.running = None
            if len(entries) > 1:
                self.rows = max(1, min(self.rows, len(entries)) // 2)
                LOG.warning("memory ran out with %d rows; at most %d from now on", len(entries), self.rows)
                self.queue.extendleft(reversed([again(entry) for entry in entries]))
                return
        for entry in entries:
            self._fail(entry, "memory", f"an answer of {entry.job.columns} tokens needs more memory than there is.")

    def _agree(self, error: Exception | None = None) -> None:
        """Go on after a failed turn only if it failed on every rank. Raises RankDivergence."""
        if isinstance(error, RankDivergence):
            raise error
        if self.lead is not None:
            self.lead.agree()

    def _fail(self, entry: Entry | ReadEntry, kind: str, why: UserError | str, error: Exception | None = None) -> None:
        message = str(why)
        name = entry.job.ident or uuid.uuid4().hex[:12]
        details = {"end": kind, "cause": message, "error": type(error).__name__ if error else None}
        tell("failed", logging.WARNING, name, f"failed ({kind}): {message}", **details)
        with self.condition:
            self.stats.endings[kind] += 1
        self._deliver(entry, JobFailure(kind, message, name, why if isinstance(why, Refusal) else None))

    def _deliver(self, entry: Entry | ReadEntry, event: Any) -> None:
        try:
            entry.deliver(event)
        except Exception:
            LOG.exception("a client's event was lost")


def again(entry: Entry, alone: bool = False) -> Entry:
    """The job as it was before its first turn."""
    return replace(entry, turns=0, alone=alone or entry.alone, likeliest={}, logprobs={})
