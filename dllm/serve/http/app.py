"""The routes: OpenAI's chat and completions, what may be chosen, health, metrics, and the playground."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dllm.common.digest import digest
from dllm.prompts import Prompts
from dllm.serve.dialects import chat_request
from dllm.serve.dialects.answering import Answering, ClientGone, while_connected
from dllm.serve.dialects.anthropic_request import count_messages, parse_messages
from dllm.serve.dialects.decision_fields import parse_decisions
from dllm.serve.dialects.ollama_models import OllamaModels
from dllm.serve.dialects.ollama_reply import loaded_reply
from dllm.serve.dialects.ollama_request import EmptyRequest, parse_ollama
from dllm.serve.dialects.replies import error_reply, model_data
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.response_formats import formats_offered
from dllm.serve.dialects.responses import parse_response
from dllm.serve.dialects.wire import ParsedRequest
from dllm.serve.dialects.writer import Writer
from dllm.serve.engine.compiling import Compiling, SingleThread
from dllm.serve.engine.deciding import CANVASES_PER_ROW, Apart, decisions_of
from dllm.serve.engine.decoding import Decoding, too_late
from dllm.serve.engine.jobs import Closing, Full, RetryTimes
from dllm.serve.engine.scheduler import Scheduler
from dllm.serve.http.api_errors import ApiError, as_refusal
from dllm.serve.http.body import body_of, object_in
from dllm.serve.http.guard import CLIENT_CLOSED, Guard, key_in
from dllm.serve.http.log import tell
from dllm.serve.http.offered import parts_on_offer
from dllm.serve.http.playground import playground_page
from dllm.serve.http.prometheus import Metrics
from dllm.serve.http.settings import ServeSettings
from dllm.serve.http.typed import build_models, note_of

READERS = 2
LARGE_BODY, MAX_LARGE = 32 << 10, 8  # bytes of a body that takes a while to read, and how many of them wait
_T = TypeVar("_T")


class FormReader(Protocol):
    """Reads a body of one form."""

    def __call__(self, body: Mapping[str, Any], /, *, defaults: Defaults) -> ParsedRequest: ...


ANSWER_FORMS: dict[str, FormReader] = {
    "/v1/chat/completions": partial(chat_request.parse_request, chat=True),
    "/v1/completions": partial(chat_request.parse_request, chat=False),
    "/v1/responses": parse_response,
    "/v1/messages": parse_messages,
}


@dataclass(frozen=True)
class Service:
    """What the handlers share."""

    scheduler: Scheduler  # decodes
    defaults: Defaults  # of requests
    settings: ServeSettings  # of the server itself
    config: dict[str, Any]  # the settings of the model, which a trace file holds, too
    created: int = field(default_factory=lambda: int(time.time()))  # when it started, seconds since 1970

    @cached_property
    def prompts(self) -> Prompts:
        """Of the event loop alone; the defaults' own are for the threads that read requests."""
        return replace(self.defaults.prompts, known={})

    @cached_property
    def readers(self) -> ThreadPoolExecutor:
        """Threads that read requests. Few: each busy one takes its share of Python's lock from the event loop."""
        return ThreadPoolExecutor(READERS, thread_name_prefix="read")

    @cached_property
    def large(self) -> SingleThread:
        """Reads large bodies, so that small ones wait for none."""
        return SingleThread("read-large", MAX_LARGE)

    @cached_property
    def compiling(self) -> Compiling:
        limits = self.settings.limits
        return Compiling(self.scheduler.runner_of, self.settings.compile_seconds, limits.max_waiting)

    @cached_property
    def retry(self) -> RetryTimes:
        return RetryTimes()

    @cached_property
    def page(self) -> tuple[str, dict[str, str]]:
        """The playground, and its headers."""
        return playground_page(self.defaults, self.config["model"])

    @cached_property
    def openapi(self) -> dict[str, Any]:
        from dllm.serve.http.openapi import openapi_document  # what makes JSON schemas takes 30 ms to import

        return openapi_document(self.defaults.name)

    @cached_property
    def metrics(self) -> Metrics:
        lead = self.scheduler.lead
        ranks = 1 if lead is None else lead.links.size
        return Metrics(self.scheduler.figures, lambda: self.scheduler.health, self.defaults.name, ranks)

    def app(self, proxied: bool = False) -> Starlette:
        """The ASGI application. It starts the scheduler's thread, and closes the scheduler in the end. proxied: as of
        ``Guard``."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a prompt takes one thread, without Python's lock
        cors = [Middleware(CORSMiddleware, allow_origins=list(self.settings.cors), allow_headers=["*"])]
        routes = [
            *(Route(path, partial(self._reply, read=read), methods=["POST"]) for path, read in ANSWER_FORMS.items()),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/api/chat", self.ollama, methods=["POST"]),
            Route("/api/generate", self.ollama, methods=["POST"]),
            *OllamaModels(self.defaults, self.settings.read_timeout).routes,
            Route("/v1/decisions", self.decide, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/parts", self.parts),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
            Route("/", self.playground),
            Route("/openapi.json", self.show_openapi),
            Route("/docs", self.show_docs),
        ]
        guard = Middleware(Guard, settings=self.settings, metrics=self.metrics, proxied=proxied)
        app = Starlette(
            routes=routes,
            middleware=[*(cors if self.settings.cors else ()), guard],
            lifespan=self._lifespan,
            exception_handlers={ApiError: refused_reply, HTTPException: missed_reply},
        )
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.scheduler.start()
        self.readers.submit(build_models)
        yield
        if self.scheduler.state == "ready":  # else the process has told it, with a grace
            self.scheduler.close(0.0)
        self.readers.shutdown(wait=False)
        self.large.threads.shutdown(wait=False, cancel_futures=True)
        self.compiling.close()

    async def count_tokens(self, request: HttpRequest) -> Response:
        """The tokens of a conversation, without waiting for those that are decoded. Raises ApiError."""
        body = await body_of(request, self.settings.read_timeout)
        count = await self._reader(body)(lambda: count_messages(object_in(body), self.defaults))
        return JSONResponse({"input_tokens": count})

    async def ollama(self, request: HttpRequest) -> Response:
        """Answer in the form of Ollama's chat or generate. Raises ApiError."""
        try:
            return await self._reply(request, partial(parse_ollama, is_chat=request.url.path == "/api/chat"))
        except EmptyRequest as empty:
            return JSONResponse(loaded_reply(empty.name, empty.is_chat, empty.leaves))

    async def decide(self, request: HttpRequest) -> Response:
        """Answer questions by probabilities. Raises ApiError."""
        body = await self._body(request)
        apart = self._reader(body)
        questions = await apart(lambda: parse_decisions(object_in(body), self.defaults))
        ident, timeout = request.state.ident, self.settings.timeout
        most = self.settings.limits.max_rows * CANVASES_PER_ROW
        try:
            with self._queue_refusals():
                async with while_connected(request.receive):
                    answers = await decisions_of(questions, self.scheduler, apart, timeout, most, ident)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        request.state.line.prompt_tokens, request.state.line.completion_tokens = answers.input_tokens, len(answers)
        return JSONResponse({"id": f"decision-{ident}", "created": int(time.time()), **answers.to_json()})

    async def models(self, request: HttpRequest) -> Response:
        names = self.defaults.names
        page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}  # which Anthropic's clients read
        return JSONResponse({"object": "list", "data": [self._card(name) for name in names], **page})

    async def model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        if name not in self.defaults.names:
            sentence = f"there is no model of that name here, only {self.defaults.listed_names}."
            raise ApiError(404, sentence, "model", "model_not_found")
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return model_data(name, self.created, self.defaults.model.config.max_length)

    async def parts(self, request: HttpRequest) -> Response:
        return JSONResponse(await self._apart(lambda: {**parts_on_offer(), "response_format": formats_offered()}))

    async def health(self, request: HttpRequest) -> Response:
        state = self.scheduler.health
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    async def show_metrics(self, request: HttpRequest) -> Response:
        page = await asyncio.to_thread(self.metrics.everywhere, self.metrics.page())
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def playground(self, request: HttpRequest) -> Response:
        """A page for browsers, and for others the word by which Ollama's programs know a server."""
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse("Ollama is running")
        page, headers = self.page
        return HTMLResponse(page, headers=headers)

    async def show_openapi(self, request: HttpRequest) -> Response:
        return JSONResponse(self.openapi)

    async def show_docs(self, request: HttpRequest) -> Response:
        from dllm.serve.http.openapi import docs_page

        page, headers = docs_page(self.openapi)
        return HTMLResponse(page, headers=headers)

    def _reader(self, body: bytes) -> Apart:
        """What reads a body of this size. It raises ApiError where too many large ones wait."""
        return self._apart if len(body) <= LARGE_BODY else self._apart_large

    async def _apart_large(self, act: Callable[[], _T]) -> _T:
        with self._queue_refusals():
            return await self.large.run(act)

    async def _apart(self, act: Callable[[], _T]) -> _T:
        """What ``act`` returns, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, act)

    async def _body(self, request: HttpRequest) -> bytes:
        """The body of a request that finds a place. Raises ApiError."""
        body = await body_of(request, self.settings.read_timeout)
        if (waiting := self.scheduler.figures().waiting) >= self.settings.limits.max_waiting:
            raise self.full_queue(waiting)  # before the body costs anything: a crowd must not starve /health
        return body

    async def _reply(self, request: HttpRequest, read: FormReader) -> Response:
        """Decode what a request asks for. read: what its body says. Raises ApiError for what cannot be decoded."""
        body, ident = await self._body(request), request.state.ident
        parsed_request = await self._reader(body)(
            lambda: self._with_runners(read(object_in(body), defaults=self.defaults))
        )
        if unknown := parsed_request.request.unknown:
            tell("unknown_fields", logging.INFO, ident, note_of(unknown), unknown=list(unknown))
        tenant = tenant_of(self.settings.prefix_sharing, key_in(request.headers), parsed_request.jobs[0].tenant)
        parsed_request = replace(parsed_request, jobs=tuple(replace(job, tenant=tenant) for job in parsed_request.jobs))
        decoding = Decoding(parsed_request, self.scheduler, self.prompts, ident, self.settings.timeout, self.config)
        if parsed_request.jobs[0].request.constraint is not None:
            decoding.language = await self._language(decoding, request)
        with self._queue_refusals(), as_refusal(words=parsed_request.request.words):
            decoding.submit()
        writer: Writer = parsed_request.request.writer(ident, parsed_request, self.prompts)
        return Answering(self.metrics, decoding, writer, request.state.line, self.settings.send_timeout)

    def _with_runners(self, parsed_request: ParsedRequest) -> ParsedRequest:
        """The request, once what decodes it is made. Raises ApiError for parts that the runtime cannot run."""
        with as_refusal(words=parsed_request.request.words):
            for job in parsed_request.jobs:
                self.scheduler.runner_of(job.setting)
        return parsed_request

    @contextmanager
    def _queue_refusals(self) -> Iterator[None]:
        """A request that finds no place is refused."""
        try:
            yield
        except Full as full:
            raise self.full_queue(full.waiting) from None
        except Closing:
            raise ApiError(503, "the server is shutting down. Try again later.", code="closing") from None

    def full_queue(self, waiting: int) -> ApiError:
        """The refusal of a request that finds no place, with a time at which there should be one."""
        seconds = self.retry.next(self.scheduler.figures())
        sentence = f"{waiting} requests are waiting, which is the limit. Try again in {seconds} s."
        return ApiError(429, sentence, code="queue_full", retry=seconds)

    async def _language(self, decoding: Decoding, request: HttpRequest) -> object:
        """The language of a request's constraint. Raises ApiError for one that cannot be decoded, and where the time is
        up or the client has left before that is known."""
        job, seconds_left = decoding.parsed.jobs[0], decoding.began + decoding.timeout - time.monotonic()
        with as_refusal(words=decoding.parsed.request.words):
            language = await self._apart(lambda: self.compiling.at_hand(job))
            if language is not None:
                return language
            try:
                with self._queue_refusals():
                    async with asyncio.timeout(seconds_left), while_connected(request.receive):
                        return await self.compiling.compiled(job)
            except ClientGone:
                raise ApiError(CLIENT_CLOSED, "the client has left.") from None
            except TimeoutError:
                raise too_late(decoding.timeout) from None


def tenant_of(sharing: str, key: str, salt: str) -> str:
    """Who shares what was computed of a prompt, since cached tokens, and the time of a reply, tell what those have
    asked. sharing: of ``task.prefix_sharing``. key: that the request brings. salt: its ``cache_salt``; empty: none."""
    if sharing == "request" and not salt:
        return uuid.uuid4().hex
    return f"{digest(b'' if sharing == 'all' else key.encode())} {salt}"


async def refused_reply(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.state.line.refuse(error)
    return error_reply(error, request.url.path, request.state.ident)


async def missed_reply(request: HttpRequest, error: Exception) -> Response:
    """Routes that are not there, and methods that a route does not take."""
    assert isinstance(error, HTTPException)
    way_out = {
        404: "there is nothing at this address. Use /v1/chat/completions, /v1/completions, /v1/responses, "
        "/v1/messages, /v1/decisions, /v1/models, /v1/parts, or Ollama's /api/chat.",
        405: "this address does not take that method.",
    }
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    failure = ApiError(error.status_code, way_out.get(error.status_code, error.detail), None, code)
    request.state.line.refuse(failure)
    return error_reply(failure, request.url.path, request.state.ident, error.headers)
