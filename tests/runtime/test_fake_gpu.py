"""The fake GPU sees every kind of mistake, and lets pass what CUDA takes; PyTorch's own fake tensors agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_cases import Case, on_a_gpu
from fake_gpu import GPU, FakeGPUs, WrongDevice
from fake_tensors import FakeTensors
from torch import Tensor

from dllm.parts import Confidence, State, Step, View

# What CUDA refuses, and what it takes. ``a`` [3, 4] and ``at`` [3] lie on the GPU, ``b`` [3, 4] and ``row`` [3] do not.
MISTAKES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], object]] = {
    "arange without a device": lambda a, at, b, row: a + torch.arange(4),
    "tensor without a device": lambda a, at, b, row: a * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "zeros without a device": lambda a, at, b, row: torch.where(a > 0, a, torch.zeros(3, 4)),
    "mixed cat": lambda a, at, b, row: torch.cat([a, b]),
    "mixed stack": lambda a, at, b, row: torch.stack([a, b]),
    "a number in a stack": lambda a, at, b, row: torch.stack([a.sum(), torch.tensor(1.0)]),
    "where with a mask elsewhere": lambda a, at, b, row: torch.where(b > 0, a, a),
    "masked_fill with a mask elsewhere": lambda a, at, b, row: a.masked_fill(b > 0, 0.0),
    "gather": lambda a, at, b, row: a.gather(0, row[None]),
    "scatter of values elsewhere": lambda a, at, b, row: a.scatter(1, at[:, None], b),
    "product": lambda a, at, b, row: a @ b.T,
    "linear": lambda a, at, b, row: torch.nn.functional.linear(a, b),
    "embedding": lambda a, at, b, row: torch.nn.functional.embedding(row, a),
    "searchsorted": lambda a, at, b, row: torch.searchsorted(at, row),
    "isin": lambda a, at, b, row: torch.isin(at, row),
    "in place": lambda a, at, b, row: b.add_(a),
    "two GPUs": lambda a, at, b, row: a + a.to("cuda:1"),
    "a number on the second GPU": lambda a, at, b, row: a + a.sum().to("cuda:1"),
}
INDICES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], object]] = {
    "index": lambda a, at, b, row: a[row],
    "index beside another": lambda a, at, b, row: a[at, row],
    "mask": lambda a, at, b, row: a[b > 0],
    "assigned index": lambda a, at, b, row: a.__setitem__(row, 0.0),
    "index on the GPU": lambda a, at, b, row: b[at],
}
ALLOWED: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "a number on the CPU": lambda a, at, b, row: a + torch.tensor(1.0),
    "where with a number": lambda a, at, b, row: torch.where(a > 0, a, torch.tensor(-1.0)),
    "masked_fill with a number": lambda a, at, b, row: a.masked_fill(a > 0, torch.tensor(-1.0)),
    "python numbers": lambda a, at, b, row: torch.where(a > 0, 1.0, a.clamp(min=0)) - 2,
    "made where it is used": lambda a, at, b, row: a + torch.arange(4, device=a.device),
    "made like it": lambda a, at, b, row: torch.zeros_like(a) + a.new_ones(4) + torch.empty(4, device="cuda").fill_(1),
    "moved": lambda a, at, b, row: a + b.to(a.device) + b.cuda() + b.to(a),
    "indices": lambda a, at, b, row: a[at] + a[:, None, 1] + a[None, at, 1:, None][0, :, :1, 0],
    "views": lambda a, at, b, row: a.view(4, 3).T.unflatten(0, (3, 1)).flatten(0, 1) * next(iter(a)),
    "maximum": lambda a, at, b, row: torch.maximum(a, a.amax(1, keepdim=True)).sort(1, descending=True).values,
    "into itself": lambda a, at, b, row: a.mul_(2).index_put_((at, at), a.sum()),
}


def tensors(gpu: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``a``, ``at``, ``b`` and ``row`` of the tables above; to be called under a mode."""
    a, at = torch.linspace(-1, 1, 12).view(3, 4), torch.arange(3)
    b, row = a.clone(), at.clone()
    return (a.to("cuda:0"), at.to("cuda:0"), b, row) if gpu else (a, at, b, row)


@pytest.mark.parametrize("name", [*MISTAKES, *INDICES])
def test_the_fake_gpu_sees_a_mistake(name: str) -> None:
    with FakeGPUs():
        here = tensors()
        with pytest.raises(WrongDevice, match="on several devices"):
            (MISTAKES | INDICES)[name](*here)


@pytest.mark.parametrize("name", ALLOWED)
def test_the_fake_gpu_lets_pass_what_cuda_takes(name: str) -> None:
    expected = ALLOWED[name](*tensors(gpu=False)) if name not in ("made like it", "moved") else None
    with FakeGPUs():
        found = ALLOWED[name](*tensors())
        assert found.device == GPU and found.is_cuda
    assert expected is None or torch.equal(found, expected)


@pytest.mark.parametrize("name", [name for name in [*MISTAKES, *ALLOWED] if name != "a number in a stack"])
def test_torchs_own_fake_tensors_agree(name: str) -> None:
    """Where there is no GPU, FakeTensorMode knows the rules. It lets a number into a stack, CUDA does not."""
    with FakeTensors():
        here = tensors()
        if name in ALLOWED:
            assert ALLOWED[name](*here).device == GPU
        else:
            with pytest.raises(RuntimeError, match="at least two devices"):
                MISTAKES[name](*here)


class Planted(Confidence):
    """A sampler that makes a mistake in its second turn."""

    def __init__(self, mistake: Callable[[View], object]) -> None:
        super().__init__()
        self.mistake, self.calls = mistake, 0

    def step(self, view: View, state: State) -> Step:
        self.calls += 1
        if self.calls == 2:
            self.mistake(view)
        return super().step(view, state)


IN_A_TURN: dict[str, Callable[[View], object]] = {
    "an index on another device": lambda view: view.scores.confidence[torch.arange(len(view.active))],
    "a tensor without a device": lambda view: view.open & torch.tensor([True] * view.open.shape[1]),
    "an arange without a device": lambda view: view.canvas.columns < torch.arange(view.open.shape[1]),
    "a mixed cat": lambda view: torch.cat([view.open, torch.zeros(view.open.shape, dtype=torch.bool)]),
}
COPIES: dict[str, Callable[[View], object]] = {
    "a tensor made with a device": lambda view: view.scores.confidence > torch.tensor([0.5], device=view.open.device),
    "a constant that is moved": lambda view: view.scores.confidence > torch.full((1,), 0.5).to(view.open.device),
    "a number assigned from the host": lambda view: view.open.clone().__setitem__(0, torch.tensor(True)),
    "a list as an index": lambda view: view.open[:, [0, 1]],
    "a host's number in where": lambda view: torch.where(view.open, torch.tensor(1), 0),
}


@pytest.mark.parametrize("name", IN_A_TURN)
def test_a_turn_with_a_mistake_fails(name: str) -> None:
    with pytest.raises(WrongDevice):
        on_a_gpu(Case(name, Planted(IN_A_TURN[name])))


@pytest.mark.parametrize("name", COPIES)
def test_a_turn_that_copies_is_reported(name: str) -> None:
    copies = on_a_gpu(Case(name, Planted(COPIES[name]))).copies
    assert set(copies) - {"loop/rows.py:select"} == {"parts/samplers/base.py:propose"}  # when a row leaves, once
