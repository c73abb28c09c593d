"""A LanguageTool server that knows one rule, that ``teh`` is wrong: ``python fake_language_tool.py -p N``."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import parse_qs

LIMIT = 5000  # characters of a text


class Handler(BaseHTTPRequestHandler):
    failures = 0  # requests still to be answered with 503

    def do_GET(self) -> None:
        self._send(200, [{"code": "en", "longCode": "en-US"}])

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode(), keep_blank_values=True)
        text, language = form["text"][0], form["language"][0]
        if Handler.failures:
            Handler.failures -= 1
            self._send(503, {})
        elif self.path != "/v2/check" or language != "en-US":
            self._send(404, {})
        elif len(text) > LIMIT:
            self._send(413, {})
        else:
            matches = [{"message": "spelling"}] * text.count("teh")
            self._send(200, {"software": {"name": "LanguageTool", "version": "6.6"}, "matches": matches})

    def _send(self, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def serve() -> tuple[HTTPServer, str]:
    """A server in a thread, and its URL."""
    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])), Handler).serve_forever()
