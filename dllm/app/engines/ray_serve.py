"""``engine=ray`` of ``task=serve``: replicas of the whole server behind Ray Serve, one for each device.

A request needs one replica from beginning to end and nothing outlives it, so Ray may send each to whichever is free.
A reply lost with its replica can be asked for again: the same seed gives the same reply.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm.app.engines.ray import Ray
from dllm.compose.parts import build_part
from dllm.errors import UserError, not_installed

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from dllm.serve.settings import ServeSettings


class ServedReplica:
    """One server without a socket, in a process of Ray's. config: as the driver composed it."""

    def __init__(self, config: dict[str, Any], settings: ServeSettings, folder: str) -> None:
        from dllm.app.commands.serve import plan_of, service_of, show_log

        if Path(folder).is_dir():
            os.chdir(folder)
        show_log()
        self.service = service_of(config, plan_of(config), settings)
        self.app, self.stack = self.service.app(), AsyncExitStack()
        self.service.scheduler.start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        await self.app(scope, receive, send)

    def check_health(self) -> None:
        """Raises RuntimeError where /health says failed: Ray then starts the replica anew."""
        if self.service.scheduler.state == "failed":
            raise RuntimeError("the decode thread has died")

    def __del__(self) -> None:
        service = getattr(self, "service", None)
        if service is not None:
            service.scheduler.close(service.settings.grace)
