"""``task=serve``, which ``dllm serve`` is short for: an OpenAI-compatible server with a playground."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dllm.app.runs.service import follow_turns, plan_of, served_names, service_of, show_log, url_of
from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from dllm.common.links import follows
from dllm.compose.auto_length import with_auto_length
from dllm.compose.config_choices import choice_of

# Settings of a run that a server reads: as the defaults of requests, or for its model and device.
SERVER_SETTINGS = frozenset({
    "task", "model", "sampler", "blocks", "cache", "eos", "sampling", "engine", "gen_length", "seed", "length",
    "runtime", "lag", "kernels", "experiment",
})  # fmt: skip


def run(config: dict[str, Any], names: Sequence[str]) -> None:
    """Serve until SIGTERM or Ctrl-C. Exit codes: 0 told to stop, 2 something to put right, 70 a dead decode thread."""
    refuse_unread(config, names)
    config = with_auto_length(config)
    try:
        from dllm.serve.http.loading import answering_meanwhile
        from dllm.serve.http.server import bound_socket, serve_until_signal, server_of
        from dllm.serve.http.settings import ServeSettings
    except ImportError:
        raise not_installed("task=serve", "Starlette", "serve") from None
    settings = ServeSettings.of(config["task"], os.environ)
    settings = replace(settings, names=served_names(config, names, settings.names))
    if choice_of("engine", config["engine"]) == "ray":
        from dllm.app.engines.ray_serve import serve_replicas

        serve_replicas(config, settings)
        return
    if follows():
        follow_turns(config)
        return
    plan = plan_of(config)
    listening = bound_socket(settings.host, settings.port)
    show_log(settings.log)
    with answering_meanwhile(listening):
        service = service_of(config, plan, settings)
    gc.collect()
    gc.freeze()  # what is loaded stays: a full collection, which all streams wait for, would take 0.16 s
    address = url_of(settings.host, listening.getsockname()[1])
    greeting = f"dllm serves {service.defaults.name}: playground at {address}, OpenAI's interface at {address}/v1"
    try:
        serve_until_signal(server_of(service.app(), service.scheduler, settings, greeting), listening)
    finally:
        if service.scheduler.lead is not None:
            service.scheduler.lead.stop()


def refuse_unread(config: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise UserError for a setting that a server would ignore."""
    for name in names:
        if name.split(".")[0].split("/")[0] not in SERVER_SETTINGS:
            raise UserError(f"{name} has no meaning for task=serve: each request asks for itself. Drop it.")
    engine = choice_of("engine", config["engine"])
    if engine not in ("local", "ray"):
        raise UserError(f"engine={engine} shares out questions, and task=serve has none. Use engine=local or ray.")
