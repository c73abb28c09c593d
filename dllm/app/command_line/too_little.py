"""What to choose where memory runs out: only what is not chosen already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dllm.app.command_line.options import DEFAULT_GEN_LENGTH
from dllm.app.command_line.overrides import parsed_override
from dllm.compose.parts import composed

WIDE = ("float32", "float64")  # dtypes with more bits than an 8B model was published in


def memory_advice(overrides: Sequence[str]) -> str:
    """The way out for a command line. In a sweep, only settings with one value count."""
    single = [text for text in overrides if (override := parsed_override(text)) and not override.is_sweep_override()]
    try:
        config: Mapping[str, Any] = composed(single)
    except (HydraException, OmegaConfBaseException):
        return "Choose a smaller model."
    if config["task"]["name"] == "quantize":  # it reads bfloat16, layer by layer
        return "Choose a smaller model."
    *first, last = [*_narrower(config), *_fewer(config), "a smaller model"]
    return f"Choose {', '.join(first)} or {last}." if first else f"Choose {last}."


def _narrower(config: Mapping[str, Any]) -> Iterator[str]:
    model = config["model"]
    if str(model["dtype"]) in WIDE:
        yield "model.dtype=bfloat16"
    elif model["quantize"] is None:
        yield "model.quantize=int8"
    elif model["quantize"] != "int4":
        yield "model.quantize=int4"
    elif model["quantize_head"] is None and model["device"] == "cpu":
        yield "model.quantize_head=int8"


def _fewer(config: Mapping[str, Any]) -> Iterator[str]:
    """Less at once. A server decodes rows of its own, and no batches of a run."""
    if config["task"]["name"] == "serve":
        task = config["task"]
        sizes = {**task, "max_rows": 8 if task["max_rows"] is None else task["max_rows"]}
        yield from (
            f"task.{name}={sizes[name] // 2}"
            for name in ("max_rows", "max_tokens_in_flight")
            if isinstance(sizes[name], int) and sizes[name] > 1
        )
    elif isinstance(size := config["batch_size"], int) and size > 1:
        yield f"batch_size={size // 2}"
    length = DEFAULT_GEN_LENGTH if config["gen_length"] is None else config["gen_length"]
    if isinstance(length, int) and length > 1:
        yield f"gen_length={length // 2}"
