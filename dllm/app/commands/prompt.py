"""``task=prompt``: decode one prompt or a file of them, and leave a run folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.console import Console
from tqdm import tqdm

from dllm.app.commands.chat import EMPTY_ANSWER, chat
from dllm.app.commands.interruptible import interruptible
from dllm.app.engines.base import refuse_engine
from dllm.app.runs.folder import RunFolder
from dllm.app.runs.plan import RunPlan
from dllm.app.runs.samples import PlannedSample, constraint_digest, trace_content, warn_of_prompts
from dllm.common.signals import Terminated
from dllm.common.terminal import as_text, complain, say
from dllm.compose.comparisons import compared_config, is_chosen
from dllm.compose.naming import implied_choices, typed_name
from dllm.contract import Turn
from dllm.decoder import Decoder, Observer
from dllm.loop.runner import requests_per_batch
from dllm.models.bundle import Model
from dllm.record.environment import environment_of
from dllm.record.folders import RESULTS, key_of
from dllm.record.results import Result, ResultRow
from dllm.record.stopwatch import Stopwatch
from dllm.view.brush import CanvasRenderer
from dllm.view.live import LiveView
from dllm.view.race import DecodeFilm, Race, RaceLane
from dllm.view.summary import answer_text, sample_label, summary_table, text_table

COMPARE_RESULTS = "compare.jsonl"
SINGLE_STEPS = "one token per step"
MAX_PRINTED = 10  # samples whose text is printed at the end


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Decode what ``config`` asks for."""
    refuse_engine(config, names)
    plan = RunPlan.of(config)
    if plan.options.chat:
        chat(plan)
        return
    plan.refuse_folder()
    samples = plan.samples()
    with plan.open_folder(samples) as run_folder:
        started = PromptRun(plan, samples, run_folder, names)
        columns = started.decode()
    started.race(columns)
    report_answers(columns, run_folder, list(dict.fromkeys(started.notes)))
    if plan.options.trace:
        pages = list(run_folder.path.glob("traces/*.html"))
        pages_text = pages[0] if len(pages) == 1 else f"{run_folder.path}/traces/*.html"
        Console(soft_wrap=True).print(as_text(f"To replay it, open in a browser: {pages_text}", "dim"))


