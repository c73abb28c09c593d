"""A bound for what an endpoint replies: OpenAI's client reads a reply of any length, of any status, at any pace."""

from __future__ import annotations

from time import monotonic
from typing import Any

from openai import OpenAIError

# A million characters, each escaped to six bytes, and two megabytes for the fields around the text. The longest answer
# of a task has 32,768 tokens, 0.2 MB.
LONGEST_REPLY = 8 * 2**20  # bytes
PLAIN_REPLIES = {"Accept-Encoding": "identity"}  # a packed reply of 8 MiB may hold 8 GiB


class UnboundedReply(OpenAIError):
    """A reply that was not read to its end. The client passes on errors of its own kind and asks no second time."""


class BoundedReader:
    """A hook of the client, called with every response before its body is read."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # from the head of a reply to its end

    def __call__(self, response: Any) -> None:
        """Read the body and put it back. response: of httpx, or of httpx2 from openai 3 on.

        Raises UnboundedReply for a body that is packed, longer than ``LONGEST_REPLY``, or not whole in time.
        """
        packing = response.headers.get("content-encoding", "identity")
        if packing != "identity":
            raise UnboundedReply(f"is packed ({packing[:20]}) although the request asks for plain text. Turn that off")
        body, end = bytearray(), monotonic() + self.seconds
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > LONGEST_REPLY:
                raise UnboundedReply(f"has more than {LONGEST_REPLY // 2**20} MiB. Lower gen_length or mend the server")
            if monotonic() > end:
                raise UnboundedReply(f"did not end in {self.seconds:g} s. Raise model.timeout")
        whole, response.elapsed = type(response)(response.status_code, content=bytes(body)), response.elapsed
        response.stream, response.is_stream_consumed, response.is_closed = whole.stream, False, False
