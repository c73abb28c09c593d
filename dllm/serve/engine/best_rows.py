"""How many rows a model decodes together at the best rate on this machine: measured once, and kept with the processor.

A small model gains from 32 rows (1.25 times the answers of 8 on a core); a large one is bound by its products from 8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from dllm.common.coerce import is_number
from dllm.common.digest import json_digest
from dllm.common.errors import UserError
from dllm.common.machine_note import noted
from dllm.contract.canvas import Request
from dllm.loop.runner import Runner
from dllm.serve.engine.jobs import RequestParts
from dllm.serve.http.log import log

USUAL_ROWS = 8  # where nothing is measured; never fewer
BATCH_SIZES = (1, USUAL_ROWS, 16, 32)  # that are tried; one row tells how long the others take
TRIAL_SECONDS = 2.0  # that trying may take
TURNS_OF_EACH = 4  # of each size; the first computes prompts, and of the others the fastest counts
ENOUGH = 0.95  # of the best rate: fewer rows answer each client sooner
PROMPT_TOKENS = 32  # tokens


def best_rows(runner: Runner, setting: RequestParts, length: int) -> int:
    """The rows to decode together. length: of an answer. Tells the log what was taken, and why."""
    model = runner.model
    name = json_digest([model.config, model.transformer.dtype, setting.recipe, length, str(runner.runtime)])
    rates = noted_rates(noted(f"rows a second {name}", lambda: rates_by_rows(runner, length)))
    rows = fewest_at_best(rates)
    measurements = ", ".join(f"{rate:.3g} at {size}" for size, rate in sorted(rates.items())) or "nothing was measured"
    log.info(
        "at most %d rows are decoded together: rows times turns a second, %s; task.max_rows says another number",
        rows,
        measurements,
    )
    return rows


def noted_rates(note: Any) -> dict[int, float]:
    """The rates by rows of a note, which others may have written."""
    entries = note.items() if isinstance(note, Mapping) else ()
    sizes = {str(size): size for size in BATCH_SIZES}
    return {sizes[key]: rate for key, rate in entries if key in sizes and is_number(rate) and rate > 0}


def fewest_at_best(rates: Mapping[int, float]) -> int:
    """The fewest rows, from ``USUAL_ROWS`` on, whose rate is nearly the best."""
    best = max(rates.values(), default=0.0)
    good = (rows for rows, rate in rates.items() if rows >= USUAL_ROWS and rate >= ENOUGH * best)
    return min(good, default=USUAL_ROWS)


def rates_by_rows(runner: Runner, length: int) -> dict[int, float]:
    """Rows times turns a second by the size of a batch, as far as ``TRIAL_SECONDS`` reach. A larger batch is not begun
    that would take, row by row, more than is left."""
    rates, seconds, before = dict[int, float](), TRIAL_SECONDS, 0.0
    for rows in BATCH_SIZES:
        if rows > 1 and before * rows > seconds:
            break
        try:
            turns = first_turns(runner, rows, length, seconds)
        except (UserError, torch.OutOfMemoryError):
            break
        if len(turns) > 1:
            rates[rows] = rows / min(turns[1:])
        before = sum(turns) / rows
        seconds -= sum(turns)
    return rates


def first_turns(runner: Runner, rows: int, length: int, most: float) -> list[float]:
    """Seconds of the first turns, until they have taken ``most``: of all threads on a CPU, by the clock on a GPU."""
    network, ids = runner.model.transformer, runner.model.ids
    on_gpu, turns = network.device.type == "cuda", list[float]()
    usual = [
        token for token in range(PROMPT_TOKENS * 2) if token not in (ids.mask, ids.eos, ids.placeholder, *ids.stops)
    ]
    requests = [Request.answer(usual[:PROMPT_TOKENS], length, ids.placeholder) for _ in range(rows)]
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    for _, _ in zip(range(TURNS_OF_EACH), runner.turns(runner.start(requests)), strict=False):
        if on_gpu:
            torch.cuda.synchronize(network.device)
        turns.append(clock() - began)
        began = clock()
        if sum(turns) > most:
            break
    return turns
