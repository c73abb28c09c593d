"""In which numbers a model computes, and on which device: asked for, or as its files are, and checked."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from dllm.common.errors import Refusal, Set, in_choices
from dllm.kernels.dispatch import MIN_CAPABILITY, amd_kind, check_invariant, use_triton
from dllm.models.config import ModelConfig
from dllm.models.network.activations import check_activations
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.weights.quantize import check_head, check_quantize

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}


def kinds_of(
    config: ModelConfig, quantize: str | None, quantize_head: str | None, dtype: torch.dtype, adapter: str | Path | None
) -> tuple[str | None, str | None]:
    """The kinds of the layers, and of embedding and head: as asked for, or as the files are. Raises UserError where the
    files cannot become what is asked for."""
    file_kind, head = config.stored_kind, config.stored_head
    if file_kind is None:
        return quantize, quantize_head
    fact, plain = f"the weights of this folder are {file_kind} already", "take the checkpoint that they were made from"
    if quantize not in (None, file_kind):
        raise Refusal(f"{{model.quantize}}: {fact}.", [quantize], [Set("model.quantize", None)], f"Or {plain}.")
    if quantize_head not in (None, head):
        raise Refusal(
            f"{{model.quantize_head}}: embedding and head of this folder are {head or 'bfloat16'}.",
            [quantize_head],
            [Set("model.quantize_head", None)],
            f"Or {plain}.",
        )
    if adapter is not None:
        raise Refusal(
            f"{{model.adapter}}: {fact}, and nothing is added to them. Run task=quantize with the adapter, or {plain}.",
            [adapter],
        )
    if dtype != torch.bfloat16:
        raise Refusal(f"{fact}, and multiply rows of bfloat16.", [], (Set("model.dtype", "bfloat16"),))
    return file_kind, head


def check_numbers(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    kernels: str,
    quantize: str | None,
    quantize_head: str | None = None,
    activations: str | None = None,
) -> bool:
    """Whether our Triton kernels run. Raises UserError for a dtype, kernels or weights that the device lacks."""
    if dtype == torch.bfloat16 and device.type == "cuda" and amd_kind(device) is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < MIN_CAPABILITY:
            raise Refusal(
                "{model.dtype=bfloat16} needs a GPU of compute capability 8.0 (Ampere) or newer, and this one has "
                f"{'.'.join(map(str, capability))}.",
                (),
                [Set("model.dtype", "float16")],
                "Or {model.dtype=float32} if numbers overflow.",
            )
    check_head(quantize_head, quantize, config, device)
    if config.family == MASKED_LM_FAMILY:
        why = f"a {config.architecture} is run through its own class"
        if quantize is not None:
            plain = Set("model.quantize", None)
            raise Refusal(f"{{model.quantize}}: {why}, whose products are not ours.", [quantize], [plain])
        if kernels not in ("auto", "torch"):
            usual = Set("kernels", "auto")
            raise Refusal(f"{{kernels}}: {why}, which has none of our kernels.", [kernels], [usual])
        return False
    triton = use_triton(kernels, device)
    check_invariant(kernels, quantize, "eager", activations)
    check_quantize(quantize, config, dtype, device, triton)
    check_activations(activations, quantize, quantize_head, config, kernels)
    return triton


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A supported dtype, given by name or as torch's object. Raises UserError for any other."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES and (narrow := re.match("float8|int8|int4", name)):
        raise Refusal(
            f"{{model.dtype}} must be one of {', '.join(DTYPES)}.",
            [name],
            [Set("model.quantize", narrow[0]) & Set("model.dtype", "bfloat16")],
        )
    in_choices("model.dtype", name, DTYPES)
    return DTYPES[name]


def resolve_device(device: str) -> torch.device:
    """The device itself; for ``auto`` the first GPU, or else the CPU."""
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parse_device(device: str) -> str:
    """The device as given. Raises UserError when torch does not know it, or this machine does not have it."""
    if device == "auto":
        return device
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise Refusal("{model.device:quoted} must be auto, cpu, cuda or cuda:NUMBER.", [device]) from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise Refusal(
            f"{{model.device:quoted}} does not exist here: torch finds {torch.cuda.device_count()} CUDA devices.",
            [device],
            [Set("model.device", "auto"), Set("model.device", "cpu")],
        )
    return device
