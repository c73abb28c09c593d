"""A decode of a task's items under one configuration: what it will do, before weights are read, and how it does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

from dllm.analysis.likelihood import Estimator
from dllm.app.jobs.entries import Job, trace_of
from dllm.app.jobs.environment import spare_threads, stamp
from dllm.app.jobs.plan import Plan, weights_of
from dllm.app.jobs.reference import one_per_step, told, untold, with_reference
from dllm.app.jobs.scoring import Sample, scored, scorers
from dllm.app.jobs.store import Key, Row
from dllm.app.jobs.tally import Tally
from dllm.decoder import Decoder
from dllm.errors import UserError
from dllm.models import bundle
from dllm.prompts import Begun
from dllm.record.results import Result
from dllm.tasks.base import Item, Scores, Task
from dllm.tasks.build import task_of
from dllm.tasks.choices import answer

Group = tuple[int, tuple[str, ...]]  # tokens of the answer, strings that end it


@dataclass(frozen=True)
class Batch:
    """Samples decoded together. It is always decoded whole, so that a resumed run decodes what an undisturbed one
    does."""

    group: Group
    jobs: tuple[Job, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(job.key for job in self.jobs)


@dataclass
class Evaluation:
    """``plans`` by group, since items may allow answers of different lengths; ``content`` identifies checkpoint and
    questions."""

    config: dict[str, Any]
    task: Task
    items: dict[str, Item]
    plans: dict[Group, Plan]
    batches: list[Batch]
    content: dict[str, str]
    decoders: dict[Group, Decoder] = field(default_factory=dict)
    device: str | None = None  # where an engine puts the model; None: where the configuration says
    slow: dict[Group, Decoder] = field(default_factory=dict)  # one token per step, where an oracle needs it

    @staticmethod
    def of(config: Mapping[str, Any]) -> Evaluation:
        """Raises UserError for whatever cannot work. Reads the task's data, no weights."""
        task = task_of(config["task"])
        items = {item.id: item for item in task.items()}
        if not items:
            raise UserError(f"task={config['task']['name']} has no items. Choose others of its settings.")
        plans = {group: _plan(config, group) for group in {group_of(config, item): None for item in items.values()}}
        batches = [batch for group, plan in plans.items() for batch in _batches(config, group, plan, items)]
        content = {**next(iter(plans.values())).content(), **_stamped(task)}
        return Evaluation(dict(config), task, items, plans, batches, content)

    @property
    def keys(self) -> list[Key]:
        """Every sample, in the order of the items."""
        samples = self.config["samples"]
        return [(name, sample) for name in self.items for sample in range(samples)]

    def missing(self, done: set[Key]) -> list[Batch]:
        """The batches that hold a sample which is not ``done``."""
        return [batch for batch in self.batches if not done.issuperset(batch.keys)]

    @property
    def plan(self) -> Plan:
        """That of the first group; folder, options and checkpoint are the same in all."""
        return next(iter(self.plans.values()))

    @property
    def model(self) -> bundle.Model:
        """With its weights, which the first call loads."""
        return loaded(*weights_of(self.config, self.device))

    def environment(self) -> dict[str, Any]:
        """Where the samples are decoded. Loads the weights."""
        network = self.model.transformer
        return stamp(network.device, next(network.parameters()).dtype, self.config["seed"])

    def rows(self, batches: Iterable[Batch]) -> Iterator[Sample]:
        """Decode and score; a row, and its trace if asked for, as soon as its sample is finished. Scores that take
        processes of their own are awaited while the next batches decode."""
        samples = (sample for batch in batches for sample in self._decoded(batch))
        return scored(samples, self._scores, scorers(self.task, self.model.transformer.device))

    def _scores(self, row: Row) -> Scores:
        return self.task.score(self.items[row["id"]], row["text"])

    def _decoded(self, batch: Batch) -> Iterator[Sample]:
        """The samples of one batch, still without scores."""
        if self.items[batch.jobs[0].id].choices:
            yield from ((row, None) for row in self._chosen(batch))
            return
        decoder, tally, plan = self._decoder(batch), Tally(), self.plans[batch.group]
        requests, lossless = [job.request for job in batch.jobs], None
        if batch.group in self.slow:
            decoder.sampler, lossless = told(self.slow[batch.group], requests)
        for number, result in decoder.run(requests, bool(self.config["trace"]), tally):
            extra = {} if lossless is None else {"lossless": lossless[number]}
            row = {**self._row(batch, number, result), **tally.columns(number), **extra}
            yield row, trace_of(batch.jobs[number], result, batch.keys, plan.config)

    def _chosen(self, batch: Batch) -> Iterator[Row]:
        """Answers picked from choices by their likelihood."""
        model, prompts = self.model, self.plans[batch.group].prompts
        for number, job in enumerate(batch.jobs):
            result = answer(model, prompts, self.items[job.id], self.task.estimator or Estimator())
            yield {**self._row(batch, number, result), **Tally().columns(number)}

    def _row(self, batch: Batch, number: int, result: Result) -> Row:
        job, first = batch.jobs[number], batch.jobs[0]
        item = self.items[job.id]
        return {
            "id": job.id, "sample": job.sample, "task": item.task, **self.task.stamp(),
            "scores": None, **result.to_json(), "prompt": job.shown,
            "batch": f"{first.id}/{first.sample}",
        }  # fmt: skip

    def _decoder(self, batch: Batch) -> Decoder:
        """The decoder of the batch's group, warm: one answer decoded, so that first-time costs are not counted."""
        if batch.group not in self.decoders:
            plan = self.plans[batch.group]
            self.decoders[batch.group] = warm = plan.decoder(self.model)
            if untold(plan.parts.sampler):
                self.slow[batch.group] = warm = one_per_step(warm)
            list(warm.run([batch.jobs[0].request]))
        return self.decoders[batch.group]


