"""``engine=ray`` of ``task=serve``: replicas of the whole server after Ray Serve, one for each device.

A request needs one replica from beginning to end and nothing outlives it, so Ray may send each to any free one.
A reply lost with its replica can be asked for again: the same seed gives the same reply.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dllm.app.engines.ray import Ray
from dllm.app.engines.ray_ranks import tell_followers
from dllm.app.engines.ray_workers import BAD_STARTS
from dllm.app.engines.replica_board import TELLS, Board, Teller, print_lines
from dllm.app.runs.service import plan_of, service_of, show_log, url_of
from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from dllm.common.signals import ENDING, Terminated, is_ignored
from dllm.common.terminal import say
from dllm.compose.parts import build_part
from dllm.serve.http.loading import loading_state
from dllm.serve.http.replica_app import ReplicaApp

if TYPE_CHECKING:
    from dllm.serve.http.app import Service
    from dllm.serve.http.settings import ServeSettings

APPLICATION = "dllm"
_SPARE = 10  # seconds after the grace, which Ray takes to end a replica
HEALTH_SECONDS = 5  # between two looks at a replica
REPLICAS: list[ServedReplica] = []  # of this process: Ray makes the application apart from the replica's object


class ServedReplica:
    """One server without a socket, in a process of Ray's. config, settings: as the driver composed and checked them.
    folder: the driver's working directory, to which paths may be relative. board: the ``Board``'s actor.

    While no replica takes requests, the model loads beside the application, which says how far it is. Where others take
    them, it loads before Ray sends any here.
    """

    def __init__(self, config: dict[str, Any], settings: ServeSettings, folder: str, board: Any) -> None:
        import ray

        if Path(folder).is_dir():
            os.chdir(folder)
        show_log(settings.log)
        self.service: Service | None = None
        self.failure = ""  # why the model does not load
        self.load = partial(self._load, config, settings)
        self.teller = Teller(board, settings.log, self.word)
        REPLICAS[:] = [self]
        if ray.get(board.serves.remote()):
            self.load()
        else:
            threading.Thread(target=self.load).start()

    def _load(self, config: dict[str, Any], settings: ServeSettings) -> None:
        try:
            tell_followers(config["model"], "serve", config)
            service = service_of(config, plan_of(config), settings)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
            raise
        service.metrics.everywhere = self.teller.page
        self.service = service

    def word(self) -> tuple[dict[str, Any], bytes]:
        """What the board receives: the state, and the page of metrics."""
        if self.failure:
            return {"status": "failed", "why": self.failure}, b""
        if self.service is None:
            return loading_state(), b""
        return {"status": self.service.scheduler.state}, self.service.metrics.page()

    def check_health(self) -> None:
        """Raises RuntimeError where the model does not load, or /health says failed: Ray then starts it again."""
        if self.word()[0]["status"] == "failed":
            raise RuntimeError(self.failure or "the decode thread has died")


def replica_app() -> ReplicaApp:
    """The ASGI application of this process's replica."""
    (replica,) = REPLICAS
    return ReplicaApp(lambda: replica.service, replica.teller.tell)


def serve_replicas(config: dict[str, Any], settings: ServeSettings) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises UserError where Ray is missing or the port is taken."""
    from dllm.serve.http.server import bound_socket

    engine: Ray = build_part("engine", config["engine"])
    engine.check(config)
    try:
        from ray import serve
    except ImportError:
        raise not_installed("engine=ray with task=serve", "Ray Serve", "ray", "use engine=local") from None
    plan_of(config)
    if settings.port == 0:
        raise UserError("task.port=0 is for one process: with engine=ray name a port, such as task.port=8000.")
    bound_socket(settings.host, settings.port).close()
    with replicas_behind(serve, engine, config, settings) as ready:
        stop = stop_event()
        if ready(stop):
            address = url_of(settings.host, settings.port)
            say(
                f"dllm serves {settings.names[0]} by Ray: playground at {address}, OpenAI's interface at {address}/v1",
                flush=True,
            )
            stop.wait()


@contextmanager
def replicas_behind(
    serve: Any, engine: Ray, config: dict[str, Any], settings: ServeSettings
) -> Iterator[Callable[[threading.Event], bool]]:
    """Replicas whose log goes to standard error; in the end they finish what is under way. Yields what waits until all
    have their models (``all_ready``). serve: the module ``ray.serve``."""
    import ray

    engine.connect()
    board, ended = ray.remote(num_cpus=0)(Board).remote(), threading.Event()
    printing = threading.Thread(target=print_lines, args=(board, ended), daemon=True)
    printing.start()
    try:
        yield partial(all_ready, board, start_replicas(serve, engine, config, settings, board))
    finally:
        drain_replicas(serve, settings.drain_seconds + _SPARE)
        ended.set()
        printing.join(2 * TELLS)
        serve.shutdown()
        ray.shutdown()


def stop_event() -> threading.Event:
    """Set by the first signal from now on, after which replicas drain; a second one raises Terminated, which ends that.
    Ray has handlers of its own, set when it starts, which abort the process."""
    stop = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise Terminated(number)
        stop.set()

    for sign in (signal.SIGINT, *ENDING):
        if not is_ignored(sign):
            signal.signal(sign, tell)
    return stop


def start_replicas(serve: Any, engine: Ray, config: dict[str, Any], settings: ServeSettings, board: Any) -> int:
    """How many were started; they load now, and say so when asked."""
    options, count = engine.room()
    serve.start(http_options={"host": settings.host, "port": settings.port})
    deployment = serve.deployment(
        serve.ingress(replica_app)(ServedReplica),
        name=APPLICATION,
        num_replicas=count,
        # each replica refuses by its own limits, in its own words; the proxy only bounds what it holds
        max_ongoing_requests=settings.max_connections,
        max_queued_requests=settings.max_connections,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options=options,
    )
    serve.run(deployment.bind(config, settings, str(Path.cwd()), board), name=APPLICATION, route_prefix="/")
    return count


def all_ready(board: Any, count: int, stop: threading.Event) -> bool:
    """Waits until this many replicas have their models; False where ``stop`` comes before. Raises UserError for models
    that do not load, and for replicas that die of it."""
    import ray

    while not stop.wait(TELLS):
        states = ray.get(board.states.remote())
        for why in (state["why"] for state in states if state["status"] == "failed"):
            raise UserError(f"a replica of engine=ray does not load its model: {why}")
        if sum(state["status"] == "ready" for state in states) >= count:
            return True
        if len(states) >= count + BAD_STARTS:
            raise UserError(
                f"replicas of engine=ray die while they load their models: {len(states)} were started for {count}. "
                "Give them memory (fewer by engine.replicas, a smaller model.dtype), and see Ray's session folder."
            )
    return False


def drain_replicas(serve: Any, grace: float) -> None:
    """Let replicas finish what is under way for ``grace`` seconds. The application goes before Serve: a shutdown takes
    the proxies away under its streams. Ray's own wait for it ends after 60 s."""
    until = time.monotonic() + grace
    if APPLICATION in serve.status().applications:
        serve.delete(APPLICATION, _blocking=False)
    while APPLICATION in serve.status().applications and time.monotonic() < until:
        time.sleep(0.2)