class PromptRun:
    """One start of a run: decodes the samples that its folder lacks."""

    def __init__(
        self, plan: RunPlan, samples: Sequence[PlannedSample], run_folder: RunFolder, names: Sequence[str] = ()
    ) -> None:
        self.plan, self.samples, self.run_folder, self.names = plan, samples, run_folder, names
        self.notes = implied_choices(plan.config, names)  # what choices bring along
        self.model: Model | None = None  # loaded when a sample is missing
        self.console = Console()
        self.films: dict[str, DecodeFilm] = {}  # of each column, if the run ends as a race
        self.has_shown_prompt = False  # above the live view

    def decode(self) -> dict[str, list[ResultRow]]:
        """Results by column of the final table: the chosen sampler, and one token per step if asked for."""
        compare, config = self.plan.options.compare, self.plan.config
        entries = ["static"] if compare is True else [] if compare is False else compare
        current = {entry for entry in entries if is_chosen(config, entry)} if compare is not True else set()
        name = next((entry for entry in entries if entry in current), typed_name(config, "sampler"))
        columns = {name: self._column(name, self.run_folder, self.plan)}
        for entry in entries:
            if entry not in current:
                title, file = (SINGLE_STEPS, COMPARE_RESULTS) if compare is True else (entry, f"compare-{entry}.jsonl")
                plan = RunPlan.of(compared_config(config, entry, self.names))
                with self.run_folder.beside(file) as other:
                    columns[title] = self._column(title, other, plan)
                self.notes += implied_choices(plan.config, self.names)
        return columns

    def race(self, columns: dict[str, list[ResultRow]]) -> None:
        """Replay both decodes at once, one token per step above, if this start made films of both. A prompt without a
        mask has no turns."""
        if len(self.films) > 1 and all(film.seconds for film in self.films.values()) and self.model is not None:
            lanes = [RaceLane(name, self.films[name], columns[name][0]) for name in reversed(columns)]
            Race(CanvasRenderer(self.console, self.plan.prompts.text, self.model.ids), lanes).play()

    @property
    def watched(self) -> bool:
        """Whether somebody sees the canvas while it denoises."""
        live = self.plan.options.live
        return self.console.is_terminal if live is None else live

    @property
    def races(self) -> bool:
        """Whether the run ends as a race: two decodes of one sample, watched in a terminal."""
        compares = self.plan.options.compare is True
        return compares and len(self.samples) == 1 and self.watched and self.console.is_terminal

    def _column(self, name: str, run_folder: RunFolder, plan: RunPlan) -> list[ResultRow]:
        """The finished rows of a column, in the order of the prompts. plan: its own settings."""
        todo = [sample for sample in self.samples if sample.key not in run_folder.done_keys]
        total, there = len(self.samples), len(self.samples) - len(todo)
        if there:
            complain(f"{run_folder.path} holds {there} samples already, {len(todo)} to go.")
        if todo:
            with interruptible(lambda: resume_hint(run_folder, total)):
                self._fill(name, plan.config, self._decoder(plan, todo[0]), todo, run_folder)
        order = {sample.key: number for number, sample in enumerate(self.samples)}
        return sorted((row for row in run_folder.rows if key_of(row) in order), key=lambda row: order[key_of(row)])

    def _decoder(self, plan: RunPlan, sample: PlannedSample) -> Decoder:
        """A decoder that has done one forward, so that no sample pays first-time costs."""
        if self.model is None:
            self.model = self.plan.load()
            self.run_folder.stamp(environment_of(self.model.transformer, self.plan.options.seed))
            whole_samples = (each for each in self.samples if all(each.request.masked[each.request.answer_start :]))
            warn_of_prompts(self.model, (sample.prompt_text for sample in whole_samples))
        decoder = plan.decoder(self.model)
        next(decoder.turns(sample.request), None)
        return decoder

    def _fill(
        self, name: str, config: dict[str, Any], decoder: Decoder, todo: Sequence[PlannedSample], run_folder: RunFolder
    ) -> None:
        trace = bool(self.plan.options.trace)
        watch = Stopwatch.on(decoder.model.transformer.device)
        with self._view(name, decoder, todo, watch) as view:
            unfinished = Unfinished(decoder.prompts.text)
            observe = self._observer(name, view, watch, unfinished)
            results = decoder.run([sample.request for sample in todo], trace, observe, watch)
            try:
                for number, result in progress(results, len(todo), view):
                    size = requests_per_batch(decoder.batch_size)
                    first = number - number % size
                    batch = todo[first : first + size]
                    content = trace_content(todo[number], result, [mate.key for mate in batch], config)
                    run_folder.write(row_of(todo[number], result, batch), content)
            except (KeyboardInterrupt, Terminated):
                if view is not None:
                    view.live.stop()
                unfinished.say(MAX_PRINTED)
                raise

    @contextmanager
    def _view(
        self, name: str, decoder: Decoder, todo: Sequence[PlannedSample], watch: Stopwatch
    ) -> Iterator[LiveView | None]:
        """The live view, where somebody can see it, under its name where there are several. Before a race it is not
        animated, and writes nothing."""
        if not self.watched:
            yield None
            return
        if len(todo) == 1 and not self.has_shown_prompt:
            self.console.print(as_text(todo[0].prompt_text, "dim"))
            self.has_shown_prompt = True
        if self.plan.options.compare and not self.races:
            self.console.print(as_text(name, "bold"))
        animate = self.plan.options.animate and not self.races
        text, ids = decoder.prompts.text, decoder.model.ids
        with LiveView(self.console, text, ids, animate, self.races, watch) as view:
            yield view

    def _observer(self, name: str, view: LiveView | None, watch: Stopwatch, unfinished: Unfinished) -> Observer | None:
        """What sees the turns of a column: the view, what is kept for Ctrl-C and, before a race, a film. On a GPU an
        observer has the host wait for every turn, so none is added without a view."""
        if view is None:
            return unfinished if self.model is not None and self.model.transformer.device.type == "cpu" else None
        seers: list[Observer] = [unfinished, view]
        if self.races:
            film = self.films[name] = DecodeFilm(watch)
            seers = [film, unfinished, view]

        def all_of_them(turn: Turn) -> None:
            for seer in seers:
                seer(turn)

        return all_of_them


