"""A server's model and application from a configuration, for a process of its own or a replica of Ray's."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dllm.app.runs.plan import RunPlan, runtime_of
from dllm.common.errors import UserError
from dllm.common.links import current_links
from dllm.common.terminal import VisibleLog
from dllm.models.weights.checkpoint_path import folder_label
from dllm.models.weights.shipped import shipped_models

if TYPE_CHECKING:
    from dllm.serve.engine.scheduler import Scheduler
    from dllm.serve.http.app import Service
    from dllm.serve.http.settings import ServeSettings

# What oneDNN keeps of the shapes it met: 1,024 of its own accord, 0.28 MB each. 256 are 51 numbers of rows
# (``dllm.kernels.packed`` rounds them) in five layers; one made again takes 0.2 ms.
PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
SERVED_LENGTH = 256  # masks after a prompt of a large model; a chat's answers are longer than a run's 32
QUIET = 2.0  # seconds without a request after which a server composes what later ones may choose
NOTICE_SECONDS = 2.0  # seconds in which clients hear that their server ends
SWITCH = 5e-4  # seconds after which a thread gives way; on a GPU Python's own 5 ms are a whole turn


def plan_of(config: dict[str, Any]) -> RunPlan:
    """The configuration, checked before weights are read. Raises UserError for what cannot be served."""
    plan = RunPlan.of(config)
    if plan.prompts.tokenizer is None:
        raise UserError(f"task=serve answers in text, and model {plan.prompts.name} has no tokenizer. Choose another.")
    return plan


def service_of(config: dict[str, Any], plan: RunPlan, settings: ServeSettings) -> Service:
    """The model and everything around it but the process."""
    from dllm.loop.runner import Runner
    from dllm.serve.dialects.request_parts import Defaults
    from dllm.serve.engine.best_rows import best_rows
    from dllm.serve.engine.followers import Lead
    from dllm.serve.engine.scheduler import Scheduler
    from dllm.serve.http.app import Service

    os.environ.setdefault(*PRIMITIVES)  # read once, when the first weights are packed
    model = plan.load()
    if model.transformer.device.type == "cuda":
        sys.setswitchinterval(SWITCH)
    parts = {group: config[group] for group in ("sampler", "blocks", "cache", "eos")}
    sampling, seed = plan.sampling, plan.options.seed
    length, grows = answer_length(config, plan), plan.parts.length.traits.changes
    limits = settings.limits
    defaults = Defaults(
        model,
        settings.names[0] if settings.names else model.name,
        **parts,
        sampling=sampling,
        length=config.get("length") or {},
        begin=plan.options.gen_length if grows else None,
        gen_length=length,
        seed=seed,
        max_choices=limits.max_rows,
        max_answers=limits.max_waiting,
        max_tokens=settings.max_tokens,
        fits=config["gen_length"] is None or grows,
        aliases=settings.names[1:],
        chat_template_kwargs=plan.prompts.chat_template_kwargs,
        calibration=plan.calibration,
        refuses_unknown=settings.unknown_fields == "refuse",
    )
    usual, runtime = defaults.usual(), runtime_of(config)
    model_config = {name: config[name] for name in ("model", "runtime", "lag", "kernels")}
    links = current_links()
    lead = None if links is None else Lead(links)
    if settings.max_rows is None and lead is None:
        rows = best_rows(Runner.of(model, usual.parts, runtime), usual, defaults.begin or length)
        limits = replace(limits, max_rows=rows)
    scheduler = Scheduler(model, runtime, limits, lead)
    if links is not None:
        links.on_loss = lambda _: _report_loss(scheduler)
    # 9 s that no request should wait for, nor the start. Not a daemon: one that an exit meets inside of C++ aborts it.
    threading.Thread(target=defaults.warm, args=[partial(waits_idle, scheduler)]).start()
    return Service(scheduler, defaults, settings, model_config)


def waits_idle(scheduler: Scheduler, quiet: float = QUIET) -> bool:
    """Wait until nothing has been decoded for ``quiet`` seconds; False: the server ends."""
    last, since = None, time.monotonic()
    while scheduler.state == "ready":
        figures = scheduler.figures()
        now = figures.turns, figures.read_forwards, figures.rows, figures.waiting
        if now != last:
            last, since = now, time.monotonic()
        if not (figures.rows or figures.waiting) and time.monotonic() - since >= quiet:
            return True
        time.sleep(min(quiet, 0.1))
    return False


def follow_turns(config: dict[str, Any]) -> None:
    """Take a server's turns as its rank 0 orders them, until it stops."""
    from dllm.serve.engine.followers import follow

    links = current_links()
    assert links is not None, "rank 0 leads"
    os.environ.setdefault(*PRIMITIVES)
    follow(plan_of(config).load(), runtime_of(config), links)


def _report_loss(scheduler: Scheduler) -> float:
    """Tell all clients that a rank is gone. Returns the seconds in which they hear it."""
    scheduler.fail("closing", "a rank of the model is gone, so the server ends. Ask again.")
    return NOTICE_SECONDS


def answer_length(config: Mapping[str, Any], plan: RunPlan) -> int:
    """Masks after a prompt where neither the command line nor a request says it. The mini models answer best in as
    many as they were trained on: mini-llada has 95 points of copy, sort and shuffle in 32, and 83 in 256. Where answers
    grow, those of a fixed length have at most the limit."""
    from dllm.serve.dialects.wire import FOR_THE_PROMPT

    if plan.parts.length.traits.changes:
        most = min(SERVED_LENGTH, config["length"]["limit"])
        return max(plan.options.gen_length, min(most, plan.prompts.config.max_length - FOR_THE_PROMPT))
    if config["gen_length"] is not None or plan.prompts.name in shipped_models():
        return plan.options.gen_length
    return min(SERVED_LENGTH, max(1, plan.prompts.config.max_length - FOR_THE_PROMPT))


def served_names(config: Mapping[str, Any], typed_settings: Collection[str], names: Sequence[str]) -> tuple[str, ...]:
    """What clients call the model. names: of ``task.names``. Without any, the word that was typed for ``model=``; where
    only ``model.path=`` was typed, the folder's name."""
    if names:
        return tuple(names)
    by_folder = "model.path" in typed_settings and "model" not in typed_settings
    return (folder_label(str(config["model"]["path"])),) if by_folder else (config["model"]["name"],)


def url_of(host: str, port: int) -> str:
    """Where a browser on this machine finds the server."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def show_log(form: str = "text") -> None:
    """The server's log goes to stderr, with the time; of uvicorn only what goes wrong. form: of ``task.log``."""
    from dllm.serve.http.log import formatter

    logging.basicConfig(level=logging.WARNING, handlers=[VisibleLog(formatter(form))])
    logging.getLogger("dllm.serve").setLevel(logging.INFO)
