"""One reply on its way: in one piece, or as server-sent events. However it ends, its rows leave the batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dllm.serve.dialects.reply_events import ReplyBegun, ReplyFailed
from dllm.serve.dialects.writer import Writer
from dllm.serve.engine.decoding import Decoding
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.guard import GONE, fault, log_fault
from dllm.serve.http.log import AccessLine
from dllm.serve.http.prometheus import Metrics

DONE, LEFT, SLOW, FAILED_ANSWER = "done", "left", "slow_reader", "failed"


@dataclass
class Answering:
    """A reply, and what is done of it. Its reader calls ``whole``, or hands it to ``Streaming``."""

    metrics: Metrics  # the server's, which count this reply
    decoding: Decoding  # its choices on their way
    writer: Writer  # puts them into the form of the request
    line: AccessLine  # of the log
    failed: ApiError | None = None  # why it ended before its time

    async def whole(self, request: HttpRequest) -> Response:
        """The reply in one piece, or none for a client that has left."""
        try:
            if not await self._unless_left(self._all(), request):
                return Response(status_code=GONE)
            return JSONResponse(self.writer.whole())
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
        async with aclosing(self.decoding.events()) as events:
            async for event in events:
                self.writer.take(event)

    async def events(self) -> AsyncIterator[bytes]:
        """The reply piece by piece. An error is told there, since the status has been sent."""
        write = self.writer.write
        try:
            for piece in write(ReplyBegun()):
                yield piece
            async for event in self.decoding.events():
                for piece in write(event):
                    yield piece
        except Exception as error:
            for piece in write(ReplyFailed(self._failure(error))):
                yield piece

    def _failure(self, error: Exception) -> ApiError:
        if not isinstance(error, ApiError):
            log_fault(self.writer.ident, error)
            error = fault(self.writer.ident, error)
        self.failed = error
        return error

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
        asked, metrics, complete = self.decoding.parsed, self.metrics, self.writer.complete
        self.decoding.abort()
        if complete:
            metrics.answered(asked, self.decoding.first_text)
        else:
            metrics.cut.labels(FAILED_ANSWER if self.failed else reason).inc()
        self.line.prompt_tokens = asked.prompt_tokens
        self.line.completion_tokens = sum(
            one.end.written for one in self.writer.answers.values() if one.end is not None
        )
        self.line.end = DONE if complete else reason
        if self.failed is not None and not complete:
            self.line.end = self.failed.code or FAILED_ANSWER
            self.line.refuse(self.failed)


class Streaming(EventSourceResponse):
    """Server-sent events of one reply. A reader that takes nothing for ``seconds`` is let go."""

    def __init__(self, answer: Answering, seconds: float) -> None:
        events, writer = answer.events(), answer.writer
        super().__init__(events, media_type=writer.media_type, ping=writer.ping, sep="\n", send_timeout=seconds)
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
