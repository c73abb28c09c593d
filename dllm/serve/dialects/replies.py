"""Replies that no form of an answer writes: errors and models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.responses import JSONResponse

from dllm.serve.http.api_errors import ApiError, error_form

RETRY_SECONDS = {429: 1, 503: 5}  # where no one knows better; a server that closes is replaced a little later


def error_reply(error: ApiError, path: str, ident: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The reply that says so, in the form of its address, with the time to wait where trying again helps."""
    wait = error.retry or RETRY_SECONDS.get(error.status)
    more = {**(headers or {}), **({"Retry-After": str(wait)} if wait else {})}
    return JSONResponse(error_form(error, path, ident), error.status, headers=more)


def model_data(name: str, created: int, limit: int) -> dict[str, Any]:
    """A model as OpenAI's and Anthropic's clients read it. limit: tokens of a prompt and its answer together."""
    when = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "dllm",
        "max_model_len": limit,
        "type": "model",
        "display_name": name,
        "created_at": when,
        "lifecycle": "active",
        "max_input_tokens": limit,
        "max_tokens": limit,
    }
