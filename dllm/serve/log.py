"""The server's log: one line for each request, in text or JSON, and what happens beside requests."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from dataclasses import dataclass

log = logging.getLogger("dllm.serve")
SOUND_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # names a reply and a trace's file
TEXT_FORM = "%(asctime)s %(levelname)s %(message)s"


def request_id(sent: str | None) -> str:
    """What a proxy or a client calls the request by ``x-request-id``, if that is sound, else a name of its own."""
    return sent if sent is not None and SOUND_ID.fullmatch(sent) else uuid.uuid4().hex[:16]


@dataclass
class AccessLine:
    """What a line says of one request. It holds nothing of what was asked."""

    id: str  # of the request
    method: str  # of HTTP
    path: str  # without its query
    client: str  # its address
    status: int = 0  # of HTTP
    seconds: float = 0.0  # from its arrival to the end of the reply
    prompt_tokens: int | None = None  # None: nothing was decoded
    completion_tokens: int | None = None  # None: nothing was decoded
    end: str = ""  # how it ended, where the status does not say it

    def text(self) -> str:
        """The line of a text log. A path with spaces or quotes is written as JSON, so that a line has its fields."""
        path = self.path if re.fullmatch(r"[!-~]+", self.path) and '"' not in self.path else json.dumps(self.path)
        told = "- tokens" if self.prompt_tokens is None else f"{self.prompt_tokens}+{self.completion_tokens} tokens"
        end = f" ({self.end})" if self.end else ""
        return f"{self.id} {self.method} {path} {self.status} {self.client} {told} {self.seconds:.3f} s{end}"

    def write(self) -> None:
        """Into the log."""
        log.info("%s", self.text(), extra={"fields": {"event": "request", **vars(self)}})


class JsonLogFormatter(logging.Formatter):
    """One JSON object in a line: time (UTC), level, and the fields of a request or else a message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told = getattr(record, "fields", None) or {"event": "message", "message": record.getMessage()}
        if record.exc_info:
            told = {**told, "traceback": self.formatException(record.exc_info)}
        stamp = f"{when}.{int(record.msecs):03d}Z"
        return json.dumps({"time": stamp, "level": record.levelname, **told}, ensure_ascii=True)


def formatter(form: str) -> logging.Formatter:
    """Of ``task.log``: text or json."""
    return JsonLogFormatter() if form == "json" else logging.Formatter(TEXT_FORM)
