"""An evaluation: the items of a task under one configuration. Planned before weights are read, then decoded and scored.

Items whose answers differ in length or in stop strings need decoders of their own: an evaluation has a plan and a
decoder for each shape of answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from dllm.app.runs.decisions import DecisionCount
from dllm.app.runs.plan import RunPlan, spare_threads, weights_of
from dllm.app.runs.samples import PlannedSample, trace_content, warn_of_prompts
from dllm.app.runs.scoring_pool import FinishedSample, Judgement, scored, scorers
from dllm.common.digest import seed_from
from dllm.common.errors import UserError, not_installed
from dllm.common.links import follows
from dllm.compose.parts import build_part, choice_of
from dllm.constraints.kinds import Constraint, TaskConstraint
from dllm.contract.canvas import Request
from dllm.decoder import Decoder, requests_per_batch
from dllm.models import bundle
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.oracle import Oracle
from dllm.parts.samplers.static import Static
from dllm.prompts import PrefilledPrompt
from dllm.record.bounds import GuessRecorder, lossless_minimum
from dllm.record.environment import environment_of
from dllm.record.folders import SampleKey, relevant
from dllm.record.measures import Totals, by_task, mean
from dllm.record.results import Result, ResultRow
from dllm.scoring.decisions.likelihood import Estimator
from dllm.tasks.answer_formats import is_word, lacking_library
from dllm.tasks.base import Item, Task
from dllm.tasks.build import task_of
from dllm.tasks.choices import likeliest_choice


class AnswerShape(NamedTuple):
    """length: tokens of the answer. stop: strings that end it."""

    length: int
    stop: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """Samples that are decoded together: as one ends, the next joins. A batch is always decoded whole, so that a
    resumed run decodes what an undisturbed one does."""

    shape: AnswerShape  # length and stop texts that its answers share
    samples: tuple[PlannedSample, ...]  # in the order in which they join

    @property
    def keys(self) -> tuple[SampleKey, ...]:
        return tuple(sample.key for sample in self.samples)


@dataclass
class Evaluation:
    """The samples of a task, decoded and scored batch by batch."""

    config: dict[str, Any]  # the resolved configuration
    task: Task  # what is asked, and how an answer is scored
    items: dict[str, Item]  # by id
    plans: dict[AnswerShape, RunPlan]  # by the shape of the answer
    batches: list[Batch]  # in the order in which they are decoded
    content: dict[str, str]  # identifies the checkpoint and the questions
    decoders: dict[AnswerShape, Decoder] = field(default_factory=dict)  # those that were built so far
    device: str | None = None  # where an engine puts the model; None: where the configuration says
    # decoders with one token per step, for plans whose oracle needs a reference
    references: dict[AnswerShape, Decoder] = field(default_factory=dict)

    @staticmethod
    def of(config: Mapping[str, Any]) -> Evaluation:
        """Reads the task's data, no weights. Raises UserError for what cannot work."""
        task = task_of(config["task"])
        items = {item.id: item for item in task.items()}
        if not items:
            raise UserError(f"task={config['task']['name']} has no items. Choose others of its settings.")
        shapes = dict.fromkeys(answer_shape(config, item) for item in items.values())
        plans = {shape: _plan(config, shape) for shape in shapes}
        batches = [batch for shape in shapes for batch in _batches(config, shape, plans[shape], items)]
        content = {**next(iter(plans.values())).content(), **_stamped(task)}
        return Evaluation(dict(config), task, items, plans, batches, content)

    @property
    def keys(self) -> list[SampleKey]:
        """Every sample, in the order of the items."""
        return [(name, sample) for name in self.items for sample in range(self.config["samples"])]

    def missing(self, done: set[SampleKey]) -> list[Batch]:
        """The batches that hold a sample which is not ``done``."""
        return [batch for batch in self.batches if not done.issuperset(batch.keys)]

    @property
    def plan(self) -> RunPlan:
        """The first plan; folder, options and checkpoint are the same in all."""
        return next(iter(self.plans.values()))

    @property
    def width(self) -> int:
        """The model's, by its description."""
        return self.plan.prompts.config.width

    @property
    def architecture(self) -> str:
        """The model's, by its description."""
        return self.plan.prompts.config.architecture

    @property
    def model(self) -> bundle.Model:
        """With its weights, which the first call loads."""
        return loaded_model(**weights_of(self.config, self.device))

    @property
    def draws(self) -> bool:
        """Whether a seed can change an answer: tokens are drawn, or a rule, an order or what a cache keeps is."""
        named = relevant(self.config)
        apart = named.get("cache.suffix_drop", "none") != "none" or "random" in named.values()
        return self.config["sampling"]["temperature"] > 0 or apart or not self.plan.parts.sampler.traits.deterministic

    def environment(self) -> dict[str, Any]:
        """Where the samples are decoded. Loads the weights."""
        return environment_of(self.model.transformer, self.config["seed"])

    def rows(self, batches: Iterable[Batch]) -> Iterator[FinishedSample]:
        """Decode and score. Yields a sample's row, and its trace if asked for, as soon as the sample is finished.

        Scores that need processes of their own are awaited while the next batches decode.
        """
        samples = (sample for batch in batches for sample in self._decoded(batch))
        if follows():  # rank 0 scores
            return samples
        return scored(samples, self._scores, scorers(self.task, self.model.transformer.device))

    def _scores(self, row: ResultRow) -> Judgement:
        item, text = self.items[row["id"]], row["text"]
        scores, parts = self.task.judged(item, text)
        if item.constraint is not None:
            judged = lacking_library(item.constraint) is None
            scores = {**scores, "valid": float(is_word(item.constraint, text)) if judged else None}
        return {"scores": scores, "parts": parts} if parts else {"scores": scores}

    def totals(self, rows: Sequence[ResultRow]) -> Totals:
        """The metrics over all answers, by sub-task. Several answers to an item count by their mean."""
        return {name: found for name, mine in by_task(rows).items() if (found := self._totals(name, mine))}

    def _totals(self, task: str, rows: Sequence[ResultRow]) -> dict[str, float | None]:
        parts: dict[str, dict[int, list[Any]]] = {}  # by metric, then by the answer's number
        for row in rows:
            for metric, part in row.get("parts", {}).items():
                parts.setdefault(metric, {}).setdefault(row["sample"], []).append(part)
        found: dict[str, float | None] = {}
        for metric, by_number in parts.items():
            each = [self.task.total(task, metric, one) for one in by_number.values()]
            named = [one if isinstance(one, Mapping) else {"": one} for one in each]
            for key in dict.fromkeys(key for one in named for key in one):
                values = [value for one in named if (value := one.get(key)) is not None]
                found[f"{metric}/{key}" if key else metric] = mean(values) if len(values) == len(named) else None
        if found and not any("score" in row["scores"] for row in rows):
            found = {"score": next(iter(found.values())), **found}
        return found

    def unjudged(self) -> list[str]:
        """Why tasks cannot be asked, and scores not be judged, in sentences."""
        asked = [item.constraint for item in self.items.values() if item.constraint is not None]
        lacking = sorted({library for one in asked if (library := lacking_library(one)) is not None})
        validity = [str(not_installed("the score valid", library, "constraints")) for library in lacking]
        return [*self.task.missing().values(), *validity]

    def _decoded(self, batch: Batch) -> Iterator[FinishedSample]:
        """The samples of one batch, still without scores."""
        if self.items[batch.samples[0].id].choices:
            yield from ((row, None) for row in self._chosen(batch))
            return
        decoder, count, plan = self._decoder(batch), DecisionCount(), self.plans[batch.shape]
        requests, lossless = [sample.request for sample in batch.samples], None
        if batch.shape in self.references:
            oracle, lossless = reference_oracle(self.references[batch.shape], requests)
            decoder.runner = decoder.runner.with_sampler(oracle)
        for number, result in decoder.run(requests, bool(self.config["trace"]), count):
            extra = {} if lossless is None else {"lossless": lossless[number]}
            row = {**self._row(batch, number, result), **count.columns(number), **extra}
            yield row, trace_content(batch.samples[number], result, batch.keys, plan.config)

    def _chosen(self, batch: Batch) -> Iterator[ResultRow]:
        """Answers chosen by their likelihood."""
        model, prompts = self.model, self.plans[batch.shape].prompts
        for number, sample in enumerate(batch.samples):
            result = likeliest_choice(model, prompts, self.items[sample.id], self.task.estimator or Estimator())
            yield {**self._row(batch, number, result), **DecisionCount().columns(number)}

    def _row(self, batch: Batch, number: int, result: Result) -> ResultRow:
        sample, first = batch.samples[number], batch.samples[0]
        return {
            "id": sample.id, "sample": sample.sample, "task": self.items[sample.id].task, **self.task.stamp(),
            "scores": None, **result.to_json(), "prompt": sample.shown, "batch": f"{first.id}/{first.sample}",
        }  # fmt: skip

    def _decoder(self, batch: Batch) -> Decoder:
        """The decoder for the batch's shape, warm: it has decoded one answer, so that no row pays first-time costs."""
        if batch.shape not in self.decoders:
            plan = self.plans[batch.shape]
            warn_of_prompts(self.model, [batch.samples[0].shown])
            self.decoders[batch.shape] = warm = plan.decoder(self.model)
            if needs_reference(plan.parts.sampler):
                self.references[batch.shape] = warm = one_per_step(warm)
            list(warm.run([batch.samples[0].request]))
        return self.decoders[batch.shape]


