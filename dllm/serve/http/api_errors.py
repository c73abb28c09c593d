"""The refusal of a request, in the names that the request uses and in the form of its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dllm.common.errors import Refusal, UserError, Wording
from dllm.contract.refusal import CHAT_WORDS

LONGEST = 1000  # characters of a message, which may repeat what was sent
# Options of parts that a request may give outside of their part, where it calls them so.
SHORT = {"threshold": "sampler", "steps": "sampler", "block_length": "blocks"}


class ApiError(Exception):  # noqa: N818  an answer, no fault
    """A request that is not served. status: of HTTP. param: the field at fault. code: OpenAI's word for the reason.
    retry: seconds after which to try again; None: as for all of its status. tokens: of a prompt that is too long."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry: int | None = None,
        tokens: int | None = None,
    ) -> None:
        super().__init__(message if len(message) <= LONGEST else f"{message[:LONGEST]}...")
        self.status, self.message, self.param, self.code, self.retry = status, str(self), param, code, retry
        self.tokens = tokens

    def to_json(self) -> dict[str, Any]:
        """The body of the reply."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


# Anthropic's word for an error by its status, where it is not ``invalid_request_error`` or ``api_error``.
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_form(error: ApiError, path: str, ident: str) -> dict[str, Any]:
    """An error as clients of an address read it: Anthropic's, Ollama's or OpenAI's. ident: of the request."""
    if path.startswith("/v1/messages"):
        kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": ident}
    return {"error": error.message} if path.startswith("/api/") else error.to_json()


@contextmanager
def as_refusal(param: str | None = None, words: Wording = CHAT_WORDS) -> Iterator[None]:
    """A UserError becomes a refusal with its sentence. param: the field at fault, as chat calls it; None: what the
    sentence names. words: of the request."""
    try:
        yield
    except UserError as error:
        text, field = (error.text(words), words.field(error.at)) if isinstance(error, Refusal) else (str(error), None)
        field = field if param is None else words.name(param)
        raise ApiError(400, text, field and short_field(error, field, words)) from None


def short_field(error: UserError, field: str, words: Wording) -> str:
    """The field at fault, or the short name of an option of its that is meant, if the request gave it by that."""
    places = error.places if isinstance(error, Refusal) else ()
    for key, group in SHORT.items():
        option = words.name(f"{group}.{key}")
        if f"{group}.{key}" in places and field == words.name(group) and not option.startswith(f"{field}."):
            return option
    return field
