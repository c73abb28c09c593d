"""One torch thread for every test: with two, a busy neighbour makes each small operation wait."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny import make_tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder, with tokenizer and chat template."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")