def answer_shape(config: Mapping[str, Any], item: Item) -> AnswerShape:
    """The user's gen_length, where there is one, overrides the item's budget. The item's stop strings have no meaning
    under a constraint, whose language says where an answer ends."""
    stop = [config["stop"]] if isinstance(config["stop"], str) else config["stop"]
    length = item.budget if config["gen_length"] is None else config["gen_length"]
    constrained = config["constraint"] and (item.constraint is not None or not of_items(config))
    return AnswerShape(length, tuple(stop) if constrained else (*stop, *item.stop))


def of_items(config: Mapping[str, Any]) -> bool:
    """Whether each item is decoded under its own constraint."""
    return choice_of("constraint", config["constraint"]) == TaskConstraint.kind


def item_constraint(config: Mapping[str, Any], item: Item, plan: RunPlan) -> Constraint | None:
    """What an item's answer must be. Raises UserError for an answer that is chosen among given ones."""
    if config["constraint"] and item.choices:
        raise UserError(
            f"constraint={choice_of('constraint', config['constraint'])} has no meaning for "
            f"task={config['task']['name']}, which chooses the likeliest of given answers. Drop it."
        )
    if not of_items(config) or item.constraint is None:
        return plan.constraint
    options = build_part("constraint", config["constraint"], per_request=False)
    return replace(item.constraint, **{entry.name: getattr(options, entry.name) for entry in fields(Constraint)})


