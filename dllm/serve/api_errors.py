"""The refusal of a request, in OpenAI's form and in the names that the request uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dllm.contract.refusal import CHAT_WORDS, OPTIONS_OF_CONSTRAINTS
from dllm.errors import Refusal, UserError

LONGEST = 1000  # characters of a message, which may repeat what was sent
# What requests call the settings that sentences of the command line name.
IN_REQUESTS = {
    "sampling.temperature": "temperature", "sampling.top_p": "top_p", "sampling.top_k": "top_k",
    "sampling.guidance": "diffusion.guidance", "sampling.guidance_against": "diffusion.guidance_against",
    "sampling.guidance_ratio": "diffusion.guidance_ratio", "sampling.min_tokens": "min_tokens",
    "gen_length": "max_tokens", "infill": "diffusion.canvas",
    "constraint.pattern": "response_format.pattern", "constraint.grammar": "response_format.grammar",
    "constraint.options": "response_format.options", "constraint.schema": "response_format.json_schema.schema",
    "sampling.thinking_budget": "thinking_token_budget",
    **{f"constraint.{name}": f"diffusion.constraint.{name}" for name in OPTIONS_OF_CONSTRAINTS},
}  # fmt: skip
ANY_GROUP = "sampler|blocks|cache|eos"
# A setting in a sentence. After a quote is a value.
SETTING_NAME = re.compile(
    rf"""(?<![\w./'"])(?:
    (?P<setting>sampling\.\w+|gen_length|infill|constraint\.\w+)\b
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

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The same with fields as this request calls them. names: of fields that have several."""
        free = {usual: sent for usual, sent in names.items() if sent not in self.message.replace(usual, "")}
        found = set[str]()

        def sent_as(match: re.Match[str]) -> str:
            found.add(match[0])
            return free[match[0]]

        either = "|".join(map(re.escape, sorted(free, key=len, reverse=True)))  # a new name may hold an old one
        message = re.sub(rf"(?<![\w.])(?:{either})(?!\w)", sent_as, self.message) if free else self.message
        param = self.param
        for usual, sent in names.items():
            param = sent if param == usual or (usual in found and param == usual.rpartition(".")[0]) else param
        return ApiError(self.status, message, param, self.code, self.retry)


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
def as_refusal(param: str | None = None) -> Iterator[None]:
    """A UserError becomes a refusal with its sentence, in the names of requests. param: the field at fault; None: what
    the sentence names."""
    try:
        yield
    except Refusal as refused:
        raise ApiError(400, refused.text(CHAT_WORDS), param or CHAT_WORDS.field(refused.at)) from None
    except UserError as error:
        raise ApiError(400, in_requests(str(error)), param or param_of(str(error))) from None


@contextmanager
def as_sent(names: Mapping[str, str]) -> Iterator[None]:
    """Refusals call fields as ``ApiError.renamed``."""
    try:
        yield
    except ApiError as refused:
        raise refused.renamed(names) from None


def in_requests(sentence: str) -> str:
    """A sentence of the command line with the settings' names in requests."""
    return SETTING_NAME.sub(_in_requests, sentence)


def _in_requests(found: re.Match[str]) -> str:
    if found["kind"]:
        return f"response_format of type {found['kind']}"
    if found["setting"]:
        return IN_REQUESTS.get(found["setting"], found["setting"])
    inner = found["path"] or f"{found['group']}.inner"
    return f"diffusion.{found['option'] or (inner if found['inner'] else found['group'])}"


def param_of(sentence: str) -> str | None:
    """The field of a request that holds the first setting a sentence of the command line names."""
    if re.match(r"((the|a) )?constraint\b", sentence):
        return named_of_constraint(sentence)
    found = re.search(rf"\b(?:(sampling\.\w+|gen_length)|({ANY_GROUP})[./=])", sentence)
    if found is None:
        return None
    return IN_REQUESTS.get(found[1]) if found[1] else f"diffusion.{found[2]}"


def named_of_constraint(sentence: str) -> str:
    """The field that holds what a sentence about a constraint begins with."""
    option = re.match(rf"constraint\.({'|'.join(OPTIONS_OF_CONSTRAINTS)})\b", sentence)
    return f"diffusion.constraint.{option[1]}" if option else "response_format"
