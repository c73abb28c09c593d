"""Prompts in chunks: the keys and values of a whole forward, and no tensor that grows with the prompt's square."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dllm.cache.pages import KnownPrefix
from dllm.contract.canvas import Request
from dllm.loop.prefill import Prefill

NAMES = ["sdar_b4", "tiny-wedlm", "tiny-nbdiff", "tiny-nemotron", "tiny-a2d-bd3lm", "tiny-fastdllm-v2", "dg_dev"]


def prompt_of(name: str, length: int) -> Request:
    config = model(name).config
    tokens = torch.randint(1, 50, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    return Request.answer(tokens, 9, config.mask_id or 0)


def computed(name: str, request: Request, chunk: int, known: KnownPrefix | None = None) -> Prefill:
    found = Prefill(model(name), request, known, chunk)
    while found.left:
        found.step()
    return found


def same(one: KnownPrefix | None, other: KnownPrefix | None, columns: int) -> bool:
    assert one is not None and other is not None
    pairs = zip(one.layers, other.layers, strict=True)
    return all(torch.allclose(a[:columns], b[:columns], rtol=0, atol=1e-12)
               for first, second in pairs for a, b in zip(first, second, strict=True))  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_chunks_hold_what_one_forward_holds(name: str) -> None:
    request = prompt_of(name, 70)
    whole, chunks = computed(name, request, 1000).prefix(), computed(name, request, 20).prefix()
    assert whole is not None and chunks is not None and whole.columns == chunks.columns > 60
    assert same(whole, chunks, whole.columns)


def test_chunks_go_on_from_what_is_known() -> None:
    request = prompt_of("sdar_b4", 70)
    whole = computed("sdar_b4", request, 1000).prefix()
    assert whole is not None
    known = KnownPrefix(24, [(keys[:24], values[:24]) for keys, values in whole.layers])
    rest = computed("sdar_b4", request, 20, known)
    assert rest.computed == 68 - 24 and same(rest.prefix(), whole, 68)


class Largest(TorchDispatchMode):
    """The most entries of a tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(out) if isinstance(one, Tensor)]
        self.entries = max(self.entries, *sizes, 0)
        return out


def largest(length: int, chunk: int) -> int:
    with Largest() as seen:
        computed("sdar_b4", prompt_of("sdar_b4", length), chunk)
    return seen.entries


@pytest.mark.program
def test_no_tensor_grows_with_the_square_of_the_prompt() -> None:
    assert largest(512, 32) <= 2.1 * largest(256, 32)
    assert largest(512, 2048) > 3.9 * largest(256, 2048)  # one forward of all, which it is measured against
