"""``engine=ray``: replicas of the model, on one machine or a cluster, take shards of samples from one queue."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.app.engines.base import Engine, progress_bar
from dllm.app.engines.replica import Replica
from dllm.app.runs.cells import Cell
from dllm.app.runs.folder import RunFolder
from dllm.errors import UserError, first_line, not_installed
from dllm.record.folders import SampleKey, key_of


def replica_environment() -> dict[str, Any]:
    """Ray's description of a worker's process. Workers import what this process can; on other machines the package has
    to be installed."""
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}}


@dataclass
class OpenCell:
    """A cell under way."""

    cell: Cell  # what it evaluates, and where
    run_folder: RunFolder  # where its rows are written
    done: set[SampleKey]  # its finished samples
    shards: int  # how many of its shards are not finished
    stamped: bool = False  # its checkpoint was noted in the folder


@dataclass(frozen=True)
class Shard:
    """Batches of one cell, by their samples."""

    open_cell: OpenCell  # whose samples they are
    batches: tuple[tuple[SampleKey, ...], ...]  # the samples of each batch, decoded whole
    lost: int = 0  # how many workers were lost over it


class Ray(Engine):
    """replicas: null: one for each ``gpus`` GPUs of the cluster, or without GPUs for each ``cpus`` cores. shard:
    samples handed out at a time. retries: how often a shard is tried again when its worker is lost. address: of a
    running cluster; null: Ray is started here and stopped in the end.
    """

    together = True

    def __init__(
        self, replicas: int | None = None, gpus: float = 1.0, cpus: float = 1.0, shard: int = 16, retries: int = 2,
        address: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("replicas", 1 if replicas is None else replicas), ("shard", shard)):
            if value < 1:
                raise UserError(f"engine.{name}={value} must be at least 1.")
        self.replicas, self.gpus, self.cpus, self.shard, self.retries = replicas, gpus, cpus, shard, retries
        self.address = address

    def check(self, config: Mapping[str, Any]) -> None:
        try:
            import ray  # noqa: F401
        except ImportError:
            raise not_installed("engine=ray", "Ray", "ray", "use engine=local") from None
        self.on_gpu = config["model"]["device"] != "cpu"

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        import ray

        ray.init(address=self.address, runtime_env=replica_environment(), include_dashboard=False, log_to_driver=False)
        try:
            with progress_bar(0, 0) as self.progress:
                yield from self._work(self._shards(cells), self._replicas())
        finally:
            ray.shutdown()

    def _replicas(self) -> list[Any]:
        import ray

        gpus, room = self.room()
        self.actor = ray.remote(Replica).options(num_cpus=self.cpus, num_gpus=gpus)
        return [self.actor.remote(str(Path.cwd())) for _ in range(self.replicas or room)]

    def room(self) -> tuple[float, int]:
        """GPUs of each replica, and how many replicas the cluster has room for. ``check`` was called."""
        import ray

        there = ray.cluster_resources()
        gpus = self.gpus if self.on_gpu and there.get("GPU") else 0
        return gpus, max(1, int(there["GPU"] / gpus if gpus else there["CPU"] / self.cpus))

    def _shards(self, cells: Iterator[Cell]) -> Iterator[Shard | Cell]:
        """The shards of one cell after the other; the cell itself where nothing is left to do."""
        for cell in cells:
            run_folder = cell.open()
            missing = [batch.keys for batch in cell.evaluation.missing(run_folder.done)]
            if not missing:
                run_folder.close()
                yield cell
                continue
            step = max(1, self.shard // max(map(len, missing)))
            open_cell = OpenCell(cell, run_folder, run_folder.done, -(-len(missing) // step))
            self.progress.total += sum(map(len, missing))
            yield from (Shard(open_cell, tuple(missing[at : at + step])) for at in range(0, len(missing), step))

    def _work(self, shards: Iterator[Shard | Cell], idle: list[Any]) -> Iterator[Cell]:
        """Hand shards to idle replicas, and write each sample as it comes. Yields the cells that are finished."""
        import ray

        again: deque[Shard] = deque()
        busy: dict[Any, tuple[Any, Shard]] = {}
        while True:
            while idle and (shard := again.popleft() if again else next(shards, None)) is not None:
                if isinstance(shard, Cell):
                    yield shard
                    continue
                replica = idle.pop()
                samples = replica.rows.options(num_returns="streaming")
                busy[samples.remote(shard.open_cell.cell.evaluation.config, shard.batches)] = (replica, shard)
            if not busy:
                return
            (stream,), _ = ray.wait(list(busy), num_returns=1, fetch_local=False)
            replica, shard = busy[stream]
            try:
                self._take(shard.open_cell, ray.get(next(stream)))
                continue
            except StopIteration:
                idle.append(replica)
            except ray.exceptions.RayError as error:
                ray.kill(replica)  # it may be half alive
                idle.append(self.actor.remote(str(Path.cwd())))
                again.extend(self._retried(shard, error))
            del busy[stream]
            shard.open_cell.shards -= 1
            if not shard.open_cell.shards:
                shard.open_cell.run_folder.close()
                yield shard.open_cell.cell

    def _take(self, open_cell: OpenCell, found: tuple[Any, Any, Any]) -> None:
        row, trace, environment = found
        if not open_cell.stamped:
            open_cell.run_folder.stamp(environment)
            open_cell.stamped = True
        if key_of(row) not in open_cell.done:
            open_cell.run_folder.write(row, trace)
            open_cell.done.add(key_of(row))
            self.progress.update()

    def _retried(self, shard: Shard, error: Exception) -> list[Shard]:
        """The rest of a shard, a batch each, so that in the end only the batch that kills workers is missing."""
        done = shard.open_cell.done
        left = [keys for keys in shard.batches if not done.issuperset(keys)]
        if shard.lost < self.retries:
            shard.open_cell.shards += len(left)
            return [Shard(shard.open_cell, (keys,), shard.lost + 1) for keys in left]
        reason = f"its worker was lost {shard.lost + 1} times ({first_line(error)})"
        self.failures.append((shard.open_cell.cell, [key for keys in left for key in keys if key not in done], reason))
        return []
