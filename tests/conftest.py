"""One torch thread for every test: with two, a busy neighbour makes each small operation wait.

Triton kernels run in its interpreter, which must be known before anything imports Triton. Every decode checks what the
package otherwise takes for granted (``dllm.common.debug``): rows that are attended to were written, bounds hold.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.tiny import make_tiny

os.environ["TRITON_INTERPRET"] = "1"
os.environ["DLLM_DEBUG"] = "1"  # also in the processes that tests start
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder, with tokenizer and chat template."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")
