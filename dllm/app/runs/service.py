"""A server's model and application from a configuration, for a process of its own or a replica of Ray's."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dllm.app.runs.plan import RunPlan, runtime_of
from dllm.common.terminal import VisibleLog
from dllm.errors import UserError

if TYPE_CHECKING:
    from dllm.serve.app import Service
    from dllm.serve.settings import ServeSettings

# What oneDNN keeps of the shapes it met: 1,024 of its own accord, 0.28 MB each. 256 are 51 numbers of rows
# (``dllm.kernels.packed`` rounds them) in five layers; one made again takes 0.2 ms.
PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
SWITCH = 5e-4  # seconds after which a thread gives way; on a GPU Python's own 5 ms are a whole turn


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

    os.environ.setdefault(*PRIMITIVES)  # read once, when the first weights are packed
    model = plan.load()
    if model.transformer.device.type == "cuda":
        sys.setswitchinterval(SWITCH)
    parts = {group: config[group] for group in ("sampler", "blocks", "cache", "eos")}
    sampling, length, seed = plan.sampling, plan.options.gen_length, plan.options.seed
    limits = settings.limits
    defaults = Defaults(
        model,
        model.name,
        **parts,
        sampling=sampling,
        gen_length=length,
        seed=seed,
        max_choices=limits.max_rows,
        max_answers=limits.max_waiting,
    )
    defaults.check()
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
    lines = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(format=lines, level=logging.WARNING, handlers=[VisibleLog(sys.stderr)])
    logging.getLogger("dllm.serve").setLevel(logging.INFO)
