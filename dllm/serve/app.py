"""The routes: OpenAI's chat and completions, what may be chosen, health, metrics, and the playground."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dllm.errors import UserError
from dllm.prompts import Prompts
from dllm.serve import wire
from dllm.serve.choose import Defaults
from dllm.serve.decoding import Completed, Decoding, Piece, Shot
from dllm.serve.guard import GONE, Guard, fault, log, log_fault
from dllm.serve.jobs import Closing, Full
from dllm.serve.metrics import Metrics
from dllm.serve.offered import parts_offered
from dllm.serve.playground import playground_page
from dllm.serve.reading import body_of
from dllm.serve.refused import Refused
from dllm.serve.replies import Envelope, error_reply, event_bytes, model_data
from dllm.serve.scheduler import Scheduler
from dllm.serve.settings import ServeSettings

PING_SECONDS = 15  # proxies close connections that are silent for 30 or 60
SNAPSHOT = "diffusion.snapshot"


@dataclass(frozen=True)
class Service:
    """What the handlers share. config: the settings of the model, which a trace file holds, too."""

    scheduler: Scheduler
    defaults: Defaults
    settings: ServeSettings
    config: dict[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def prompts(self) -> Prompts:
        """Of the event loop alone; the defaults' own are for the threads that read requests."""
        return replace(self.defaults.prompts, known={})

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics(self.scheduler.figures, lambda: self.scheduler.state)

    def app(self) -> Starlette:
        """The ASGI application. It starts the scheduler's thread, and closes the scheduler in the end."""
        AppStatus.disable_automatic_graceful_drain()  # streams end when the scheduler has drained, not at a signal
        cors = [Middleware(CORSMiddleware, allow_origins=list(self.settings.cors), allow_headers=["*"])]
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models), Route("/v1/models/{name:path}", self.model),
            Route("/v1/parts", self.parts), Route("/health", self.health),
            Route("/metrics", self.show_metrics), Route("/", self.playground),
        ]  # fmt: skip
        guard = Middleware(Guard, settings=self.settings, metrics=self.metrics)
        app = Starlette(
            routes=routes, middleware=[*(cors if self.settings.cors else ()), guard], lifespan=self._lifespan,
            exception_handlers={Refused: refused_reply, HTTPException: missed_reply},
        )  # fmt: skip
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.scheduler.start()
        yield
        if self.scheduler.state == "ready":  # else the process has told it, with a grace
            self.scheduler.close(0.0)

    async def chat(self, request: HttpRequest) -> Response:
        return await self._reply(request, chat=True)

    async def complete(self, request: HttpRequest) -> Response:
        return await self._reply(request, chat=False)

    async def models(self, request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [model_data(self.defaults.name, self.created)]})

    async def model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        if name != self.defaults.name:
            sentence = f"there is no model of that name here, only {self.defaults.name!r}."
            raise Refused(404, sentence, "model", "model_not_found")
        return JSONResponse(model_data(name, self.created))

    async def parts(self, request: HttpRequest) -> Response:
        return JSONResponse(await asyncio.to_thread(parts_offered))

    async def health(self, request: HttpRequest) -> Response:
        state = self.scheduler.state
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    async def show_metrics(self, request: HttpRequest) -> Response:
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def playground(self, request: HttpRequest) -> Response:
        model, prompt = self.defaults.model, str(self.config["model"].get("prompt") or "")
        chat = model.tokenizer is not None and model.tokenizer.has_chat_template
        page, headers = playground_page(self.defaults.name, prompt, self.defaults.gen_length, chat)
        return HTMLResponse(page, headers=headers)

    async def _reply(self, request: HttpRequest, chat: bool) -> Response:
        """Decode what a request asks for. Raises Refused for what cannot be."""
        body = await body_of(request, self.settings.read_timeout)
        asked = await asyncio.to_thread(wire.asked, body, chat, self.defaults)
        ident = request.state.ident
        decoding = Decoding(asked, self.scheduler, self.prompts, ident, self.settings.timeout, self.config)
        try:
            await asyncio.to_thread(decoding.submit)  # the first request of a setting makes its runner
        except Full as full:
            sentence = f"{full.waiting} requests are waiting, which is the limit. Try again later."
            raise Refused(429, sentence, code="queue_full") from None
        except Closing:
            raise Refused(503, "the server is shutting down. Try again later.", code="closing") from None
        except UserError as error:
            raise Refused(400, str(error)) from None
        answer = Answering(self, decoding, Envelope(ident, self.defaults.name, asked))
        if not asked.stream:
            return await answer.whole(request)
        return Streaming(answer, self.settings.send_timeout)


