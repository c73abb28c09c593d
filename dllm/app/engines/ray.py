"""``engine=ray``: replicas of the model, on one machine or a cluster, take shards of samples from one queue."""

from __future__ import annotations

import os
import secrets
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm.app.engines.base import Engine, progress_bar
from dllm.app.engines.ray_workers import Workers, cause_of, places, reason_of
from dllm.app.engines.replica import Replica
from dllm.app.runs.cells import Cell
from dllm.app.runs.folder import RunFolder
from dllm.common.errors import TooLarge, UserError, in_range
from dllm.common.installing import not_installed
from dllm.common.signals import obey_signals
from dllm.record.folders import SampleKey, key_of

TICK = 1.0  # seconds after which it is looked again for workers that have no room


@dataclass
class OpenCell:
    cell: Cell  # what it evaluates, and where
    run_folder: RunFolder  # where its rows are written
    done_keys: set[SampleKey]  # its finished samples
    shards: int  # how many of its shards are not finished
    stamped: bool = False  # its checkpoint was noted in the folder
    too_large: str = ""  # why the rest of it is not decoded


@dataclass(frozen=True)
class Shard:
    open_cell: OpenCell  # whose samples they are
    batches: tuple[tuple[SampleKey, ...], ...]  # the samples of each batch, decoded whole
    losses: int = 0  # how many workers were lost over it


