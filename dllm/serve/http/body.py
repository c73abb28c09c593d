"""Bodies of requests: JSON that is whole, plain and small, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NoReturn

from starlette.requests import Request as HttpRequest

from dllm.common.coerce import unwritable
from dllm.serve.http.api_errors import ApiError

OLLAMA = "/api/"  # with what the addresses of Ollama's interface begin
MAX_BYTES = 1 << 20
MAX_DEPTH = 64  # lists and objects within each other; a schema takes two for each object in an object
MAX_CONTAINERS = 1 << 14  # lists and objects; each takes up to 300 bytes and 3 µs
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
MAX_WHOLE = 2**63 - 1


def object_in(raw: bytes) -> dict[str, Any]:
    """The object in a body that ``body_of`` let in. Raises ApiError for what is not a JSON object of plain values."""
    if (count := containers_in(raw)) > MAX_CONTAINERS:
        raise _unsound(f"it holds {count} lists and objects, more than {MAX_CONTAINERS}")
    try:
        body = json.loads(raw.decode(), parse_constant=_no_number, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise _unsound(f"it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise _unsound(f"it is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise _unsound(f"it is not JSON ({error})") from None
    check_values(body)
    return dict(body)


def containers_in(raw: bytes) -> int:
    """Lists and objects of a JSON text, at most: brackets in its texts count only where there are few."""
    count = raw.count(b"[") + raw.count(b"{")
    if count <= MAX_CONTAINERS:
        return count
    bare = _TEXT.sub(b"", raw)
    return bare.count(b"[") + bare.count(b"{")


def check_values(body: Any) -> None:
    """Raise ApiError unless ``body`` is an object of what JSON can write: texts of whole characters, finite numbers of
    64 bits, true, false, null, and lists and objects of them that are not nested too deeply."""
    if not isinstance(body, Mapping):
        raise _unsound('it is not an object. Send {"messages": [...]} or {"prompt": "..."}')
    level: list[Any] = [body]  # lists and objects of one depth; a pair for each value would take 30 MB
    for _ in range(MAX_DEPTH):
        level = [value for container in level for value in _containers(container)]
        if not level:
            return
    raise _unsound(f"it is nested deeper than {MAX_DEPTH}")


def _containers(container: Any) -> Iterator[Any]:
    """The lists and objects in a list or an object, whose other values are checked."""
    for entries in (container, container.values()) if isinstance(container, Mapping) else (container,):
        kinds = set(map(type, entries))  # 260,000 numbers, or short texts, take 10 ms by their kind, and 60 one by one
        if kinds == {int} and -MAX_WHOLE <= min(entries) <= max(entries) <= MAX_WHOLE:
            continue
        if kinds == {str} and all(map(str.isascii, entries)):
            continue
        for value in entries:
            kind = type(value)
            if (kind is str and value.isascii()) or (kind is int and -MAX_WHOLE <= value <= MAX_WHOLE):
                continue
            if isinstance(value, list | Mapping):
                yield value
            else:
                _check_plain(value)


def _check_plain(value: Any) -> None:
    if isinstance(value, str):
        if (problem := unwritable(value)) is not None:
            raise _unsound(f"a text in it {problem}")
    elif isinstance(value, float) and not isfinite(value):
        raise _unsound(f"{value} is not a number of JSON")
    elif isinstance(value, int) and abs(value) > MAX_WHOLE:
        raise _unsound("a whole number in it has more than 64 bits")


def _unsound(reason: str) -> ApiError:
    return ApiError(400, f"the body cannot be read: {reason}.", None, "invalid_body")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is in one object twice")
    return out


def check_type(content_type: str | None) -> None:
    """Raise ApiError, 415, for a body that does not say that it is JSON: one that does no web page elsewhere can send,
    since its browser asks first whether it may."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, f"content-type={content_type!r} must be application/json.", None, "unsupported_media_type")


async def body_of(request: HttpRequest, seconds: float) -> bytes:
    """The body of a request. seconds: in which all of it must have come. Raises ApiError for a body over ``MAX_BYTES``,
    which are counted while they come, and for a type that is not JSON, but on Ollama's routes: from these the guard
    keeps web pages in another way."""
    content_length = request.headers.get("content-length", "")
    if not request.url.path.startswith(OLLAMA):
        check_type(request.headers.get("content-type"))
    if content_length.isdigit() and int(content_length[:20]) > MAX_BYTES:
        raise too_long()
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise too_long()
    except TimeoutError:
        sentence = f"the body did not come within {seconds:g} seconds. Send it again."
        raise ApiError(408, sentence, code="body_too_slow") from None
    return bytes(data)


def too_long() -> ApiError:
    return ApiError(413, f"the body has more than the limit of {MAX_BYTES} bytes. Shorten it.", code="body_too_large")
