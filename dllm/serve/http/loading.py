"""While a model loads: what the server's socket answers until the server takes it over.

A large model loads for a minute or more. A probe learns how far it is, and a client that it shall ask again, where a
socket that does not listen yet would refuse both.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from secrets import token_hex

from dllm.models.weights.load_progress import latest
from dllm.serve.http.api_errors import ApiError, error_form

BACKLOG = 128  # connections that wait to be answered
HEAD_SECONDS = 1.0  # that a request may take to say what it wants
LONGEST_HEAD = 1 << 14  # bytes of a request that are read
AGAIN = 5  # seconds after which a client shall ask again


@contextmanager
def answering_meanwhile(listening: socket.socket) -> Iterator[None]:
    """Answer what connects to ``listening`` until the context is left; the socket then belongs to its caller again."""
    listening.listen(BACKLOG)
    listening.settimeout(0.1)
    is_loaded = threading.Event()
    thread = threading.Thread(target=_serve, args=(listening, is_loaded), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_loaded.set()
        thread.join()
        listening.settimeout(None)


def _serve(listening: socket.socket, is_loaded: threading.Event) -> None:
    while not is_loaded.is_set():
        try:
            connection, _ = listening.accept()
        except OSError:  # no one came, or has gone again
            continue
        with connection, suppress(OSError):
            connection.sendall(_reply(_head(connection)))
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0.1)
            connection.recv(LONGEST_HEAD)  # a body that no one reads would have the reply thrown away


def _head(connection: socket.socket) -> bytes:
    """The head of a request, as far as it comes in time."""
    head, until = b"", time.monotonic() + HEAD_SECONDS
    while b"\r\n\r\n" not in head and len(head) < LONGEST_HEAD:
        connection.settimeout(max(0.01, until - time.monotonic()))
        if not (more := connection.recv(LONGEST_HEAD)):
            break
        head += more
    return head


def _reply(head: bytes) -> bytes:
    """The reply to a request: how far the loading is, or when to try again."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    path = words[1].partition(b"?")[0] if len(words) > 1 else b""
    kind, text = "application/json", json.dumps(loading_reply(path.decode("latin-1")))
    if path == b"/":  # of a browser
        kind, text = "text/html; charset=utf-8", _page()
    body = b"" if words[0] == b"HEAD" else text.encode()
    lines = (
        "HTTP/1.1 503 Service Unavailable",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        f"retry-after: {AGAIN}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def _page() -> str:
    """The playground's place until it is there: a page that asks again by itself."""
    return (
        '<!doctype html><meta name="color-scheme" content="light dark"><meta http-equiv="refresh" content="2">'
        f"<title>loading</title><p>The model is still loading{escape(_share())}. The playground opens by itself."
    )


def loading_reply(path: str) -> dict[str, object]:
    """The reply to a request of ``path``, with 503, in the form that its clients read."""
    state = loading_state()
    if path == "/health":
        return state
    failure = ApiError(503, f"the model is still loading{_share()}. Ask again.", code="loading")
    return error_form(failure, path, token_hex(8))


def _share() -> str:
    """How far the loading is, in brackets, where that is known."""
    state = loading_state()
    return "" if state["share"] is None else f" ({state['share']:.0%}, {state['part']})"


def loading_state() -> dict[str, object]:
    """How far it is: the share of the bytes of weights, and the part that was read last; null before the first."""
    progress = latest()
    share = None if progress is None or progress.total == 0 else round(progress.count / progress.total, 3)
    return {"status": "loading", "share": share, "part": None if progress is None else progress.part}
