"""One reply on its way: in one piece, or as server-sent events. However it ends, its rows leave the batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dllm.serve.api_errors import ApiError
from dllm.serve.decoding import CanvasSnapshot, Completed, Decoding, TextDelta
from dllm.serve.guard import GONE, fault, log_fault
from dllm.serve.log import AccessLine
from dllm.serve.prometheus import Metrics
from dllm.serve.replies import Envelope, event_bytes, thought_fields
from dllm.serve.tool_stream import ToolDeltas

PING_SECONDS = 15  # proxies close connections that are silent for 30 or 60
SNAPSHOT = "diffusion.snapshot"
DONE, LEFT, SLOW, FAILED_ANSWER = "done", "left", "slow_reader", "failed"


@dataclass
class Answering:
    """A reply, and what is done of it. Its reader calls ``whole``, or hands it to ``Streaming``."""

    media_type: ClassVar[str] = "text/event-stream"  # of a stream
    ping: ClassVar[int] = PING_SECONDS  # between two comments of a stream
    metrics: Metrics  # the server's, which count this reply
    decoding: Decoding  # its choices on their way
    envelope: Envelope  # what every object of the reply has in common
    line: AccessLine  # of the log
    failed: ApiError | None = None  # why it ended before its time
    done: list[Completed] = field(default_factory=list)  # the choices that are finished
    # by choice: how its text is split into content and tool calls
    deltas: dict[int, ToolDeltas] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)  # by choice: its tokens so far, if each chunk tells them

    async def whole(self, request: HttpRequest) -> Response:
        """The reply in one piece, or none for a client that has left."""
        try:
            if not await self._unless_left(self._all(), request):
                return Response(status_code=GONE)
            return JSONResponse(self.envelope.completion(self.done))
        finally:
            self.close()

    async def streamed(self, request: HttpRequest, seconds: float) -> Response:
        """The reply piece by piece, which begins once a row has joined: what fails before has a status, by which a
        proxy asks another server. seconds: as in ``Streaming``. Raises ApiError."""
        stays = False
        try:
            stays = await self._unless_left(self.decoding.begun(), request)
        finally:
            if not stays:
                self.close()
        return Streaming(self, seconds) if stays else Response(status_code=GONE)

    async def _unless_left(self, work: Coroutine[Any, Any, None], request: HttpRequest) -> bool:
        """Whether the work is done; False: the client has left before. Raises ApiError, which is what the reply failed
        with."""
        doing, gone = asyncio.create_task(work), asyncio.create_task(left(request))
        try:
            await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                with self._noted():
                    doing.result()
            return doing.done()
        finally:
            doing.cancel()
            gone.cancel()

    async def _all(self) -> None:
        async with aclosing(self._items()) as items:
            async for _ in items:
                pass

    async def _items(self) -> AsyncGenerator[TextDelta | CanvasSnapshot | Completed]:
        async for item in self.decoding.items():
            if isinstance(item, Completed):
                self.done.append(item)
            yield item
        self.done.sort(key=lambda choice: choice.choice)

    async def events(self) -> AsyncIterator[bytes]:
        """The reply piece by piece. An error becomes an event, since the status has been sent."""
        envelope, asked = self.envelope, self.envelope.parsed
        try:
            for choice in range(len(asked.jobs)) if asked.chat else ():
                yield self._with_usage(envelope.chunk(choice, role=True))
            async for item in self._items():
                if isinstance(item, TextDelta):
                    self.written[item.choice] = item.written or 0
                    for chunk in self._chunks(item.choice, item.text, item.thought):
                        yield self._with_usage(chunk)
                elif isinstance(item, CanvasSnapshot):
                    yield event_bytes(envelope.snapshot(item, self.decoding.prompts, self.decoding.ends), SNAPSHOT)
                else:
                    self.written[item.choice] = item.written
                    for chunk in self._chunks(item.choice, None):
                        yield self._with_usage(chunk)
                    yield self._with_usage(envelope.last_chunk(item))
        except Exception as error:
            yield event_bytes(self._failure(error))
            return
        if asked.include_usage:
            yield event_bytes(envelope.usage_chunk(self.done))
        yield event_bytes("[DONE]")

    def _with_usage(self, chunk: dict[str, Any]) -> bytes:
        """A chunk of text or a call on its way, with the usage so far if each is to tell it."""
        if self.envelope.parsed.usage_so_far:
            chunk["usage"] = self.envelope.usage_of(sum(self.written.values()))
        return event_bytes(chunk)

    def _chunks(self, choice: int, text: str | None, thought: bool = False) -> list[dict[str, Any]]:
        """What to send for new text of a choice; None: its end."""
        envelope, use = self.envelope, self.envelope.parsed.tools
        if thought and text is not None:
            return [envelope.delta(choice, thought_fields(text))]
        if use is None:
            return [] if text is None else [envelope.chunk(choice, text)]
        deltas = self.deltas.setdefault(choice, ToolDeltas(use, f"{envelope.ident}_{choice}"))
        return [envelope.delta(choice, delta) for delta in (deltas.finished() if text is None else deltas.fed(text))]

    def _failure(self, error: Exception) -> dict[str, Any]:
        if not isinstance(error, ApiError):
            log_fault(self.envelope.ident, error)
            error = fault(self.envelope.ident, error)
        self.failed = error
        return error.to_json()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """An ApiError is what the reply failed with."""
        try:
            yield
        except ApiError as error:
            self.failed = error
            raise

    def close(self, reason: str = LEFT) -> None:
        """Take rows that are left out of the batch, and count the request. reason: why it ends, if nothing failed."""
        asked, metrics = self.envelope.parsed, self.metrics
        self.decoding.abort()
        complete = len(self.done) == len(asked.jobs)
        if complete:
            metrics.answered(asked, self.decoding.first_text)
        else:
            metrics.cut.labels(FAILED_ANSWER if self.failed else reason).inc()
        self.line.prompt_tokens = asked.prompt_tokens
        self.line.completion_tokens = sum(choice.written for choice in self.done)
        self.line.end = DONE if complete else reason
        if self.failed is not None and not complete:
            self.line.end = self.failed.code or FAILED_ANSWER
            self.line.refuse(self.failed)


class Streaming(EventSourceResponse):
    """Server-sent events of one reply. A reader that takes nothing for ``seconds`` is let go."""

    def __init__(self, answer: Answering, seconds: float) -> None:
        events, kind = answer.events(), answer.media_type
        super().__init__(events, media_type=kind, ping=answer.ping, sep="\n", send_timeout=seconds)
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = LEFT
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            reason = SLOW
        finally:  # also where the reader left before the first event was asked for
            self.answer.close(reason)


async def left(request: HttpRequest) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
