"""``engine=ray``: replicas of the model, on one machine or a cluster, take shards of samples from one queue."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.app.engines.base import Engine, bar
from dllm.app.engines.replica import Replica
from dllm.app.jobs.cells import Cell
from dllm.app.jobs.store import Key, Store, key_of
from dllm.errors import UserError


@dataclass
class Open:
    """A cell in the works: its folder, what is done, and how many units of it are still out."""

    cell: Cell
    store: Store
    done: set[Key]
    units: int
    stamped: bool = False


@dataclass(frozen=True)
class Unit:
    """Batches of one cell, by the samples they hold. ``failed``: how often a worker was lost over it."""

    of: Open
    batches: tuple[tuple[Key, ...], ...]
    failed: int = 0


class Ray(Engine):
    """replicas: null: one for each ``gpus`` GPUs of the cluster, or without GPUs for each ``cpus`` cores. shard:
    samples handed out at a time. retries: how often a unit is tried again when its worker is lost. address: of a
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
            raise UserError("engine=ray needs Ray: pip install 'dllm[ray]', or use engine=local.") from None
        self.on_gpu = config["model"]["device"] != "cpu"

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        import ray

        # Workers import what this process can; on other machines the package has to be installed.
        place = {"env_vars": {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}}
        ray.init(address=self.address, runtime_env=place, include_dashboard=False, log_to_driver=False)
        try:
            with bar(0, 0) as self.progress:
                yield from self._work(self._units(cells), self._replicas())
        finally:
            ray.shutdown()

    def _replicas(self) -> list[Any]:
        import ray

        there = ray.cluster_resources()
        gpus = self.gpus if self.on_gpu and there.get("GPU") else 0
        room = there["GPU"] / gpus if gpus else there["CPU"] / self.cpus
        self.actor = ray.remote(Replica).options(num_cpus=self.cpus, num_gpus=gpus)
        return [self.actor.remote(str(Path.cwd())) for _ in range(self.replicas or max(1, int(room)))]

    def _units(self, cells: Iterator[Cell]) -> Iterator[Unit | Cell]:
        """Units of one cell after the other; a cell itself where nothing is left to do."""
        for cell in cells:
            store = cell.open()
            missing = [batch.keys for batch in cell.evaluation.missing(store.done)]
            if not missing:
                store.close()
                yield cell
                continue
            step = max(1, self.shard // cell.evaluation.config["batch_size"])
            work = Open(cell, store, store.done, -(-len(missing) // step))
            self.progress.total += sum(map(len, missing))
            yield from (Unit(work, tuple(missing[at : at + step])) for at in range(0, len(missing), step))

    def _work(self, units: Iterator[Unit | Cell], idle: list[Any]) -> Iterator[Cell]:
        """Hand units to idle replicas, and take each sample as it comes."""
        import ray

        again: deque[Unit] = deque()
        busy: dict[Any, tuple[Any, Unit]] = {}
        while True:
            while idle and (unit := again.popleft() if again else next(units, None)) is not None:
                if isinstance(unit, Cell):
                    yield unit
                    continue
                replica = idle.pop()
                samples = replica.rows.options(num_returns="streaming")
                busy[samples.remote(unit.of.cell.evaluation.config, unit.batches)] = (replica, unit)
            if not busy:
                return
            (stream,), _ = ray.wait(list(busy), num_returns=1, fetch_local=False)
            replica, unit = busy[stream]
            try:
                self._take(unit.of, ray.get(next(stream)))
                continue
            except StopIteration:
                idle.append(replica)
            except ray.exceptions.RayError as error:
                ray.kill(replica)  # whatever is left of it
                idle.append(self.actor.remote(str(Path.cwd())))
                again.extend(self._retried(unit, error))
            del busy[stream]
            unit.of.units -= 1
            if not unit.of.units:
                unit.of.store.close()
                yield unit.of.cell

    def _take(self, work: Open, found: tuple[Any, Any, Any]) -> None:
        row, trace, environment = found
        if not work.stamped:
            work.store.stamp(environment)
            work.stamped = True
        if key_of(row) not in work.done:
            work.store.write(row, trace)
            work.done.add(key_of(row))
            self.progress.update()

    def _retried(self, unit: Unit, error: Exception) -> list[Unit]:
        """What is left of a unit, a batch each, so that in the end only the one that costs workers is missing."""
        done = unit.of.done
        left = [keys for keys in unit.batches if not done.issuperset(keys)]
        if unit.failed < self.retries:
            unit.of.units += len(left)
            return [Unit(unit.of, (keys,), unit.failed + 1) for keys in left]
        reason = f"its worker was lost {unit.failed + 1} times ({str(error).strip().splitlines()[0]})"
        self.failures.append((unit.of.cell, [key for keys in left for key in keys if key not in done], reason))
        return []
