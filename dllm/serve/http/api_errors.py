"""The refusal of a request, in the names that the request uses and in the form of its address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dllm.common.errors import Refusal, UserError, Wording
from dllm.contract.refusal import CHAT_WORDS, OPTIONS_OF_CONSTRAINTS

LONGEST = 1000  # characters of a message, which may repeat what was sent
# Options of parts that a request may give outside of their part, where it calls them so.
SHORT = {"threshold": "sampler", "steps": "sampler", "block_length": "blocks"}
ANY_GROUP = "sampler|blocks|cache|eos"
# A setting in a sentence. After a quote is a value.
SETTING_NAME = re.compile(
    rf"""(?<![\w./'"])(?:
    (?P<setting>(?:sampling\.\w+|gen_length|infill|constraint\.\w+(?:\[\d+\](?:\.parameters)?)?))(?!\w)
    | constraint=(?P<kind>\w+)
    | (?P<option>(?:{ANY_GROUP})(?:\.\w+)+)
    | (?P<group>{ANY_GROUP})(?P<inner>/inner(?:@(?P<path>[\w.]+))?)?(?==)
    )""",
    re.VERBOSE,
)


class ApiError(Exception):  # noqa: N818  an answer, no fault
    """A request that is not served. status: of HTTP. param: the field at fault. code: OpenAI's word for the reason.
    retry: seconds after which to try again; None: as for all of its status."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message if len(message) <= LONGEST else f"{message[:LONGEST]}...")
        self.status, self.message, self.param, self.code, self.retry = status, str(self), param, code, retry

    def to_json(self) -> dict[str, Any]:
        """The body of the reply."""
        kind = "rate_limit_error" if self.status == 429 else "server_error" if self.status >= 500 else (
            "invalid_request_error")  # fmt: skip
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


# Anthropic's word for an error by its status, where it is not ``invalid_request_error`` or ``api_error``.
_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def error_form(refused: ApiError, path: str, ident: str) -> dict[str, Any]:
    """An error as clients of an address read it: Anthropic's, Ollama's or OpenAI's. ident: of the request."""
    if path.startswith("/v1/messages"):
        kind = _KINDS.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": refused.message}, "request_id": ident}
    return {"error": refused.message} if path.startswith("/api/") else refused.to_json()


@contextmanager
def as_refusal(param: str | None = None, words: Wording = CHAT_WORDS) -> Iterator[None]:
    """A UserError becomes a refusal with its sentence. param: the field at fault, as chat calls it; None: what the
    sentence names. words: of the request."""
    try:
        yield
    except UserError as error:
        if isinstance(error, Refusal):
            text, named = error.text(words), words.field(error.at)
        else:
            text, named = in_requests(str(error), words), param_of(str(error), words)
        named = named if param is None else words.name(param)
        shorts = ((words.name(f"{group}.{key}"), words.name(group), key) for key, group in SHORT.items())
        named = next((short for short, owner, key in shorts
                      if named == owner and short.endswith(f"diffusion.{key}") and short in text), named)  # fmt: skip
        raise ApiError(400, text, named) from None


def in_requests(sentence: str, words: Wording = CHAT_WORDS) -> str:
    """A sentence of the command line with the settings' names in requests."""

    def sent_as(found: re.Match[str]) -> str:
        if found["kind"]:
            field = words.name("response_format")
            return words.settings.get(f"{field}={found['kind']}", f"{field} of type {found['kind']}")
        if found["inner"]:
            return words.name(found["group"]) + (found["path"] or f"{found['group']}.inner").removeprefix(
                found["group"]
            )
        return words.name(found["setting"] or found["option"] or found["group"])

    return SETTING_NAME.sub(sent_as, sentence)


def param_of(sentence: str, words: Wording = CHAT_WORDS) -> str | None:
    """The field of a request that holds the first setting a sentence of the command line names."""
    if re.match(r"((the|a) )?constraint\b", sentence):
        option = re.match(rf"constraint\.({'|'.join(OPTIONS_OF_CONSTRAINTS)})\b", sentence)
        return words.name(f"diffusion.constraint.{option[1]}" if option else "response_format")
    found = re.search(rf"\b(?:(sampling\.\w+|gen_length)|({ANY_GROUP})[./=])", sentence)
    return None if found is None else words.field(found[1] or found[2])
