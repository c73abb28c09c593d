"""The refusal of a request, in OpenAI's form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dllm.errors import UserError

LONGEST = 1000  # characters of a message, which may repeat what was sent
# What requests call the settings that sentences name; a part's option goes by its group.
PARAMS = {
    "sampling.temperature": "temperature", "sampling.top_p": "top_p", "sampling.top_k": "top_k",
    "sampling.guidance": "diffusion.guidance", "gen_length": "max_tokens",
}  # fmt: skip


class Refused(Exception):  # noqa: N818  an answer, no fault
    """A request that is not served. status: of HTTP. param: the field at fault. code: OpenAI's word for the reason."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message if len(message) <= LONGEST else f"{message[:LONGEST]}...")
        self.status, self.message, self.param, self.code = status, str(self), param, code

    def to_json(self) -> dict[str, Any]:
        """The body of the reply."""
        kind = "rate_limit_error" if self.status == 429 else "server_error" if self.status >= 500 else (
            "invalid_request_error")  # fmt: skip
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@contextmanager
def as_refusal(param: str | None = None) -> Iterator[None]:
    """A UserError becomes a refusal with its sentence. param: the field at fault; None: what the sentence names."""
    try:
        yield
    except UserError as error:
        raise Refused(400, str(error), param or param_of(str(error))) from None


def param_of(sentence: str) -> str | None:
    """The field of a request that holds the first setting a sentence names."""
    if re.match(r"((the|a) )?constraint\b", sentence):
        return named_of_constraint(sentence)
    found = re.search(r"\b(?:(sampling\.\w+|gen_length)|(sampler|blocks|cache|eos)[./=])", sentence)
    if found is None:
        return None
    return PARAMS.get(found[1]) if found[1] else f"diffusion.{found[2]}"


def named_of_constraint(sentence: str) -> str:
    """The field that holds what a sentence about a constraint begins with."""
    option = re.match(r"constraint\.(confidence|whitespace|depth|words|additional)\b", sentence)
    return f"diffusion.constraint.{option[1]}" if option else "response_format"
