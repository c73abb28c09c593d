"""The ranks of a replica of ``engine=ray``: an actor that asks for the GPUs of all of them, and starts its followers.

An actor is on one machine, so its ranks are as near as those of a placement group that is packed strictly. Before each
piece of work rank 0 sends its followers a call, which they make too. If one of them is lost, the actor ends as
``dllm.common.links`` says, and Ray's driver starts another.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any

from dllm.app.command_line.launch import Launched, quiet
from dllm.common.links import Links, current_links, linked

PROGRAM = ("-m", "dllm.app.engines.ray_ranks")
RANK_CALLS = {"decode": "dllm.app.engines.replica.decode", "serve": "dllm.app.runs.service.follow_turns"}

_UNTIL_THE_END = ExitStack()  # of this process


def tell_followers(model: Mapping[str, Any], call: str, *arguments: Any) -> None:
    """Have the other ranks of ``model.tp`` do what this process does next; the first call starts them. call: one of
    ``RANK_CALLS``. arguments: what JSON can hold."""
    if (size := int(model.get("tp", 1))) > 1:
        links = current_links() or _started(size, float(model["tp_timeout"]), str(model["device"]))
        links.tell(call, *arguments)


def _started(size: int, timeout: float, device: str) -> Links:
    ranks = Launched(size, [*PROGRAM, str(size), str(timeout), device])
    links = _UNTIL_THE_END.enter_context(linked(ranks.connected(timeout)))
    ranks.initialise(device)
    return links


def obey(size: int, timeout: float, device: str) -> None:
    """Do what rank 0 says until it ends."""
    ranks = Launched(size, PROGRAM)
    with linked(ranks.connected(timeout)) as links:
        quiet(links)
        ranks.initialise(device)
        while True:
            call, *arguments = links.hear()
            resolve_name(RANK_CALLS[call])(*arguments)


if __name__ == "__main__":
    obey(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
