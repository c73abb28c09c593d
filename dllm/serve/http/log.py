"""The server's log: one line for each request, in text or JSON, and what happens beside requests."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

from dllm.serve.http.api_errors import ApiError

log = logging.getLogger("dllm.serve")
SOUND_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # names a reply and a trace's file
# A value in a sentence. A quote or a bracket after a letter is an apostrophe, or a place such as messages[0].
VALUE = re.compile(
    r"""(?<!\w)'(?:[^'\\]|\\.)*(?:'|$) | "(?:[^"\\]|\\.)*(?:"|$)
    | (?<!\w)\[[^\[\]]*(?:\]|$) | \{[^{}]*(?:\}|$)""",
    re.VERBOSE,
)
_LONGEST = 200  # characters of a cause
TEXT_FORM = "%(asctime)s %(levelname)s %(message)s"


def request_id(ident: str | None) -> str:
    """What a proxy or a client calls the request by ``x-request-id``, if that is valid, else a name of its own."""
    return ident if ident is not None and SOUND_ID.fullmatch(ident) else uuid.uuid4().hex[:16]


@dataclass
class AccessLine:
    """What a line says of one request. It holds nothing of what was asked."""

    id: str  # of the request
    method: str  # of HTTP
    path: str  # without its query
    client: str  # its address
    status: int = 0  # of HTTP
    seconds: float = 0.0  # from its arrival to the end of the reply
    prompt_tokens: int | None = None  # of the prompt; None: nothing was decoded
    completion_tokens: int | None = None  # of the answer; None: nothing was decoded
    # how it ended: done, refused, left, slow_reader, or what a failed answer says (timeout, closing, memory, ...);
    # empty: nothing was decoded
    end: str = ""
    cause: str = ""  # why it was refused or failed, without what was sent
    code: str | None = None  # the word for that in the reply
    param: str | None = None  # the field at fault

    def refuse(self, error: ApiError) -> None:
        """Note why the request is refused, or has failed."""
        self.end, self.code, self.param = self.end or "refused", error.code, error.param
        self.cause = without_values(error.message)

    def text(self) -> str:
        """The line of a text log. A path with spaces or quotes is written as JSON, so that a line has its fields."""
        path = self.path if re.fullmatch(r"[!-~]+", self.path) and '"' not in self.path else json.dumps(self.path)
        tokens = "" if self.prompt_tokens is None else f" {self.prompt_tokens}+{self.completion_tokens} tokens"
        why = ": ".join(part for part in (self.end if self.end != "done" else "", self.cause) if part)
        end = f" ({why})" if why else ""
        return f"{self.id} {self.method} {path} {self.status} {self.client}{tokens} {self.seconds:.3f} s{end}"

    def write(self) -> None:
        """Into the log."""
        level = logging.ERROR if self.status >= 500 else logging.WARNING if self.status >= 400 else logging.INFO
        log.log(level, "%s", self.text(), extra={"fields": {"event": "request", **vars(self)}})


def without_values(sentence: str) -> str:
    """The first line of a sentence without its values, in quotes, brackets or braces: they may be parts of a prompt."""
    line, before = sentence.partition("\n")[0], ""
    while line != before:
        before, line = line, VALUE.sub("…", line)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def tell(event: str, level: int, ident: str, sentence: str, **more: Any) -> None:
    """A line about a request beside its own: the sentence after its id, in JSON fields."""
    log.log(level, "%s %s", ident, sentence, extra={"fields": {"event": event, "id": ident, **more}})


class JsonLogFormatter(logging.Formatter):
    """One JSON object in a line: time (UTC), level, and the fields of a request or else a message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = getattr(record, "fields", None) or {"event": "message", "message": record.getMessage()}
        if record.exc_info:
            entry = {**entry, "traceback": self.formatException(record.exc_info)}
        stamp = f"{when}.{int(record.msecs):03d}Z"
        return json.dumps({"time": stamp, "level": record.levelname, **entry}, ensure_ascii=True)


def formatter(form: str) -> logging.Formatter:
    """Of ``task.log``: text or json."""
    return JsonLogFormatter() if form == "json" else logging.Formatter(TEXT_FORM)