def _plan(config: Mapping[str, Any], shape: AnswerShape) -> RunPlan:
    sampler = with_reference(config["sampler"])
    return RunPlan.of({**config, "sampler": sampler, "gen_length": shape.length, "stop": list(shape.stop)})


def _batches(
    config: Mapping[str, Any], shape: AnswerShape, plan: RunPlan, items: Mapping[str, Item]
) -> Iterator[Batch]:
    """The batches of answers of one shape."""
    samples = [
        _planned(config, item, number, plan)
        for item in items.values()
        if answer_shape(config, item) == shape
        for number in range(config["samples"])
    ]
    size = requests_per_batch(config["batch_size"])
    yield from (Batch(shape, tuple(samples[at : at + size])) for at in range(0, len(samples), size))


def _planned(config: Mapping[str, Any], item: Item, number: int, plan: RunPlan) -> PlannedSample:
    request = plan.prompts.request(item.prompt, sample_seed(config["seed"], item.id, number))
    request = replace(request, constraint=item_constraint(config, item, plan))
    try:
        plan.check_request(request)
    except UserError as error:
        raise UserError(f"question {item.id}: {error}") from None
    return PlannedSample(item.id, number, _shown(item), request)


def _shown(item: Item) -> str:
    """The question itself: the last message of a conversation."""
    prompt: Any = item.prompt.prompt if isinstance(item.prompt, PrefilledPrompt) else item.prompt
    if isinstance(prompt, list) and isinstance(prompt[-1], Mapping):
        prompt = str(prompt[-1]["content"])
    return prompt if isinstance(prompt, str) else item.id


def sample_seed(seed: int, name: str, sample: int) -> int:
    """A sample's seed depends on nothing but the run's seed, the item and the sample's number."""
    return seed_from(f"{seed}/{name}/{sample}")


def _stamped(task: Task) -> dict[str, str]:
    return {f"task {name}": value for name, value in task.stamp().items()}


@lru_cache(maxsize=1)
def loaded_model(**named: Any) -> bundle.Model:
    """The weights that ``weights_of`` names. The last ones stay loaded for the next cell of a sweep; no others do,
    since two may not fit."""
    model = bundle.load(**named)
    spare_threads(model.transformer)
    return model


ORACLE = f"{Oracle.__module__}.{Oracle.__name__}"


def with_reference(sampler: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sampler's configuration. An oracle without a reference gets an empty one, which each batch then fills."""
    missing = sampler["_target_"] == ORACLE and sampler["reference"] is None
    return {**sampler, "reference": []} if missing else sampler


def needs_reference(sampler: Sampler) -> bool:
    """Whether this is an oracle with an empty reference."""
    return isinstance(sampler, Oracle) and not sampler.reference


def one_per_step(decoder: Decoder) -> Decoder:
    """A decoder like this one with one token per step."""
    parts = decoder.parts
    return Decoder(
        decoder.model, Static(), parts.blocks, parts.cache, parts.eos, gen_length=decoder.gen_length,
        batch_size=decoder.batch_size, sampling=replace(parts.sampling, tempered=False), stop=decoder.stop,
        chat=decoder.prompts.chat, chat_template_kwargs=decoder.prompts.chat_template_kwargs,
    )  # fmt: skip


def reference_oracle(slow: Decoder, requests: Sequence[Request]) -> tuple[Oracle, list[int]]:
    """The oracle of a batch, and each request's lossless minimum of forwards. slow: decodes one token per step."""
    guesses = GuessRecorder()
    found = dict(slow.run(requests, observe=guesses))
    numbers = range(len(requests))
    minimum = [lossless_minimum(guesses.requests.get(number, [])) for number in numbers]
    return Oracle([found[number].canvas for number in numbers]), minimum
