"""The application of one replica after a proxy that balances several, from before its model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dllm.serve.http.app import Service
from dllm.serve.http.loading import AGAIN, loading_reply


class ReplicaApp:
    """Says how far the model has loaded, and is the service's own application from then on. The proxy names each
    request. service: None while it loads. leaves: called when the application has ended."""

    def __init__(self, service: Callable[[], Service | None], leaves: Callable[[], None]) -> None:
        self.service, self.leaves = service, leaves
        self.stack, self.entering = AsyncExitStack(), asyncio.Lock()
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif (service := self.service()) is None:
            reply = JSONResponse(loading_reply(scope["path"]), 503, {"retry-after": str(AGAIN)})
            await reply(scope, receive, send)
        else:
            app = self.app or await self._entered(service)
            await app(scope, receive, send)

    async def _entered(self, service: Service) -> ASGIApp:
        """The service's application, started by its first request."""
        async with self.entering:
            if self.app is None:
                app = service.app(proxied=True)
                await self.stack.enter_async_context(app.router.lifespan_context(app))
                self.app = app
            return self.app

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stack.aclose()
        await asyncio.to_thread(self.leaves)
        await send({"type": "lifespan.shutdown.complete"})
