"""One reply on its way: in one piece, or as server-sent events. However it ends, its rows leave the batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dllm.serve.dialects.reply_events import ReplyFailure, ReplyStart
from dllm.serve.dialects.writer import Writer
from dllm.serve.engine.decoding import Decoding
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.guard import CLIENT_CLOSED, fault, log_fault
from dllm.serve.http.log import AccessLine
from dllm.serve.http.prometheus import Metrics

DONE, CLIENT_LEFT, SLOW, FAILED_ANSWER = "done", "left", "slow_reader", "failed"
# Of streams: proxies hand each piece on as it comes, and keep none.
STREAM_HEADERS = {"Cache-Control": "no-store", "Connection": "keep-alive", "X-Accel-Buffering": "no"}


class Answering(Response):
    """The reply to one request, as its ``writer`` writes it. A reader that takes nothing for ``seconds`` is let go."""

    def __init__(self, metrics: Metrics, decoding: Decoding, writer: Writer, line: AccessLine, seconds: float) -> None:
        self.metrics, self.decoding, self.writer, self.line, self.seconds = metrics, decoding, writer, line, seconds
        self.failure: ApiError | None = None  # why it ended before its time
        self.has_begun, self.background, self.status_code, self.media_type = False, None, 200, writer.media_type
        self.init_headers(STREAM_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason, streams = CLIENT_LEFT, self.decoding.parsed.request.stream
        try:
            async with while_connected(receive):
                await (self._stream(send) if streams else self._whole())
            if not streams:
                await JSONResponse(self.writer.whole())(scope, receive, send)
        except ApiError as error:
            self.failure = error
            raise
        except ClientGone:
            if not self.has_begun:
                await Response(status_code=CLIENT_CLOSED)(scope, receive, send)
        except SlowReader:
            reason = SLOW
        finally:
            self._close(reason)

    async def _whole(self) -> None:
        """Take all of the reply in. Raises ApiError."""
        while self.decoding.numbers:
            for event in await self.decoding.news() or ():
                self.writer.take(event)

    async def _stream(self, send: Send) -> None:
        """The reply piece by piece, which begins once a row has joined: what fails before has a status, by which a
        proxy asks another server. What has come by then goes in one piece. Raises ApiError before, and SlowReader."""
        await self.decoding.first_turn()
        self.has_begun = True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pieces = list(self.writer.write(ReplyStart()))
        while self.decoding.numbers and self.failure is None:
            if pieces:
                await self._send(send, pieces)
            pieces = await self._pieces()
        await self._send(send, pieces, more=False)

    async def _pieces(self) -> list[bytes]:
        """The next events. An error is one of them, since the status has been sent."""
        pieces: list[bytes] = []
        try:
            events = await self.decoding.news(self.writer.ping)
            if events is None:  # proxies close connections that are silent
                return [f": ping - {datetime.now(UTC)}\n\n".encode()]
            for event in events:
                pieces += self.writer.write(event)
        except Exception as error:
            if not isinstance(error, ApiError):
                log_fault(self.writer.ident, error)
                error = fault(self.writer.ident, error)
            self.failure = error
            pieces += self.writer.write(ReplyFailure(error))
        return pieces

    async def _send(self, send: Send, pieces: Sequence[bytes], more: bool = True) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": more})
        except TimeoutError:
            raise SlowReader from None

    def _close(self, reason: str) -> None:
        """Take rows that are left out of the batch, and count the request. reason: why it ends, if nothing failed."""
        parsed, metrics, complete = self.decoding.parsed, self.metrics, self.writer.complete
        self.decoding.abort()
        if complete:
            metrics.count_answer(parsed, self.decoding.first_text)
        else:
            metrics.cut.labels(FAILED_ANSWER if self.failure else reason).inc()
        self.line.prompt_tokens = parsed.prompt_tokens
        self.line.completion_tokens = sum(
            choice.end.token_count for choice in self.writer.answers.values() if choice.end is not None
        )
        self.line.end = DONE if complete else reason
        if self.failure is not None and not complete:
            self.line.end = self.failure.code or FAILED_ANSWER
            self.line.refuse(self.failure)


class ClientGone(Exception):  # noqa: N818  no fault
    """The client has closed the connection."""


class SlowReader(Exception):  # noqa: N818
    """The client takes nothing of a stream."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """A block that ends with ClientGone once the client has closed the connection."""
    block, is_closed = asyncio.current_task(), False
    assert block is not None, "a request is a task"

    async def watch() -> None:
        nonlocal is_closed
        while (await receive())["type"] != "http.disconnect":
            pass
        is_closed = True
        block.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if is_closed and not block.uncancel():
            raise ClientGone from None
        raise
    finally:
        watching.cancel()
