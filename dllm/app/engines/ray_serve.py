"""``engine=ray`` of ``task=serve``: replicas of the whole server after Ray Serve, one for each device.

A request needs one replica from beginning to end and nothing outlives it, so Ray may send each to whichever is free.
A reply lost with its replica can be asked for again: the same seed gives the same reply.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dllm.app.engines.ray import Ray
from dllm.app.runs.service import plan_of, service_of, show_log, url_of
from dllm.common.signals import ENDING, Terminated, is_ignored
from dllm.common.terminal import say
from dllm.compose.parts import build_part
from dllm.errors import UserError, not_installed

if TYPE_CHECKING:
    from dllm.serve.app import Service
    from dllm.serve.settings import ServeSettings

APPLICATION = "dllm"
_SPARE = 10  # seconds after the grace, which Ray takes to end a replica
HEALTH_SECONDS = 5  # between two looks at a replica
SERVICES: list[Service] = []  # of this process: Ray makes the application apart from the replica's object


class ServedReplica:
    """One server without a socket, in a process of Ray's. config, settings: as the driver composed and checked them.
    folder: the driver's working directory, to which paths may be relative."""

    def __init__(self, config: dict[str, Any], settings: ServeSettings, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        show_log(settings.log)
        SERVICES[:] = [service_of(config, plan_of(config), settings)]

    def check_health(self) -> None:
        """Raises RuntimeError where /health says failed: Ray then starts the replica again."""
        if SERVICES[0].scheduler.state == "failed":
            raise RuntimeError("the decode thread has died")


def replica_app() -> Any:
    """The ASGI application of this process's replica. Ray's proxy names each request, and tells its client the name."""
    from dllm.serve.guard import without_name

    return without_name(SERVICES[0].app())


def serve_replicas(config: dict[str, Any], settings: ServeSettings) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises UserError where Ray is missing or the port is taken."""
    from dllm.serve.server import bound_socket

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
    try:
        start_replicas(serve, engine, config, settings)
        address = url_of(settings.host, settings.port)
        say(f"dllm serves {settings.names[0]} by Ray: playground at {address}, OpenAI's interface at {address}/v1",
            flush=True)  # fmt: skip
        wait_until_told()
    finally:
        stop_replicas(serve, settings.drain_seconds + _SPARE)


def wait_until_told() -> None:
    """Returns at the first signal, after which replicas drain; a second one raises Terminated, which ends that. Ray has
    handlers of its own, set when it starts, which abort the process."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        if told.is_set():
            raise Terminated(number)
        told.set()

    for sign in (signal.SIGINT, *ENDING):
        if not is_ignored(sign):
            signal.signal(sign, tell)
    told.wait()


def start_replicas(serve: Any, engine: Ray, config: dict[str, Any], settings: ServeSettings) -> None:
    """Returns when every replica has its model. serve: the module ``ray.serve``."""
    engine.connect()
    gpus, count = engine.room()
    serve.start(http_options={"host": settings.host, "port": settings.port})
    deployment = serve.deployment(
        serve.ingress(replica_app)(ServedReplica), name=APPLICATION, num_replicas=count,
        # each replica refuses by its own limits, in its own words; the proxy only bounds what it holds
        max_ongoing_requests=settings.max_connections, max_queued_requests=settings.max_connections,
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": engine.cpus, "num_gpus": gpus},
    )  # fmt: skip
    serve.run(deployment.bind(config, settings, str(Path.cwd())), name=APPLICATION, route_prefix="/")


def stop_replicas(serve: Any, grace: float) -> None:
    """Let replicas finish what is under way for ``grace`` seconds, and stop what was started here. The application goes
    first: a shutdown takes the proxies away under its streams. Ray's own wait for it ends after 60 s."""
    import ray

    if not ray.is_initialized():
        return
    try:
        until = time.monotonic() + grace
        if APPLICATION in serve.status().applications:
            serve.delete(APPLICATION, _blocking=False)
        while APPLICATION in serve.status().applications and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        serve.shutdown()
        ray.shutdown()
