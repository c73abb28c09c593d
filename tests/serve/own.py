"""A sampler of a user's own, for the tests of the server."""

from __future__ import annotations

from dllm.parts import Static


class Mine(Static):
    """Static under another name."""
