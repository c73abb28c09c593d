"""Every kernel runs in Triton's interpreter here (``tests/conftest.py`` switches it on), and whatever the launchers
allocate starts as NaN or as the most negative number, so that an output which a kernel forgets to write is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args: Any, **kwargs: Any) -> Tensor:
        out = make(*args, **kwargs)
        return out.fill_(torch.nan if out.is_floating_point() else torch.iinfo(out.dtype).min) if out.numel() else out

    return made


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        torch.empty(0)  # its first use lists the functions that make tensors, which must be torch's own
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
