"""Which kernels run, and who gets to hear about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dllm import Decoder, UserError, load
from dllm.parts import RMSNorm, use_triton

ROOT = Path(__file__).parents[2]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], amd: str | None = None) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None if amd is None else "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=amd))


def test_auto_takes_triton_on_gpus_that_have_it_and_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not use_triton("auto", CPU), "not even under the interpreter, which is on here"
    for capability, expected in (((9, 0), True), ((8, 0), True), ((7, 5), False)):
        gpu(monkeypatch, capability)
        assert use_triton("auto", GPU) == expected
    for kind, expected in (("gfx942:sramecc+:xnack-", True), ("gfx1100", False)):
        gpu(monkeypatch, (9, 4), kind)
        assert use_triton("auto", GPU) == expected
    gpu(monkeypatch, (9, 0))
    for version, expected in (("3.7.0", True), ("3.10.1+git", True), ("3.5.2", False), ("2.9", False), (None, True)):
        monkeypatch.setattr("dllm.kernels.dispatch.version_of", lambda name, version=version: version)
        assert use_triton("auto", GPU) == expected
    monkeypatch.setattr("dllm.kernels.dispatch.find_spec", lambda name: None)
    assert not use_triton("auto", GPU)


def test_torch_is_torch_everywhere() -> None:
    assert not use_triton("torch", CPU)
    assert not use_triton("torch", GPU)


def test_triton_where_it_cannot_work_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, (7, 5))
    with pytest.raises(UserError, match=r"capability 7\.5, and the kernels need 8\.0.*kernels=auto or kernels=torch"):
        use_triton("triton", GPU)
    old_triton = pytest.raises(UserError, match=r"triton 3\.5\.1 .* need 3\.6 or newer.*kernels=torch")
    with monkeypatch.context() as old, old_triton:
        old.setattr("dllm.kernels.dispatch.version_of", lambda name: "3.5.1")
        use_triton("triton", GPU)
    gpu(monkeypatch, (11, 0), "gfx1100")
    with pytest.raises(UserError, match=r"gfx942, gfx950, and this is gfx1100\. Use kernels=auto"):
        use_triton("triton", GPU)
    assert use_triton("triton", CPU), "the interpreter is on"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UserError, match=r"needs a GPU and the model is on cpu.*Use kernels=auto or kernels=torch\."):
        use_triton("triton", CPU)
    with pytest.raises(UserError, match=r"kernels='trton' must be one of auto, triton, torch, invariant\. Did"):
        use_triton("trton", CPU)


def run(code: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *code],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.program
def test_the_command_line_refuses_before_it_reads_weights() -> None:
    done = run(["run.py", "kernels=triton", "model.path=mini-llada", "live=false"])
    assert done.returncode != 0
    assert "kernels=triton: Triton needs a GPU and the model is on cpu" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.program
def test_a_decode_on_the_cpu_never_imports_triton() -> None:
    code = (
        "import sys; from dllm import Decoder, load\n"
        "print(Decoder(load('mini-llada'), sampler='credit', cache='dual', gen_length=16)('w1')[0].nfe > 0)\n"
        "print(sorted(name for name in sys.modules if name.startswith(('triton', 'torch._dynamo', 'torch._inductor'))))"
    )
    assert run(["-c", code]).stdout.split("\n")[:2] == ["True", "[]"]


def test_loading_switches_every_part() -> None:
    model = load("mini-llada", kernels="triton").transformer
    assert all(part.triton for part in model.modules() if isinstance(part, RMSNorm))
    assert Decoder(load("mini-llada"), sampler="confidence").runner.forward.proposer.triton is False
