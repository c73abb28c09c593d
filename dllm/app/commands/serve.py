"""``task=serve``, which ``dllm serve`` is short for: an OpenAI-compatible server with a playground."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dllm.app.runs.plan import RunPlan, runtime_of
from dllm.compose.parts import choice_of
from dllm.errors import UserError, not_installed

if TYPE_CHECKING:
    from dllm.serve.app import Service
    from dllm.serve.settings import ServeSettings

# Settings of a run that a server reads: as the defaults of requests, or for its model and device.
READ = frozenset({"task", "model", "sampler", "blocks", "cache", "eos", "sampling", "engine", "gen_length", "seed",
                  "runtime", "lag", "kernels"})  # fmt: skip
SWITCH = 5e-4  # seconds after which a thread gives way; on a GPU Python's own 5 ms are a whole turn


def run(config: dict[str, Any], given: Sequence[str]) -> None:
    """Serve until SIGTERM or Ctrl-C. Exit codes: 0 told to stop, 2 something to put right, 70 a dead decode thread."""
    refuse_unread(config, given)
    try:
        from dllm.serve.server import bound_socket, serve_until_told, server_of
        from dllm.serve.settings import ServeSettings
    except ImportError:
        raise not_installed("task=serve", "Starlette", "serve") from None
    settings = ServeSettings.of(config["task"], os.environ)
    if choice_of("engine", config["engine"]) == "ray":
        from dllm.app.engines.ray_serve import serve_replicas

        serve_replicas(config, settings)
        return
    plan = plan_of(config)
    listening = bound_socket(settings.host, settings.port)
    show_log()
    service = service_of(config, plan, settings)
    address = url_of(settings.host, listening.getsockname()[1])
    greeting = f"dllm serves {service.defaults.name}: playground at {address}, OpenAI's interface at {address}/v1"
    serve_until_told(server_of(service.app(), service.scheduler, settings, greeting), listening)


def refuse_unread(config: Mapping[str, Any], given: Sequence[str]) -> None:
    """Raise UserError for a setting that a server would ignore."""
    for name in given:
        if name.split(".")[0].split("/")[0] not in READ:
            raise UserError(f"{name} has no meaning for task=serve: each request asks for itself. Drop it.")
    engine = choice_of("engine", config["engine"])
    if engine not in ("local", "ray"):
        raise UserError(f"engine={engine} shares out questions, and task=serve has none. Use engine=local or ray.")


def plan_of(config: dict[str, Any]) -> RunPlan:
    """The configuration, checked before weights are read. Raises UserError for what cannot be served."""
    plan = RunPlan.of(config)
    if plan.prompts.tokenizer is None:
        raise UserError(f"task=serve answers in text, and model {plan.prompts.name} has no tokenizer. Choose another.")
    return plan


def service_of(config: dict[str, Any], plan: RunPlan, settings: ServeSettings) -> Service:
    """The model and everything around it but the process."""
    from dllm.serve.app import Service
    from dllm.serve.choose import Defaults
    from dllm.serve.scheduler import Scheduler

    model = plan.load()
    if model.transformer.device.type == "cuda":
        sys.setswitchinterval(SWITCH)
    parts = {group: config[group] for group in ("sampler", "blocks", "cache", "eos")}
    sampling, length, seed = plan.sampling, plan.options.gen_length, plan.options.seed
    most = settings.limits.max_rows
    defaults = Defaults(
        model, model.name, **parts, sampling=sampling, gen_length=length, seed=seed, max_choices=most)
    defaults.parts.chosen({}, sampling, length)  # refuses here what would fail in every request
    threading.Thread(target=defaults.warm, daemon=True).start()  # 4 s that no request should wait for, nor the start
    kept = {"model": config["model"], "runtime": config["runtime"], "lag": config["lag"], "kernels": config["kernels"]}
    scheduler = Scheduler(model, runtime_of(config), settings.limits)
    return Service(scheduler, defaults, replace(settings, api_key_file=None), kept)


def url_of(host: str, port: int) -> str:
    """Where a browser on this machine finds the server."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def show_log() -> None:
    """The server's log goes to stderr, with the time; of uvicorn only what goes wrong."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("dllm.serve").setLevel(logging.INFO)
