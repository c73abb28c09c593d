"""Where the tests of this folder run: DLLM_DEVICE=cuda, or cpu for small shapes in Triton's interpreter.

    DLLM_DEVICE=cuda python -m pytest tests/gpu

Importing it skips a file where the variable is not set, or there is no GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

NAME = os.environ.get("DLLM_DEVICE", "")
if NAME not in ("cuda", "cpu"):
    pytest.skip("a test of a GPU: set DLLM_DEVICE=cuda (cpu: small shapes, interpreted)", allow_module_level=True)
if NAME == "cuda" and not torch.cuda.is_available():
    pytest.skip("DLLM_DEVICE=cuda, but PyTorch finds no GPU", allow_module_level=True)
DEVICE, GPU = torch.device(NAME), NAME == "cuda"
