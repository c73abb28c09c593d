"""Decoding for masked diffusion language models: one loop, swappable parts.

>>> from dllm import Decoder, load
>>> decoder = Decoder(load("mini-llada"), gen_length=32)
>>> print(decoder('Sort the list:\\n["Kai", "Emma", "Hugo"]')[0].text)
["Emma", "Hugo", "Kai"]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dllm.app.tuning.in_python import tune as tune
    from dllm.app.tuning.in_python import tuned as tuned
    from dllm.bridges.generate import custom_generate as custom_generate
    from dllm.common.errors import UserError as UserError
    from dllm.compose.parts import part as part
    from dllm.decoder import Decoder as Decoder
    from dllm.models.bundle import Model as Model
    from dllm.models.bundle import load as load
    from dllm.record.frame import results_frame as results_frame
    from dllm.record.results import Result as Result
    from dllm.record.trace import Trace as Trace

# Imported when first used: torch takes seconds, and most uses of the command line need only the configuration.
_PLACES = {
    "Decoder": "dllm.decoder",
    "Model": "dllm.models.bundle",
    "Result": "dllm.record.results",
    "Trace": "dllm.record.trace",
    "UserError": "dllm.common.errors",
    "load": "dllm.models.bundle",
    "part": "dllm.compose.parts",
    "results_frame": "dllm.record.frame",
    "custom_generate": "dllm.bridges.generate",
    "tune": "dllm.app.tuning.in_python",
    "tuned": "dllm.app.tuning.in_python",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("dllm.common.versions").version_of("dllm")
    if name not in _PLACES:
        raise AttributeError(f"module 'dllm' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
