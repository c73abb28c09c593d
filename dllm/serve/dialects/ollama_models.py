"""Ollama's interface: what its clients ask when they connect, and what is not served."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.weights.footprint import Footprint, parameter_count
from dllm.serve.dialects.ollama_reply import stamp
from dllm.serve.dialects.ollama_request import served_name
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.tools import BEGIN
from dllm.serve.http.api_errors import ApiError
from dllm.serve.http.body import body_of, object_in

_VERSION = "0.99.0-dllm"  # above every version that a client asks for
_ALWAYS = "9999-12-31T23:59:59Z"  # when the model leaves memory
PULL = "a server has the model that it began with. Fetch others on the command line: dllm pull NAME"
NO_FILES = "models are folders of this machine, or of the hub. Start a server of another: dllm serve model.path=FOLDER"
# Statuses of a request at fault: no server has failed, and no alarm should ring.
NOT_SERVED = {
    "pull": (403, PULL),
    "delete": (400, NO_FILES),
    "copy": (400, NO_FILES),
    "create": (400, NO_FILES),
    "push": (400, NO_FILES),
    "blobs/{digest:path}": (400, NO_FILES),
    "embed": (400, "a model here has no embeddings of texts. Ask another server for them"),
    "embeddings": (400, "a model here has no embeddings of texts. Ask another server for them"),
}


class OllamaModels:
    """The routes about models. seconds: in which a body must have come."""

    def __init__(self, defaults: Defaults, seconds: float) -> None:
        self.defaults, self.seconds, self.began = defaults, seconds, stamp()

    @property
    def routes(self) -> list[Route]:
        routes = [
            Route("/api/version", self.version),
            Route("/api/tags", self.tags),
            Route("/api/ps", self.running),
            Route("/api/show", self.show, methods=["POST"]),
        ]
        methods = ["GET", "POST", "PUT", "DELETE", "HEAD"]
        return routes + [Route(f"/api/{name}", self._refusing(name), methods=methods) for name in NOT_SERVED]

    def _refusing(self, name: str) -> Callable[[HttpRequest], Any]:
        status, why = NOT_SERVED[name]

        async def refused(request: HttpRequest) -> Response:
            raise ApiError(status, f"{request.url.path} is not served: {why}.")

        return refused

    async def version(self, request: HttpRequest) -> Response:
        return JSONResponse({"version": _VERSION})

    async def tags(self, request: HttpRequest) -> Response:
        return JSONResponse({"models": [{**card, "modified_at": self.began} for card in self._cards()]})

    async def running(self, request: HttpRequest) -> Response:
        on_device = self._bytes if self.defaults.model.transformer.device.type == "cuda" else 0
        limit = self.defaults.model.config.max_length
        more = {"expires_at": _ALWAYS, "size_vram": on_device, "context_length": limit}
        return JSONResponse({"models": [{**card, **more} for card in self._cards()]})

    async def show(self, request: HttpRequest) -> Response:
        """What is known of a model. Raises ApiError for one that is not served."""
        body = object_in(await body_of(request, self.seconds))
        name = body.get("model", body.get("name"))
        if name is not None and not isinstance(name, str):
            raise ApiError(400, f"model={name!r} must be text.", "model")
        served_name(name, self.defaults)
        tokenizer = self.defaults.model.tokenizer
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "",
                "license": "",
                "modified_at": self.began,
                "details": self._details,
                "template": (None if tokenizer is None else tokenizer.template) or "",
                "model_info": self._info,
                "capabilities": list(self._capabilities()),
            }
        )

    def _capabilities(self) -> Iterator[str]:
        tokenizer = self.defaults.model.tokenizer
        yield "completion"
        if self.defaults.model.ids.mask is not None:
            yield "insert"
        if tokenizer is not None and "tools" in tokenizer.template_names and BEGIN in tokenizer.template_of_tools:
            yield "tools"
        if tokenizer is not None and tokenizer.thought_marks is not None:
            yield "thinking"

    def _cards(self) -> Iterator[dict[str, Any]]:
        for name in self.defaults.names:
            digest = hashlib.sha256(name.encode()).hexdigest()  # of no file: clients tell models apart by it
            yield {"name": name, "model": name, "size": self._bytes, "digest": digest, "details": self._details}

    @cached_property
    def _count(self) -> int:
        return parameter_count(self.defaults.model.transformer, self.defaults.model.config)

    @cached_property
    def _bytes(self) -> int:
        model = self.defaults.model
        if model.config.family == MASKED_LM_FAMILY:
            return self._count * next(model.transformer.parameters()).itemsize
        return Footprint.of(model.config, model.quantize or self._dtype, model.quantize_head).file_bytes

    @property
    def _dtype(self) -> str:
        return str(self.defaults.model.transformer.dtype).removeprefix("torch.")

    @cached_property
    def _details(self) -> dict[str, Any]:
        model = self.defaults.model
        billions = self._count / 1e9
        return {
            "parent_model": "",
            "format": "safetensors",
            "family": model.config.family,
            "families": [model.config.family],
            "quantization_level": (model.quantize or self._dtype).upper(),
            "parameter_size": f"{billions:.1f}B" if billions >= 1 else f"{self._count / 1e6:.1f}M",
        }

    @property
    def _info(self) -> dict[str, Any]:
        config = self.defaults.model.config
        return {
            "general.architecture": config.family,
            "general.parameter_count": self._count,
            f"{config.family}.context_length": config.max_length,
            f"{config.family}.embedding_length": config.width,
            f"{config.family}.block_count": config.layers,
        }
