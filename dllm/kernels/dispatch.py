"""Which kernels run: ``kernels=auto | triton | torch | invariant``."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from dllm.common.errors import Refusal, Set, in_choices
from dllm.common.versions import release, version_of
from dllm.kernels.jit import interpreted

INVARIANT = "invariant"  # plain operations of fixed shapes, see ``dllm.kernels.invariant``
KERNEL_CHOICES = ("auto", "triton", "torch", INVARIANT)
MIN_CAPABILITY = (8, 0)  # Ampere, the first with bfloat16 and asynchronous copies
# The oldest that compiles the kernels; its interpreter runs them from 3.7 on. AMD's package has another name.
MIN_TRITON = "3.6"
AMD_GPUS = ("gfx942", "gfx950")


def use_triton(choice: str, device: torch.device | str) -> bool:
    """Whether a model on ``device`` runs the Triton kernels.

    choice: ``auto`` takes them on every GPU where they work, and never fails. Raises UserError for an unknown name, and
    for ``triton`` or ``invariant`` where they cannot run.
    """
    in_choices("kernels", choice, KERNEL_CHOICES)
    if choice == INVARIANT and torch.device(device).type != "cpu":
        raise Refusal(
            f"{{kernels}} needs a CPU, and the model is on {torch.device(device).type}, whose libraries choose "
            "products by the number of rows.",
            [INVARIANT],
            (Set("model.device", "cpu"), Set("kernels", "auto")),
        )
    if choice in ("torch", INVARIANT):
        return False
    problem = obstacle(torch.device(device))
    if choice == "triton" and problem is not None:
        raise Refusal(f"{{kernels=triton}}: {problem}", [], (Set("kernels", "auto"), Set("kernels", "torch")))
    return problem is None and (choice == "triton" or torch.device(device).type == "cuda")


def check_invariant(choice: str, quantize: str | None, runtime: str, activations: str | None = None) -> None:
    """Raises UserError for what ``kernels=invariant`` does not cover. activations: of whole numbers any order of a sum
    is the same."""
    if choice == INVARIANT and quantize is not None and activations is None:
        raise Refusal(
            "{kernels} multiplies plain weights, and {model.quantize} narrows them. Set {model.quantize:name} to "
            "{null}, or {kernels=auto}, or {model.activations=int8} on a CPU.",
            [INVARIANT, quantize],
        )
    if choice == INVARIANT and runtime.startswith("compile"):
        raise Refusal(
            "{kernels} calls products of one size, and {runtime} makes others of them.",
            [INVARIANT, runtime],
            (Set("runtime", "eager"), Set("kernels", "auto")),
        )


def obstacle(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on ``device``, as a sentence. None when they can."""
    if find_spec("triton") is None:
        return "the package triton is not installed here (on Linux, PyTorch's builds for GPUs bring it along)."
    if (there := version_of("triton")) is not None and release(there) < release(MIN_TRITON):
        return f"triton {there} is installed, and the kernels need {MIN_TRITON} or newer, which a newer PyTorch brings."
    if device.type != "cuda":
        if interpreted():
            return None
        return f"Triton needs a GPU and the model is on {device.type}. For tests TRITON_INTERPRET=1 interprets it."
    if (kind := amd_kind(device)) is not None:
        kinds = ", ".join(AMD_GPUS)
        return None if kind in AMD_GPUS else f"the kernels support the AMD GPUs {kinds}, and this is {kind}."
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        version, least = ".".join(map(str, capability)), ".".join(map(str, MIN_CAPABILITY))
        return f"this GPU has compute capability {version}, and the kernels need {least} (Ampere) or newer."
    return None


def amd_kind(device: torch.device) -> str | None:
    """AMD's name of the GPU, such as gfx942. None for another maker's."""
    if torch.version.hip is None:
        return None
    return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
