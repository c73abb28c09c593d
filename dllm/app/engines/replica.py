"""A replica of the model in a worker process: it builds the evaluation of a configuration and decodes batches of it."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dllm.app.engines.ray_ranks import tell_followers
from dllm.app.runs.evaluation import Evaluation
from dllm.record.folders import SampleKey


class Replica:
    """folder: the driver's working directory, to which paths may be relative."""

    def __init__(self, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)

    def ready(self) -> bool:
        """Answers when the worker is there."""
        return True

    def rows(self, config: Mapping[str, Any], batches: Sequence[Sequence[SampleKey]]) -> Iterator[tuple[Any, Any, Any]]:
        """(row, trace, environment) of each sample of these batches."""
        tell_followers(config["model"], "decode", config, batches)
        yield from finished(config, batches)


def finished(config: Mapping[str, Any], batches: Sequence[Sequence[SampleKey]]) -> Iterator[tuple[Any, Any, Any]]:
    """As ``Replica.rows``, on one rank."""
    evaluation = evaluation_of(json.dumps(config))
    key_sets = {tuple(map(tuple, keys)) for keys in batches}
    for row, trace in evaluation.rows(batch for batch in evaluation.answers.batches if batch.keys in key_sets):
        yield row, trace, evaluation.answers.environment()


def decode(config: Mapping[str, Any], batches: Sequence[Sequence[SampleKey]]) -> None:
    """The same for its numbers alone: what a follower does."""
    deque(finished(config, batches), 0)


@lru_cache(maxsize=1)
def evaluation_of(config: str) -> Evaluation:
    """The evaluation of a configuration (JSON). The last one is kept for the next shard of its cell."""
    return Evaluation.of(json.loads(config))