def group_of(config: Mapping[str, Any], item: Item) -> Group:
    """gen_length, where the user sets one, rules over what the item allows."""
    stop = [config["stop"]] if isinstance(config["stop"], str) else config["stop"]
    return item.budget if config["gen_length"] is None else config["gen_length"], (*stop, *item.stop)


def _plan(config: Mapping[str, Any], group: Group) -> Plan:
    sampler = with_reference(config["sampler"])
    return Plan.of({**config, "sampler": sampler, "gen_length": group[0], "stop": list(group[1])})


def _batches(config: Mapping[str, Any], group: Group, plan: Plan, items: Mapping[str, Item]) -> Iterator[Batch]:
    jobs = [
        Job(item.id, sample, _shown(item), plan.prompts.request(item.prompt, seed_of(config["seed"], item.id, sample)))
        for item in items.values()
        if group_of(config, item) == group
        for sample in range(config["samples"])
    ]
    size = config["batch_size"]
    yield from (Batch(group, tuple(jobs[at : at + size])) for at in range(0, len(jobs), size))


def _shown(item: Item) -> str:
    """The question itself: the last message of a conversation."""
    prompt: Any = item.prompt.prompt if isinstance(item.prompt, Begun) else item.prompt
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) if isinstance(prompt, list) else item.id


def seed_of(seed: int, name: str, sample: int) -> int:
    """A sample's seed depends on nothing but the run's seed, the item and the sample's number."""
    return int.from_bytes(sha256(f"{seed}/{name}/{sample}".encode()).digest()[:7])


def _stamped(task: Task) -> dict[str, str]:
    return {f"task {name}": value for name, value in task.stamp().items()}


@lru_cache(maxsize=1)
def loaded(
    path: str, device: str, dtype: str, mask_id: int | None, kernels: str, quantize: str | None, pack: bool
) -> bundle.Model:
    """The weights; kept for the next cell of a sweep, and the last ones only, since two may not fit."""
    model = bundle.load(path, device, dtype, mask_id, kernels, quantize, pack)
    spare_threads(model.transformer)
    return model