@dataclass
class Answering:
    """One reply on its way. The rows leave the batch when it ends, however it ends."""

    service: Service
    decoding: Decoding
    envelope: Envelope
    done: list[Completed] = field(default_factory=list)

    async def whole(self, request: HttpRequest) -> Response:
        """The reply in one piece, or none for a client that has left."""
        work = asyncio.create_task(self._all())
        gone = asyncio.create_task(left(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=GONE)
            work.result()
            return JSONResponse(self.envelope.completion(self.done))
        finally:
            work.cancel()
            gone.cancel()
            self.close()

    async def _all(self) -> None:
        async with aclosing(self._items()) as items:
            async for _ in items:
                pass

    async def _items(self) -> AsyncGenerator[Piece | Shot | Completed]:
        async for item in self.decoding.items():
            if isinstance(item, Completed):
                self.done.append(item)
            yield item
        self.done.sort(key=lambda choice: choice.choice)

    async def events(self) -> AsyncIterator[bytes]:
        """The reply piece by piece. An error becomes an event, since the status has been sent."""
        envelope, asked = self.envelope, self.envelope.asked
        try:
            for choice in range(len(asked.jobs)) if asked.chat else ():
                yield event_bytes(envelope.chunk(choice, role=True))
            async for item in self._items():
                if isinstance(item, Piece):
                    yield event_bytes(envelope.chunk(item.choice, item.text))
                elif isinstance(item, Shot):
                    yield event_bytes(envelope.snapshot(item, self.decoding.prompts, self.decoding.ends), SNAPSHOT)
                else:
                    yield event_bytes(envelope.last_chunk(item))
        except Exception as error:
            yield event_bytes(self._failure(error))
            return
        if asked.include_usage:
            yield event_bytes(envelope.usage_chunk(self.done))
        yield event_bytes("[DONE]")

    def _failure(self, error: Exception) -> dict[str, Any]:
        if not isinstance(error, Refused):
            log_fault(self.envelope.ident, error)
            error = fault(self.envelope.ident, error)
        return error.to_json()

    def close(self, reason: str = "failed or left") -> None:
        """Take rows that are left out of the batch, and count the request."""
        asked, metrics = self.envelope.asked, self.service.metrics
        self.decoding.abort()
        complete = len(self.done) == len(asked.jobs)
        if complete:
            metrics.answered(asked, self.decoding.first_text)
        else:
            metrics.cut.labels(reason).inc()
        log.info(
            "%s: %s, %d tokens asked, %d answered, %.3f s", self.envelope.ident, "answered" if complete else reason,
            asked.prompt_tokens, sum(choice.written for choice in self.done),
            time.monotonic() - self.decoding.began,
        )  # fmt: skip


class Streaming(EventSourceResponse):
    """Server-sent events of one reply. A reader that takes nothing for ``seconds`` is let go."""

    def __init__(self, answer: Answering, seconds: float) -> None:
        super().__init__(answer.events(), ping=PING_SECONDS, sep="\n", send_timeout=seconds)
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = "failed or left"
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            reason = "slow reader"
        finally:  # also where the reader left before the first event was asked for
            self.answer.close(reason)


async def left(request: HttpRequest) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def refused_reply(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error_reply(error)


async def missed_reply(request: HttpRequest, error: Exception) -> Response:
    """Routes that are not there, and methods that a route does not take."""
    assert isinstance(error, HTTPException)
    way_out = {
        404: "there is nothing at this address. Use /v1/chat/completions, /v1/completions, /v1/models or /v1/parts.",
        405: "this address does not take that method.",
    }  # fmt: skip
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    refused = Refused(error.status_code, way_out.get(error.status_code, error.detail), None, code)
    return error_reply(refused, error.headers)
