"""Who answers the items of a task: the network of a checkpoint, or an endpoint. An evaluation scores what they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from dllm.app.runs.samples import NamedSample
from dllm.common.digest import seed_from
from dllm.common.grouping import grouped
from dllm.compose.config_choices import choice_of
from dllm.constraints.kinds import TaskConstraint
from dllm.prompts import PrefilledPrompt
from dllm.record.folders import SampleKey
from dllm.tasks.base import Item

SampleT = TypeVar("SampleT", bound=NamedSample)


class AnswerShape(NamedTuple):
    """length: tokens of the answer. stop: strings that end it."""

    length: int
    stop: tuple[str, ...]


@dataclass(frozen=True)
class Batch(Generic[SampleT]):
    """Samples that are decoded together: as one ends, the next joins. A batch is always decoded whole, so that a
    resumed run decodes what an undisturbed one does."""

    shape: AnswerShape  # length and stop texts that its answers share
    samples: tuple[SampleT, ...]  # in the order in which they join

    @property
    def keys(self) -> tuple[SampleKey, ...]:
        return tuple(sample.key for sample in self.samples)


class SampleAnswer(NamedTuple):
    batch: Batch[Any]  # in which it was decoded
    number: int  # of the sample in the batch
    columns: dict[str, Any]  # of its row: ``Result.to_json``, and counts of each forward
    trace: dict[str, Any] | None = None  # the content of its trace's file; None: none is kept


class AnswerSource(ABC):
    """Where the answers of one configuration come from. Making one checks everything, and reads no weights."""

    width: int | None  # of the network, by its description; None: it is not known
    architecture: str | None  # the same
    content: Mapping[str, str]  # identifies who answers
    draws: bool  # a seed can change an answer
    batches: list[Batch[Any]]  # every sample, in the order in which they are decoded
    place: str | None = None  # where an engine puts the weights; None: where the configuration says

    @abstractmethod
    def answers(self, batches: Iterable[Batch[Any]]) -> Iterator[SampleAnswer]:
        """Yields each as soon as it is there. Raises Undecodable, after all others, for samples that are left."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Where the samples are decoded. Loads the weights."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Whose arithmetic it is, as scorers see it. Loads the weights."""


def batches_of(samples: Iterable[tuple[AnswerShape, SampleT]], size: int) -> list[Batch[SampleT]]:
    """The batches of samples, each with its shape. size: samples of a batch."""
    return [
        Batch(shape, tuple(mine[at : at + size]))
        for shape, mine in grouped(samples).items()
        for at in range(0, len(mine), size)
    ]


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


def prompt_text(item: Item) -> str:
    """The question itself: the last message of a conversation."""
    prompt: Any = item.prompt.prompt if isinstance(item.prompt, PrefilledPrompt) else item.prompt
    if isinstance(prompt, list) and isinstance(prompt[-1], Mapping):
        prompt = str(prompt[-1]["content"])
    return prompt if isinstance(prompt, str) else item.id


def sample_seed(seed: int, name: str, sample: int) -> int:
    """A sample's seed depends on nothing but the run's seed, the item and the sample's number."""
    return seed_from(f"{seed}/{name}/{sample}")
