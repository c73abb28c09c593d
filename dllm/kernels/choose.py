"""Which kernels run: ``kernels=auto | triton | torch``."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from dllm.errors import UserError, nearest
from dllm.kernels.jit import interpreted

CHOICES = ("auto", "triton", "torch")
OLDEST = (8, 0)  # compute capability: bfloat16 and asynchronous copies came with Ampere
AMD = ("gfx942", "gfx950")


def use_triton(choice: str, device: torch.device | str) -> bool:
    """Whether a model on ``device`` runs the Triton kernels. ``auto`` takes them wherever they work, and never fails.

    Raises UserError for a name that does not exist, and for ``triton`` where it cannot work.
    """
    if choice not in CHOICES:
        raise UserError(f"kernels={choice!r} must be one of {', '.join(CHOICES)}.{nearest(str(choice), CHOICES)}")
    if choice == "torch":
        return False
    problem = obstacle(torch.device(device))
    if choice == "triton" and problem is not None:
        raise UserError(f"kernels=triton: {problem} Use kernels=auto or kernels=torch.")
    return problem is None and (choice == "triton" or torch.device(device).type == "cuda")


def obstacle(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on ``device``, as a sentence; None when they can."""
    if find_spec("triton") is None:
        return "the package triton is not installed here (it exists for Linux only)."
    if device.type != "cuda":
        if interpreted():
            return None
        return f"Triton needs a GPU and the model is on {device.type}; TRITON_INTERPRET=1 interprets it, for tests."
    if torch.version.hip is not None:
        kind = str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
        return None if kind in AMD else f"they were compiled for the AMD GPUs {', '.join(AMD)}, and this is {kind}."
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        version, least = ".".join(map(str, capability)), ".".join(map(str, OLDEST))
        return f"this GPU has compute capability {version}, and they need {least} (Ampere) or newer."
    return None
