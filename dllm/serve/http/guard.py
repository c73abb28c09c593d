"""What every request passes: the name that the server was called by, the key, its line of the log, and the net below
everything."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import time
import traceback
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dllm.serve.dialects.replies import error_reply
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.api_keys import Keys
from dllm.serve.http.body import OLLAMA
from dllm.serve.http.log import AccessLine, log, request_id
from dllm.serve.http.prometheus import Metrics
from dllm.serve.http.settings import EVERYWHERE, LOOPBACK, ServeSettings

CLIENT_CLOSED = 499  # nginx's number for a client that left before its reply
APPLICATIONS = ("app", "file", "tauri", "vscode-webview", "vscode-file")  # schemes of pages that no site has
PAGES = ("/", "/docs")  # that people open
CHALLENGE = {"WWW-Authenticate": 'Basic realm="dllm", charset="UTF-8"'}  # a browser asks for it, and remembers it


class Guard:
    """Names each request (``x-request-id``), checks host and key, turns what no handler caught into a 500, and writes a
    line of the log, which never holds what was asked. One name is in header, error and log. proxied: a proxy has named
    the request, and says so in the reply itself."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, proxied: bool) -> None:
        self.app, self.settings, self.metrics, self.proxied = app, settings, metrics, proxied
        self.keys = Keys(settings.api_key, settings.api_key_file)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        ident, began, status = request_id(Headers(scope=scope).get("x-request-id")), time.monotonic(), 0
        client = scope.get("client")  # after a proxy, the proxy
        line = AccessLine(ident, scope["method"], scope["path"], str(client[0]) if client else "-")
        scope.setdefault("state", {}).update(ident=ident, line=line)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not self.proxied:
                    MutableHeaders(scope=message)["x-request-id"] = ident
                if scope["path"].startswith("/v1/messages"):
                    MutableHeaders(scope=message)["request-id"] = ident  # which Anthropic's clients read
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self.app(scope, receive, sending)
            else:
                line.refuse(refusal)
                headers = CHALLENGE if refusal.status == 401 and scope["path"] in PAGES else None
                await error_reply(refusal, scope["path"], ident, headers)(scope, receive, sending)
        except ClientDisconnect:
            status = CLIENT_CLOSED
        except Exception as error:
            log_fault(ident, error)
            line.refuse(fault(ident, error))
            if not status:
                await error_reply(fault(ident, error), scope["path"], ident)(scope, receive, sending)
        finally:
            line.status, line.seconds = status, round(time.monotonic() - began, 3)
            line.write()
            self.metrics.count_reply(scope["path"], status, line.seconds)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if scope["path"] == "/health":  # load balancers and probes ask for it by an address
            return None
        headers, names = Headers(scope=scope), self.settings.hostnames
        if scope["path"].startswith(OLLAMA) and is_foreign(scope["method"], headers, self.settings.cors):
            sentence = "a web page of another site may not use this address. task.cors=[ORIGIN] lets it in."
            return ApiError(403, sentence, code="foreign_origin")
        host = without_port(headers.get("host", ""))
        is_known = names is None or host in names or (self.settings.needs_key and is_address(host))
        if names is not None and not is_known:
            hosts = ", ".join(sorted(names))
            sentence = f"this server answers to {hosts}, and was called by another name. task.hosts adds one."
            return ApiError(421, sentence, code="unknown_host")
        if not self.settings.needs_key or self.keys.opens(key_in(headers)):
            return None
        sentence = "the API key is missing or wrong. Send it as the header Authorization: Bearer KEY."
        return ApiError(401, sentence, code="invalid_api_key")


def is_foreign(method: str, headers: Headers, origins: Collection[str]) -> bool:
    """Whether a web page of another site asks, where a body may have any type, so that its browser does not ask first.
    Browsers say of every POST where its page is from. As with Ollama, pages of this machine and of applications are at
    home here. origins: origins of ``task.cors``."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None:
        return site == "cross-site" and method not in ("GET", "HEAD")
    scheme, _, place = origin.lower().partition("://")
    ours = place == headers.get("host", "").lower() or without_port(place) in (*LOOPBACK, *EVERYWHERE)
    return not (ours or scheme in APPLICATIONS or origin in origins or site == "same-origin")


def is_address(host: str) -> bool:
    """Whether a host is an IP address in figures, which no web page can point elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_port(host: str) -> str:
    """The name or address of a Host header: ``[::1]:80`` is ``::1``."""
    name = host.strip().lower()
    if name.startswith("["):
        address, closes, port = name[1:].partition("]")
        return address if closes and (not port or (port[0] == ":" and port[1:].isdigit())) else name
    return name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and ":" in name else name


def key_in(headers: Headers) -> str:
    """The key that a request brings, in OpenAI's way, in Anthropic's, or as the password that a browser asked for."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get("x-api-key", "").strip()


def fault(ident: str, error: BaseException) -> ApiError:
    """What a client learns of a mistake of ours."""
    sentence = f"the server failed ({type(error).__name__}). Its log has this as {ident}."
    return ApiError(500, sentence, code="internal_error")


def log_fault(ident: str, error: BaseException) -> None:
    """Where it failed. Not what the error says: that may quote a prompt."""
    log.error("%s: %s\n%s", ident, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
