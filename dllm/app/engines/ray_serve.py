"""``engine=ray`` of ``task=serve``: replicas of the whole server behind Ray Serve, one for each device.

A request needs one replica from beginning to end and nothing outlives it, so Ray may send each to whichever is free.
A reply lost with its replica can be asked for again: the same seed gives the same reply.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.app.engines.ray import Ray, replica_environment
from dllm.app.runs.service import plan_of, service_of, show_log, url_of
from dllm.common.terminal import say
from dllm.compose.parts import build_part
from dllm.errors import UserError, not_installed

if TYPE_CHECKING:
    from dllm.serve.app import Service
    from dllm.serve.settings import ServeSettings

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
        """Raises RuntimeError where /health says failed: Ray then starts the replica anew."""
        if SERVICES[0].scheduler.state == "failed":
            raise RuntimeError("the decode thread has died")


def replica_app() -> Any:
    """The ASGI application of this process's replica."""
    return SERVICES[0].app()


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
    told = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: told.set())
    start_replicas(serve, engine, config, settings)
    address = url_of(settings.host, settings.port)
    say(f"dllm serves {settings.names[0]} by Ray: playground at {address}, OpenAI's interface at {address}/v1",
        flush=True)  # fmt: skip
    try:
        told.wait()
    finally:
        stop_replicas(serve)


def start_replicas(serve: Any, engine: Ray, config: dict[str, Any], settings: ServeSettings) -> None:
    """Returns when every replica has its model. serve: the module ``ray.serve``."""
    import ray

    ray.init(address=engine.address, runtime_env=replica_environment(), include_dashboard=False, log_to_driver=False)
    gpus, room = engine.room()
    limits = settings.limits
    serve.start(http_options={"host": settings.host, "port": settings.port})
    deployment = serve.deployment(
        serve.ingress(replica_app)(ServedReplica), name="dllm", num_replicas=engine.replicas or room,
        max_ongoing_requests=limits.max_rows + limits.max_waiting, health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": engine.cpus, "num_gpus": gpus},
    )  # fmt: skip
    serve.run(deployment.bind(config, settings, str(Path.cwd())), name="dllm", route_prefix="/")


def stop_replicas(serve: Any) -> None:
    """Let replicas finish what is under way, and stop what was started here."""
    import ray

    serve.shutdown()
    ray.shutdown()
