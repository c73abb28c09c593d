"""Answers of a checkpoint's network.

Items whose answers differ in length or in stop strings need decoders of their own: there are a plan and a decoder for
each shape of answer. All is planned before weights are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch

from dllm.app.runs.answers import (
    AnswerShape,
    AnswerSource,
    Batch,
    SampleAnswer,
    answer_shape,
    batches_of,
    of_items,
    prompt_text,
    sample_seed,
)
from dllm.app.runs.decisions import DecisionCount
from dllm.app.runs.plan import RunPlan, spare_threads, weights_of
from dllm.app.runs.samples import PlannedSample, trace_content, warn_of_prompts
from dllm.common.errors import UserError
from dllm.compose.config_choices import choice_of
from dllm.compose.parts import build_part
from dllm.constraints.kinds import Constraint
from dllm.contract.canvas import Request
from dllm.decoder import Decoder
from dllm.loop.runner import requests_per_batch
from dllm.models import bundle
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.oracle import Oracle
from dllm.parts.samplers.static import Static
from dllm.record.bounds import GuessRecorder, lossless_minimum
from dllm.record.environment import environment_of
from dllm.record.folders import relevant
from dllm.scoring.decisions.likelihood import Estimator
from dllm.tasks.base import Item, Task
from dllm.tasks.choices import likeliest_choice


class NetworkAnswers(AnswerSource):
    """Decoded, or chosen by their likelihood. Raises UserError for what cannot work."""

    def __init__(self, config: Mapping[str, Any], task: Task, items: Mapping[str, Item]) -> None:
        self.config, self.task, self.items = config, task, items
        shapes = dict.fromkeys(answer_shape(config, item) for item in items.values())
        self.plans = {shape: _plan(config, shape) for shape in shapes}
        samples = [
            (shape, _planned(config, item, number, self.plans[shape]))
            for item in items.values()
            for shape in (answer_shape(config, item),)
            for number in range(config["samples"])
        ]
        self.batches = batches_of(samples, requests_per_batch(config["batch_size"]))
        first = next(iter(self.plans.values()))  # the checkpoint is the same in all
        self.content, described = first.content(), first.prompts.config
        self.width, self.architecture = described.width, described.architecture
        self.draws = draws(config, first.parts.sampler)
        self.decoders: dict[AnswerShape, Decoder] = {}  # those that were built so far
        # decoders with one token per step, for plans whose oracle needs a reference
        self.references: dict[AnswerShape, Decoder] = {}

    @property
    def model(self) -> bundle.Model:
        """With its weights, which the first call loads."""
        return loaded_model(**weights_of(self.config, self.place))

    @property
    def device(self) -> torch.device:
        return self.model.transformer.device

    def environment(self) -> dict[str, Any]:
        return environment_of(self.model.transformer, self.config["seed"])

    def answers(self, batches: Iterable[Batch[PlannedSample]]) -> Iterator[SampleAnswer]:
        return (answer for batch in batches for answer in self._of_batch(batch))

    def _of_batch(self, batch: Batch[PlannedSample]) -> Iterator[SampleAnswer]:
        if self.items[batch.samples[0].id].choices:
            yield from self._likeliest(batch)
            return
        decoder, count, plan = self._decoder(batch), DecisionCount(), self.plans[batch.shape]
        requests, lossless = [sample.request for sample in batch.samples], None
        if batch.shape in self.references:
            oracle, lossless = reference_oracle(self.references[batch.shape], requests)
            decoder.runner = decoder.runner.with_sampler(oracle)
        for number, result in decoder.run(requests, bool(self.config["trace"]), count):
            extra = {} if lossless is None else {"lossless": lossless[number]}
            columns = {**result.to_json(), **count.columns(number), **extra}
            trace = trace_content(batch.samples[number], result, batch.keys, plan.config)
            yield SampleAnswer(batch, number, columns, trace)

    def _likeliest(self, batch: Batch[PlannedSample]) -> Iterator[SampleAnswer]:
        model, prompts = self.model, self.plans[batch.shape].prompts
        for number, sample in enumerate(batch.samples):
            result = likeliest_choice(model, prompts, self.items[sample.id], self.task.estimator or Estimator())
            yield SampleAnswer(batch, number, {**result.to_json(), **DecisionCount().columns(number)})

    def _decoder(self, batch: Batch[PlannedSample]) -> Decoder:
        """The decoder for the batch's shape, warm: it has decoded one answer, so that no row pays first-time costs."""
        if batch.shape not in self.decoders:
            plan = self.plans[batch.shape]
            warn_of_prompts(self.model, [batch.samples[0].prompt_text])
            self.decoders[batch.shape] = warm = plan.decoder(self.model)
            if isinstance(plan.parts.sampler, Oracle) and not plan.parts.sampler.reference:
                self.references[batch.shape] = warm = single_step_decoder(warm)
            list(warm.run([batch.samples[0].request]))
        return self.decoders[batch.shape]


def draws(config: Mapping[str, Any], sampler: Sampler) -> bool:
    """Whether a seed can change an answer: tokens are drawn, or a rule, an order or what a cache keeps is."""
    settings = relevant(config)
    apart = settings.get("cache.suffix_drop", "none") != "none" or "random" in settings.values()
    return config["sampling"]["temperature"] > 0 or apart or not sampler.traits.deterministic


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


def _planned(config: Mapping[str, Any], item: Item, number: int, plan: RunPlan) -> PlannedSample:
    request = plan.prompts.request(item.prompt, sample_seed(config["seed"], item.id, number))
    request = replace(request, constraint=item_constraint(config, item, plan))
    try:
        plan.check_request(request)
    except UserError as error:
        raise UserError(f"question {item.id}: {error}") from None
    return PlannedSample(item.id, number, prompt_text(item), request)


@lru_cache(maxsize=1)
def loaded_model(**arguments: Any) -> bundle.Model:
    """The weights that ``weights_of`` names. The last ones stay loaded for the next cell of a sweep; no others do,
    since two may not fit."""
    model = bundle.load(**arguments)
    spare_threads(model.transformer)
    return model


ORACLE = f"{Oracle.__module__}.{Oracle.__name__}"


def with_reference(sampler: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sampler's configuration. An oracle without a reference gets an empty one, which each batch then fills."""
    missing = sampler["_target_"] == ORACLE and sampler["reference"] is None
    return {**sampler, "reference": []} if missing else sampler


def single_step_decoder(decoder: Decoder) -> Decoder:
    """A decoder like this one with one token per step."""
    parts = decoder.parts
    return Decoder(
        decoder.model,
        Static(),
        parts.blocks,
        parts.cache,
        parts.eos,
        gen_length=decoder.gen_length,
        batch_size=decoder.batch_size,
        sampling=replace(parts.sampling, tempered=False),
        stop=decoder.stop,
        chat=decoder.prompts.chat,
        chat_template_kwargs=decoder.prompts.chat_template_kwargs,
    )


def reference_oracle(slow: Decoder, requests: Sequence[Request]) -> tuple[Oracle, list[int]]:
    """The oracle of a batch, and each request's lossless minimum of forwards. slow: decodes one token per step."""
    guesses = GuessRecorder()
    results = dict(slow.run(requests, observe=guesses))
    numbers = range(len(requests))
    minimum = [lossless_minimum(guesses.requests.get(number, [])) for number in numbers]
    return Oracle([results[number].canvas for number in numbers]), minimum
