"""``task=prompt``: decode one prompt or a file of them, and leave a run folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text
from tqdm import tqdm

from dllm.app.commands.chat import chat
from dllm.app.jobs.entries import Job, trace_of
from dllm.app.jobs.environment import stamp
from dllm.app.jobs.plan import Plan
from dllm.app.jobs.store import Row, Store, key_of
from dllm.decoder import Decoder, Observer
from dllm.errors import UserError, name_of
from dllm.models.bundle import Model
from dllm.record.results import Result
from dllm.record.stopwatch import Stopwatch
from dllm.view.live import LiveView
from dllm.view.table import answer, label, summary, texts

COMPARED = "compare.jsonl"
FEW = 10  # samples whose text is printed at the end


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Decode what ``config`` asks for."""
    plan = Plan.of(config)
    if plan.options.chat:
        chat(plan)
        return
    plan.refuse_folder()
    jobs = plan.jobs()
    with plan.store(jobs) as store:
        columns = Session(plan, jobs, store).decode()
    report(columns, store)
    if plan.options.trace:
        pages = list(store.folder.glob("traces/*.html"))
        shown = pages[0] if len(pages) == 1 else f"{store.folder}/traces/*.html"
        Console(soft_wrap=True).print(Text(f"To replay it, open in a browser: {shown}", "dim"))


class Session:
    """One start of a run: decodes what its folder lacks."""

    def __init__(self, plan: Plan, jobs: Sequence[Job], store: Store) -> None:
        self.plan, self.jobs, self.store = plan, jobs, store
        self.model: Model | None = None

    def decode(self) -> dict[str, list[Row]]:
        """Results by column of the final table: the chosen sampler, and one token per step if asked for."""
        columns = {sampler_name(self.plan): self._column(self.store, None)}
        if self.plan.options.compare:
            with self.store.beside(COMPARED) as other:
                columns["one token per step"] = self._column(other, "static")
        return columns

    def _column(self, store: Store, sampler: str | None) -> list[Row]:
        todo = [job for job in self.jobs if job.key not in store.done]
        there = len(self.jobs) - len(todo)
        if there:
            print(f"{store.folder} holds {there} samples already, {len(todo)} to go.", file=sys.stderr)
        if todo:
            with interruptible(len(self.jobs), store):
                self._fill(self._decoder(sampler, todo[0]), todo, store)
        order = {job.key: number for number, job in enumerate(self.jobs)}
        return sorted((row for row in store.rows if key_of(row) in order), key=lambda row: order[key_of(row)])

    def _decoder(self, sampler: str | None, job: Job) -> Decoder:
        """A decoder that has done one forward, so that first-time costs are not counted."""
        if self.model is None:
            try:
                self.model = self.plan.load()
            except UserError:
                self.store.discard()
                raise
            network = self.model.transformer
            self.store.stamp(stamp(network.device, next(network.parameters()).dtype, self.plan.options.seed))
        decoder = self.plan.decoder(self.model, sampler)
        next(decoder.turns(job.request), None)
        return decoder

    def _fill(self, decoder: Decoder, todo: Sequence[Job], store: Store) -> None:
        trace = bool(self.plan.options.trace)
        watch = Stopwatch.on(decoder.model.transformer.device)
        with observing(self.plan, decoder, todo, watch) as observe:
            done = decoder.run([job.request for job in todo], trace, observe, watch)
            for number, result in progress(done, len(todo), observe):
                first = number - number % decoder.batch_size
                batch = todo[first : first + decoder.batch_size]
                trace_data = trace_of(todo[number], result, [mate.key for mate in batch], self.plan.config)
                store.write(row_of(todo[number], result, batch), trace_data)


def row_of(job: Job, result: Result, batch: Sequence[Job]) -> Row:
    """A line of results.jsonl. Rows with the same ``batch`` were decoded together and share their seconds."""
    mates = f"{batch[0].id}/{batch[0].sample}"
    return {"id": job.id, "sample": job.sample, **result.to_json(), "prompt": job.shown, "batch": mates}


@contextmanager
def interruptible(total: int, store: Store) -> Iterator[None]:
    """Ctrl-C leaves the finished samples and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        done = f"{len(store.rows)} of {total} samples are in {store.folder}."
        print(f"\nStopped: {done} Go on with resume={store.folder}", file=sys.stderr)
        raise SystemExit(130) from None


@contextmanager
def observing(plan: Plan, decoder: Decoder, todo: Sequence[Job], watch: Stopwatch) -> Iterator[Observer | None]:
    """The live view, where somebody can see it."""
    console = Console()
    if plan.options.live is False or (plan.options.live is None and not console.is_terminal):
        yield None
        return
    if len(todo) == 1:
        console.print(Text(todo[0].shown, "dim"))
    with LiveView(console, decoder.prompts.text, decoder.model.ids, plan.options.animate, watch=watch) as view:
        yield view


def progress(
    results: Iterable[tuple[int, Result]], total: int, observe: Observer | None
) -> Iterator[tuple[int, Result]]:
    """Count finished samples: in the live view's status line, or as a bar on stderr when there are several."""
    if isinstance(observe, LiveView):
        began = time.perf_counter()
        for count, entry in enumerate(results, 1):
            left = (time.perf_counter() - began) / count * (total - count)
            observe.note = f"sample {count} of {total}, about {left:.0f} s left" if total > 1 else ""
            yield entry
    else:
        pause = 0.1 if sys.stderr.isatty() else 10
        yield from tqdm(results, total=total, unit="sample", disable=total == 1, mininterval=pause, maxinterval=pause)


def sampler_name(plan: Plan) -> str:
    return name_of(plan.parts.sampler)


def report(columns: dict[str, list[Row]], store: Store) -> None:
    """The texts, if they are few, and the table."""
    console = Console()
    rows = next(iter(columns.values()))
    if len(columns) > 1 and len(rows) <= FEW:
        console.print(texts(columns))
    elif len(rows) <= FEW:
        for row in rows:
            if len(rows) > 1:
                console.print(Text(f"[{label(row)}]", "bold"))
            print(answer(row))
    console.print(summary(columns))
    console.print(Text(f"Run folder: {store.folder}", "dim"))
