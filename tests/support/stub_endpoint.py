"""A server on 127.0.0.1 that speaks as much of OpenAI's chat interface as a test asks, and notes what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass
class Endless:
    """A body that ends when who asked has gone."""

    chunk: bytes
    pause: float = 0.0  # seconds between two chunks
    sent: int = 0  # bytes so far, in all replies


@dataclass
class Reply:
    """What is sent back. body: text as it is, an endless one, else JSON."""

    body: object
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    after: float = 0.0  # seconds


def answer(text: str | None, **more: Any) -> Reply:
    """A whole answer of 7 tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    return Reply({"model": "stub-1", "choices": [choice], "usage": usage, **more})


@dataclass
class Stub:
    """reply: of a request's body, and of how many requests with the same question came before."""

    reply: Callable[[Body, int], Reply]
    url: str = ""
    bodies: list[Body] = field(default_factory=list)  # of every request, in the order in which they came
    headers: list[dict[str, str]] = field(default_factory=list)
    under_way: int = 0
    most: int = 0  # requests that were under way at a time
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def questions(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]

    def take(self, body: Body, headers: dict[str, str]) -> Reply:
        with self.lock:
            before = self.questions.count(body["messages"][-1]["content"])
            self.bodies.append(body)
            self.headers.append(headers)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        reply = self.reply(body, before)
        time.sleep(reply.after)
        with self.lock:
            self.under_way -= 1
        return reply


@contextmanager
def stub_endpoint(reply: Callable[[Body, int], Reply]) -> Iterator[Stub]:
    stub = Stub(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = stub.take(body, {key.lower(): value for key, value in self.headers.items()})
            if isinstance(found.body, Endless):
                self.send_without_end(found.body, found)
                return
            data = (found.body if isinstance(found.body, str) else json.dumps(found.body)).encode()
            try:
                self.send_response(found.status)
                for key, value in {"Content-Type": "application/json", **found.headers}.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # who asked has gone
                self.close_connection = True

        def send_without_end(self, body: Endless, found: Reply) -> None:
            self.close_connection = True  # its end would be the end of the body
            try:
                self.send_response(found.status)
                for key, value in found.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                while True:
                    self.wfile.write(body.chunk)
                    body.sent += len(body.chunk)
                    time.sleep(body.pause)
            except OSError:
                return

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