class Ray(Engine):
    """replicas: null: as many as the cluster has room for. gpus, cpus: of each process; the ``model.tp`` of a replica
    are on one machine. shard: samples handed out at a time. retries: how often a shard is tried again when its worker
    is lost. wait: seconds without room for any replica after which the run ends. address: of a running cluster; null:
    Ray is started here and stopped in the end.
    """

    together = True

    def __init__(
        self,
        replicas: int | None = None,
        gpus: float = 1.0,
        cpus: float = 1.0,
        shard: int = 16,
        retries: int = 2,
        wait: float = 300.0,
        address: str | None = None,
    ) -> None:
        super().__init__()
        least = {"replicas": 1, "gpus": 0, "cpus": 0.01, "shard": 1, "retries": 0, "wait": 1}
        for (name, low), value in zip(least.items(), (replicas, gpus, cpus, shard, retries, wait), strict=True):
            in_range(f"engine.{name}", value, low)
        self.replicas, self.gpus, self.cpus, self.shard, self.retries = replicas, gpus, cpus, shard, retries
        self.wait, self.address = wait, address
        self.open_cells: list[OpenCell] = []

    def check(self, config: Mapping[str, Any]) -> None:
        try:
            import ray  # noqa: F401
        except ImportError:
            raise not_installed("engine=ray", "Ray", "ray", "use engine=local") from None
        self.on_gpu, self.ranks = config["model"]["device"] != "cpu", int(config["model"]["tp"])
        if self.ranks > 1 and self.on_gpu and self.gpus != 1:
            raise UserError(
                f"engine.gpus={self.gpus:g} with model.tp={self.ranks}: each rank takes one GPU. Set engine.gpus=1."
            )

    def run(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        self.connect()
        try:
            with progress_bar(0, 0) as self.progress:
                yield from self._work(self._shards(cells), self._workers())
        except BaseException as error:
            for open_cell in self.open_cells:
                open_cell.run_folder.__exit__(type(error), error, None)
            raise
        finally:
            import ray

            ray.shutdown()

    def connect(self) -> None:
        """Join the cluster that ``address`` or the variable RAY_ADDRESS names, or start one here."""
        import ray

        # of its own accord Ray would join whatever cluster runs on this machine
        where = self.address or os.environ.get("RAY_ADDRESS") or "local"
        if where == "local":  # its ports are open to other machines: Ray (2.59 or later) answers those with the token
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # workers import what this process can; on other machines the package has to be installed
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}}
        ray.init(address=where, runtime_env=environment, include_dashboard=False, log_to_driver=False)
        obey_signals()  # Ray sets a handler of its own, which ends in SIGABRT

    def _workers(self) -> Workers:
        import ray

        options, count = self.room()
        actor = ray.remote(Replica).options(**options)
        return Workers(lambda: actor.remote(str(Path.cwd())), count, self.wait, self.takes(options["num_gpus"]))

    def takes(self, gpus: float) -> str:
        """What a replica asks of the cluster, in words. gpus: of all its ranks."""
        each = f"engine.cpus={self.cpus:g}" + (f" and engine.gpus={self.gpus:g}" if gpus else "")
        return each if self.ranks == 1 else f"{each} for each of {self.ranks} ranks"

    def room(self) -> tuple[dict[str, float], int]:
        """What each replica asks of Ray, and how many replicas to start. ``check`` and ``connect`` were called. Raises
        UserError for more replicas than the cluster has room for."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.gpus if self.on_gpu and any(node.get("GPU") for node in nodes) else 0
        cpus, gpus = self.cpus * self.ranks, gpus * self.ranks
        room = sum(places(node, cpus, gpus) for node in nodes)
        count = self.replicas or max(room, 1)
        if count > room:
            cores, cards = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
            raise UserError(
                f"engine.replicas={self.replicas or 'null'}: there is room for {room}, since each takes "
                f"{self.takes(gpus)}, and the cluster of {len(nodes)} has {cores:g} cores and {cards:g} GPUs. "
                f"{f'Set engine.replicas={room}' if room else 'Lower them'}, or add machines."
            )
        return {"num_cpus": cpus, "num_gpus": gpus}, count

    def _shards(self, cells: Iterator[Cell]) -> Iterator[Shard | Cell]:
        """The shards of one cell after the other; the cell itself where nothing is left to do."""
        for cell in cells:
            run_folder = cell.open()
            missing = [batch.keys for batch in cell.evaluation.missing(run_folder.done_keys)]
            if not missing:
                run_folder.close()
                yield cell
                continue
            step = max(1, self.shard // max(map(len, missing)))
            open_cell = OpenCell(cell, run_folder, run_folder.done_keys, -(-len(missing) // step))
            self.open_cells.append(open_cell)
            self.progress.total += sum(map(len, missing))
            yield from (Shard(open_cell, tuple(missing[at : at + step])) for at in range(0, len(missing), step))

    def _work(self, shards: Iterator[Shard | Cell], workers: Workers) -> Iterator[Cell]:
        """Hand shards to idle workers, and write each sample as it comes. Yields the cells that are finished."""
        import ray

        again: deque[Shard] = deque()
        busy: dict[Any, tuple[Any, Shard]] = {}
        while True:
            workers.look(bool(busy))
            if workers.idle or not busy:
                shard = again.popleft() if again else next(shards, None)
                if shard is None and not busy:
                    return
                if isinstance(shard, Cell):
                    yield shard
                    continue
                if shard is not None and shard.open_cell.too_large:
                    yield from self._finished(shard)
                    continue
                if shard is not None and workers.idle:
                    self._hand_out(shard, workers, busy)
                    continue
                if shard is not None:
                    again.appendleft(shard)
            ready, _ = ray.wait([*busy, *workers.pending], num_returns=1, timeout=TICK, fetch_local=False)
            for stream in set(ready) & busy.keys():
                worker, shard = busy[stream]
                if self._take_next(stream, worker, shard, workers, again):
                    del busy[stream]
                    yield from self._finished(shard)

    def _hand_out(self, shard: Shard, workers: Workers, busy: dict[Any, tuple[Any, Shard]]) -> None:
        worker = workers.idle.pop()
        samples = worker.rows.options(num_returns="streaming")
        busy[samples.remote(shard.open_cell.cell.evaluation.config, shard.batches)] = (worker, shard)

    def _take_next(self, stream: Any, worker: Any, shard: Shard, workers: Workers, again: deque[Shard]) -> bool:
        """Write a shard's next sample. Returns whether there will be no more. Raises what a worker raised, but for what
        is too large."""
        import ray

        try:
            self._take(shard.open_cell, ray.get(next(stream)))
            return False
        except StopIteration:
            workers.idle.append(worker)
        except ray.exceptions.RayTaskError as error:  # the worker lives; its followers may wait for what it left
            workers.idle.append(worker) if self.ranks == 1 else workers.replace(worker)
            cause = cause_of(error)
            if not isinstance(cause, TooLarge):
                raise cause from None
            shard.open_cell.too_large = str(cause)
        except ray.exceptions.RayError as error:
            workers.replace(worker)
            again.extend(self._retried(shard, error))
        return True

    def _finished(self, shard: Shard) -> Iterator[Cell]:
        """Count a shard. Yields its cell after the last one."""
        open_cell = shard.open_cell
        open_cell.shards -= 1
        if not open_cell.shards:
            self.open_cells.remove(open_cell)
            open_cell.run_folder.__exit__(None, None, None)
            if open_cell.too_large:
                keys_left = [key for key in open_cell.cell.evaluation.keys if key not in open_cell.done_keys]
                self.failures.append((open_cell.cell, keys_left, open_cell.too_large))
            yield open_cell.cell

    def _take(self, open_cell: OpenCell, sample: tuple[Any, Any, Any]) -> None:
        row, trace, environment = sample
        if not open_cell.stamped:
            open_cell.run_folder.stamp(environment)
            open_cell.stamped = True
        if key_of(row) not in open_cell.done_keys:
            open_cell.run_folder.write(row, trace)
            open_cell.done_keys.add(key_of(row))
            self.progress.update()

    def _retried(self, shard: Shard, error: Exception) -> list[Shard]:
        """The rest of a shard, a batch each, so that in the end only the batch that kills workers is missing."""
        done_keys = shard.open_cell.done_keys
        batches_left = [keys for keys in shard.batches if not done_keys.issuperset(keys)]
        if shard.losses < self.retries:
            shard.open_cell.shards += len(batches_left)
            return [Shard(shard.open_cell, (keys,), shard.losses + 1) for keys in batches_left]
        reason = f"its worker was lost {shard.losses + 1} times ({reason_of(error)})"
        self.failures.append(
            (shard.open_cell.cell, [key for keys in batches_left for key in keys if key not in done_keys], reason)
        )
        return []
