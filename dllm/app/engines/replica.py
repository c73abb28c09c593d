"""One replica of the model in a worker process: it builds the evaluation it is told of, and decodes batches of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dllm.app.jobs.evaluation import Evaluation
from dllm.app.jobs.store import Key


class Replica:
    """``folder``: where the driver works, for paths that are relative to it."""

    def __init__(self, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)

    def rows(self, config: Mapping[str, Any], batches: Sequence[Sequence[Key]]) -> Iterator[tuple[Any, Any, Any]]:
        """(row, trace, environment) of each sample of these batches."""
        evaluation = built(json.dumps(config))
        wanted = {tuple(map(tuple, keys)) for keys in batches}
        for row, trace in evaluation.rows(batch for batch in evaluation.batches if batch.keys in wanted):
            yield row, trace, evaluation.environment()


@lru_cache(maxsize=1)
def built(config: str) -> Evaluation:
    """The evaluation of a configuration; kept for the next shard of the same cell."""
    return Evaluation.of(json.loads(config))
