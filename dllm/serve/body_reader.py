"""Reads the body of a request, no further than the limit and no longer than a while."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest

from dllm.serve.api_errors import ApiError
from dllm.serve.body import MAX_BYTES, parsed


async def body_of(request: HttpRequest, seconds: float) -> bytes:
    """The body of a request that says it is JSON. seconds: in which all of it must have come. Raises ApiError for
    another type, and for a body over ``MAX_BYTES``, which are counted while they come."""
    told = request.headers.get("content-length", "")
    parsed(b"{}", request.headers.get("content-type"))  # refuses another type before anything is read
    if told.isdigit() and int(told[:20]) > MAX_BYTES:
        raise too_long()
    taken = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                taken += chunk
                if len(taken) > MAX_BYTES:
                    raise too_long()
    except TimeoutError:
        sentence = f"the body did not come within {seconds:g} seconds. Send it again."
        raise ApiError(408, sentence, code="body_too_slow") from None
    return bytes(taken)


def too_long() -> ApiError:
    return ApiError(413, f"the body has more than the limit of {MAX_BYTES} bytes. Shorten it.", code="body_too_large")
