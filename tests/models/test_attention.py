"""Attention over the first keys of each row gives what a mask gives, and everything that has such a mask says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as varlen
from harness import Combination, model, parts_of, requests, results
from torch import Tensor

from dllm.cache.calls import ROWS_PER_STREAMED
from dllm.models.attention import Visible, agrees, attend, attend_first, has_varlen

CPU = torch.device("cpu")


def plainly(
    query: Tensor, key: Tensor, value: Tensor, starts_q: Tensor, starts_k: Tensor, most_q: int, most_k: int, *,
    enable_gqa: bool = False, seqused_k: Tensor, **rest: Any,
) -> Tensor:  # fmt: skip
    """What the documentation of PyTorch's ``varlen_attn`` says, row by row. No key outside a row's own is read."""
    assert starts_q.dtype == starts_k.dtype == seqused_k.dtype == torch.int32 and not rest
    assert enable_gqa == (query.shape[1] != key.shape[1])
    out, groups = torch.empty_like(query), query.shape[1] // key.shape[1]
    for row, count in enumerate(seqused_k.tolist()):
        begin, end, first = int(starts_q[row]), int(starts_q[row + 1]), int(starts_k[row])
        assert end - begin <= most_q and count <= most_k and first + count <= len(key)
        keys, values = (one[first : first + count].repeat_interleave(groups, 1) for one in (key, value))
        weights = torch.einsum("qhd,khd->hqk", query[begin:end], keys) / query.shape[2] ** 0.5
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights.softmax(-1), values)
    return out


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each call of the stand-in: how many rows it had."""
    made: list[int] = []

    def counted(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *rest: Any, **named: Any) -> Tensor:
        made.append(len(starts) - 1)
        return plainly(query, key, value, starts, *rest, **named)

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    yield made
    for name in ("tiny-llada", "tiny-dream", "dream_gqa", "sdar_b4"):
        model(name).use_kernels(False)


@pytest.mark.parametrize("layout", ["buffer", "part of a buffer", "rows of a forward"])
def test_counts_are_what_their_mask_is(layout: str, calls: list[int]) -> None:
    noise = torch.Generator().manual_seed(5)
    query = torch.randn(4, 3, 6, 8, generator=noise)
    shape = (4, 30, 2, 8) if layout == "rows of a forward" else (4, 2, 30, 8)
    stores = [torch.randn(shape, generator=noise) for _ in "kv"]
    if layout == "rows of a forward":
        key, value = (store.transpose(1, 2) for store in stores)
    else:
        key, value = (store[:, :, : 30 if layout == "buffer" else 21] for store in stores)
    count = torch.tensor([21, 10, 1, 18])
    visible = Visible(torch.arange(key.shape[2]) < count[:, None], count)
    torch.testing.assert_close(attend_first(query, key, value, visible), attend(query, key, value, visible))
    assert calls == [4]


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", ["tiny-llada", "dream_gqa"])
@pytest.mark.parametrize("lag", [None, 1])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dkv", "window", "elastic"])
def test_decodes_are_equal(
    cache: str, lag: int | None, name: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged rows in one call, of which some leave; ``window`` leaves gaps and ``elastic`` reads weights, so they keep
    the mask."""
    monkeypatch.setitem(ROWS_PER_STREAMED, "cpu", 64)  # as on a GPU; rows of one width need no mask
    if lag and cache in ("dkv", "elastic"):
        pytest.skip("exact shapes alone")
    parts = parts_of(Combination("confidence", "whole" if cache == "window" else "fixed", cache, "none", name))
    network = model(name)
    expected = [result.tokens for result in results(network, parts, requests(), lag=lag)]
    network.use_kernels(False, varlen=True)
    found = [result.tokens for result in results(network, parts, requests(), lag=lag)]
    assert found == expected
    assert (not calls) == (cache in ("window", "elastic"))


def test_block_causal_models_keep_their_mask(calls: list[int]) -> None:
    parts = parts_of(Combination("confidence", "fixed", "none", "none", "sdar_b4"))
    network = model("sdar_b4")
    expected = [result.tokens for result in results(network, parts, requests())]
    network.use_kernels(False, varlen=True)
    assert [result.tokens for result in results(network, parts, requests())] == expected and not calls


def wrong(*args: Any, **named: Any) -> Tensor:
    return plainly(*args, **named) * 1.1


def lacks(*args: Any, **named: Any) -> Tensor:
    raise RuntimeError("no kernel image is available for execution on the device")


@pytest.mark.parametrize(
    ("stand_in", "works"), [(plainly, True), (wrong, False), (lacks, False)], ids=["right", "wrong", "lacks"]
)
def test_it_is_used_only_where_it_agrees(
    stand_in: Callable[..., Tensor], works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    if stand_in is not lacks:
        assert agrees(CPU, torch.float32) == works
    monkeypatch.setattr("dllm.models.attention.agrees", lambda device, dtype: agrees(CPU, torch.float32))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert has_varlen(torch.device("cuda"), torch.bfloat16) == works
    assert not has_varlen(CPU, torch.bfloat16)
    assert not has_varlen(torch.device("cuda"), torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not has_varlen(torch.device("cuda"), torch.bfloat16)