def resume_hint(run_folder: RunFolder, total: int) -> str:
    """What a stopped run has kept, and how to go on with it."""
    return f"{len(run_folder.rows)} of {total} samples are in {run_folder.path}. Go on with resume={run_folder.path}"


def row_of(sample: PlannedSample, result: Result, batch: Sequence[PlannedSample]) -> ResultRow:
    """A line of results.jsonl. Rows with the same ``batch`` were decoded together and share their seconds."""
    mates = f"{batch[0].id}/{batch[0].sample}"
    constraint = constraint_digest(sample.request)
    row = {"id": sample.id, "sample": sample.sample, **result.to_json(), "prompt": sample.prompt_text, "batch": mates}
    return row if constraint is None else {**row, "constraint_digest": constraint}


def progress(results: Iterable[tuple[int, Result]], total: int, view: LiveView | None) -> Iterator[tuple[int, Result]]:
    """Count finished samples: in the live view's status line, or as a bar on stderr when there are several."""
    if view is not None:
        began = time.perf_counter()
        for count, entry in enumerate(results, 1):
            seconds = (time.perf_counter() - began) / count * (total - count)
            view.note = f"sample {count} of {total}, about {seconds:.0f} s left" if total > 1 else ""
            yield entry
    else:
        pause = 0.1 if sys.stderr.isatty() else 10
        yield from tqdm(results, total=total, unit="sample", disable=total == 1, mininterval=pause, maxinterval=pause)


def report_answers(columns: dict[str, list[ResultRow]], run_folder: RunFolder, notes: Sequence[str]) -> None:
    """Print the texts, if they are few, the table, and the notes. In a pipe or a file the texts of the chosen setting
    stand alone: the rest is for people, on stderr."""
    is_terminal = sys.stdout.isatty()
    console = Console(stderr=not is_terminal)
    rows = next(iter(columns.values()))
    if len(columns) > 1 and len(rows) <= MAX_PRINTED:
        console.print(text_table(columns))
    if (len(columns) == 1 or not is_terminal) and len(rows) <= MAX_PRINTED:
        for row in rows:
            if len(rows) > 1:
                console.print(as_text(f"[{sample_label(row)}]", "bold"))
            say(answer_text(row))
            if not answer_text(row).strip():
                complain(EMPTY_ANSWER)
    console.print(summary_table(columns))
    for note in notes:
        console.print(as_text(note, "dim"))
    if len(rows) > MAX_PRINTED:
        console.print(as_text(f"The {len(rows)} texts are in {run_folder.path}/{RESULTS}", "dim"))
    console.print(as_text(f"Run folder: {run_folder.path}", "dim"))


OPEN = "\N{HORIZONTAL ELLIPSIS}"  # stands for positions that are still open


class Unfinished:
    """An observer that keeps the last turn. text: of ids."""

    def __init__(self, text: Callable[[Sequence[int]], str]) -> None:
        self.text = text
        self.last: Turn | None = None

    def __call__(self, turn: Turn) -> None:
        self.last = turn

    def texts(self) -> Iterator[str]:
        """The decided parts of the answers of rows under way."""
        if self.last is None:
            return
        canvas, first = self.last.candidates, self.last.step.owner.first.tolist()
        for row, at in enumerate(first):
            if row not in self.last.finished:
                begin, end = int(canvas.start[at]), int(canvas.end[at])
                yield self._text(canvas.tokens[at, begin:end].tolist(), canvas.masked[at, begin:end].tolist())

    def say(self, most: int) -> None:
        """Print them, if any position is decided and there are not too many."""
        texts = list(self.texts())
        if 0 < len(texts) <= most and any(text.strip(OPEN) for text in texts):
            for text in texts:
                say(text)

    def _text(self, tokens: Sequence[int], masked: Sequence[bool]) -> str:
        runs = groupby(zip(tokens, masked, strict=True), key=lambda pair: pair[1])
        return "".join(OPEN if is_open else self.text([token for token, _ in run]) for is_open, run in runs)
