"""One request for decisions: laid on canvases away from the event loop, read by the decode thread, answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from dllm.common.errors import TooLong
from dllm.scoring.decisions import Decisions
from dllm.scoring.decisions.canvases import TooManyCanvases, Unanswerable
from dllm.scoring.decisions.protocol import Deciding, deciding
from dllm.scoring.decisions.reading import Reading, ReadQuery
from dllm.serve.dialects.decision_fields import ParsedDecisions
from dllm.serve.engine.decoding import OVERDUE, STATUS, too_late
from dllm.serve.engine.jobs import JobFailure
from dllm.serve.engine.reads import ReadJob, ReadResult
from dllm.serve.engine.scheduler import Scheduler
from dllm.serve.http.api_errors import ApiError, as_refusal

CANVASES_PER_ROW = 32  # canvases of a request, times the rows that are decoded together
Apart = Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a function away from the event loop


async def decisions_of(
    parsed: ParsedDecisions, scheduler: Scheduler, apart: Apart, timeout: float, most: int, ident: str = ""
) -> Decisions:
    """The answers. most: canvases that they may take. Raises ApiError for questions that cannot be laid on a canvas,
    and where they cannot be read; Full and Closing as the scheduler does."""
    began, wait_seconds = time.monotonic(), 0.0
    if len(parsed.questions) > most:  # each has a canvas of its own
        raise too_many(most)
    work = deciding(parsed.prompts, scheduler.model.ids, parsed.state, parsed.questions, parsed.options, most)
    names = list(parsed.questions)
    step: list[list[ReadQuery]] | Decisions = await apart(partial(next_step, work, None, names))
    while not isinstance(step, Decisions):
        if sum(len({query.canvas for query in group}) for group in step) > most:
            raise too_many(most)
        reading = await _await_reading(ReadJob(step, began + timeout, ident), scheduler, timeout)
        wait_seconds += reading.wait_seconds
        step = await apart(partial(next_step, work, reading.readings, names))
    costs = {"waited": wait_seconds, "seconds": time.monotonic() - began}
    return replace(step, model=parsed.model, more=costs, default_names=parsed.default_names)


def next_step(
    work: Deciding, readings: list[list[Reading]] | None, names: Sequence[str]
) -> list[list[ReadQuery]] | Decisions:
    """What the request reads next, or its answer. names: of the questions, in order. Raises ApiError."""
    with as_refusal("questions"):
        try:
            return next(work) if readings is None else work.send(readings)
        except StopIteration as end:
            answer: Decisions = end.value
            return answer
        except TooLong as error:
            raise ApiError(400, str(error), "input", "context_length_exceeded") from None
        except TooManyCanvases as error:
            raise too_many(error.most) from None
        except Unanswerable as error:
            place = f"questions[{names.index(error.name)}]"
            raise ApiError(400, f"{place}: {error.sentence}", place) from None


def too_many(most: int) -> ApiError:
    return ApiError(413, str(TooManyCanvases(most)), "questions", "too_many_rows")


async def _await_reading(job: ReadJob, scheduler: Scheduler, timeout: float) -> ReadResult:
    loop, events = asyncio.get_running_loop(), asyncio.Queue[ReadResult | JobFailure]()

    def deliver(event: ReadResult | JobFailure) -> None:
        with suppress(RuntimeError):  # the event loop has gone, and with it the client
            loop.call_soon_threadsafe(events.put_nowait, event)

    with as_refusal("input"):
        number = scheduler.submit_read(job, deliver)
    try:
        event = await asyncio.wait_for(events.get(), job.deadline - time.monotonic() + OVERDUE)
    except TimeoutError:
        scheduler.abort(number)
        raise too_late(timeout) from None
    except asyncio.CancelledError:  # the client has left
        scheduler.abort(number)
        raise
    if not isinstance(event, JobFailure):
        return event
    if event.kind == "timeout":
        raise too_late(timeout)
    message = f"{event.message} The log has it as {event.id}."
    raise ApiError(STATUS.get(event.kind, 500), message, code=event.kind)
