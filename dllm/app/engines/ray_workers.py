"""The workers of ``engine=ray``: those that wait for a shard, and those for which the cluster still has no room."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from dllm.common.errors import UserError, first_line
from dllm.common.terminal import complain

WARN_AFTER = 30.0  # seconds without room after which a warning is printed; an actor's process takes 2 to 15 to start
BAD_STARTS = 3  # workers in a row that die before they are ready: the next one will, too
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # with which Ray colours what its errors say


class Workers:
    """Actors of Ray. One is handed work only when it has answered: Ray queues calls for an actor that it cannot place,
    without a word. start: makes an actor. wait: seconds after which a run without any worker ends. takes: what each
    asks of the cluster, in words."""

    def __init__(self, start: Callable[[], Any], count: int, wait: float, takes: str) -> None:
        self.start, self.count, self.wait, self.takes = start, count, wait, takes
        self.idle: list[Any] = []
        self.pending: dict[Any, Any] = {}  # by the reference that resolves when the actor is there
        self.since, self.bad_starts, self.has_warned = time.monotonic(), 0, False
        for _ in range(count):
            self._add()

    def _add(self) -> None:
        actor = self.start()
        self.pending[actor.ready.remote()] = actor

    def replace(self, actor: Any) -> None:
        """Start another worker in place of one that was lost, and may be half alive."""
        import ray

        ray.kill(actor)
        self.since = time.monotonic()
        self._add()

    def look(self, working: bool) -> None:
        """Take those that have become ready. working: another worker has a shard. Raises UserError when none had room
        for ``wait`` seconds, and when none can start."""
        import ray

        ready = ray.wait([*self.pending], num_returns=len(self.pending), timeout=0)[0] if self.pending else []
        for reference in ready:
            actor = self.pending.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayError as error:
                self._died_early(error)
            else:
                self.idle.append(actor)
                self.bad_starts, self.has_warned = 0, False
        self._tell_of_room(working)

    def _died_early(self, error: Exception) -> None:
        self.bad_starts += 1
        if self.bad_starts >= BAD_STARTS:
            raise UserError(
                f"engine=ray: {BAD_STARTS} workers in a row died at their start ({reason_of(error)}). "
                "Install dllm on every machine of the cluster, or use engine=local."
            )
        self._add()

    def _tell_of_room(self, working: bool) -> None:
        if working or self.idle:
            if not self.pending:
                self.since = time.monotonic()
        elif time.monotonic() - self.since > self.wait:
            way_out = "Finished samples are kept: give the same command again when there is room."
            raise UserError(f"engine=ray: {self._lack()}, for engine.wait={self.wait:g} s. {way_out}")
        if self.pending and not self.has_warned and time.monotonic() - self.since > WARN_AFTER:
            self.has_warned = True
            rest = "The others go on" if working or self.idle else f"The run ends after engine.wait={self.wait:g} s"
            complain(f"engine=ray: {self._lack()}. {rest}.")

    def _lack(self) -> str:
        import ray

        there, free = ray.cluster_resources(), ray.available_resources()
        has = " and ".join(
            f"{free.get(kind, 0):g} of {there[kind]:g} {words} free"
            for kind, words in (("CPU", "cores"), ("GPU", "GPUs"))
            if there.get(kind)
        )
        lacking = f"{len(self.pending)} of {self.count} workers have no room"
        return f"{lacking}: each takes {self.takes}, and the cluster has {has}"


def places(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    """How many workers fit on one machine. node: what it has, in Ray's words. A worker is on one machine, and one of
    less than a GPU on one GPU."""
    by_cores = int(node.get("CPU", 0) / cpus + 1e-9)
    if not gpus:
        return by_cores
    there = int(node.get("GPU", 0))
    return min(by_cores, there * int(1 / gpus + 1e-9) if gpus < 1 else int(there / gpus + 1e-9))


def reason_of(error: BaseException) -> str:
    """The first line of what an error of Ray's says, without its colours."""
    return first_line(RuntimeError(ESCAPES.sub("", str(error))))


def cause_of(error: Any) -> BaseException:
    """What a worker raised, with its own traceback as a note. error: a RayTaskError."""
    cause = error.cause
    if not isinstance(cause, BaseException):
        cause = RuntimeError(reason_of(error))
    if not isinstance(cause, UserError):
        cause.add_note(f"In a worker of Ray:\n{ESCAPES.sub('', str(error)).strip()}")
    return cause
