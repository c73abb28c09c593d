"""Weights in fewer bits: the same answers from a model that is sure, close logits, and sentences for what cannot be."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import DATA
from recording import FakeGraph
from torch import Tensor, nn

from dllm import Decoder, UserError, load
from dllm.app.command_line import main as cli
from dllm.models import bundle
from dllm.models.weights import quantize, weights
from dllm.parts import (
    Model,
    ModelConfig,
    MoEConfig,
    NarrowLinear,
    Transformer,
    check_numbers,
    check_quantize,
    check_runtime,
    load_model,
    parse_dtype,
    quantize_part,
    read_model_config,
    save_model,
)

PROMPT = 'Copy the list:\n["Emma", "Hugo", "Kai"]'
CPU, GPU, BF16 = torch.device("cpu"), torch.device("cuda"), torch.bfloat16
ERRORS = {"int8": 0.03, "int4": 0.2}  # of the logits, of the largest one: four bits round 15 times as coarsely


@cache
def mini(kind: str | None = None) -> Model:
    return load("mini-llada", dtype="bfloat16", quantize=kind)


def logits(model: Transformer) -> Tensor:
    tokens = torch.arange(12).view(1, 12)
    with torch.inference_mode():
        return model.head(model.encode(tokens)).double()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_logits_stay_close_and_the_head_stays(kind: str) -> None:
    assert mini(kind).transformer.head_weight is not None, "the fused head reads it"
    expected, found = logits(mini().transformer), logits(mini(kind).transformer)
    assert 0 < (expected - found).abs().max() / expected.abs().max() < ERRORS[kind]


def test_answers_stay() -> None:
    answers = [Decoder(mini(kind), gen_length=8, cache="dual")(PROMPT)[0].tokens for kind in (None, "int8")]
    assert answers[0] == answers[1]


def test_a_cpu_compiles_them() -> None:
    """A whole layer is compiled with ``fullgraph=True``; their operators are what it might break at."""
    x = torch.randn(2, 3, 384, generator=torch.Generator().manual_seed(0)).to(BF16)
    for kind in ("int8", "int4"):
        product = mini(kind).transformer.layers[0].mlp.down
        with torch.inference_mode():
            assert torch.equal(torch.compile(product, fullgraph=True, backend="aot_eager")(x), product(x))


@pytest.mark.parametrize("triton", [False, True], ids=["cpu", "kernel"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_product_is_that_of_the_rounded_weights(kind: str, triton: bool) -> None:
    """Rounded here: a scale per output; 16 steps from the least to the largest of 32 columns. Rows come in any shape,
    also none."""
    noise = torch.Generator().manual_seed(0)
    linear = nn.Linear(256, 48, dtype=BF16)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(48, 256, generator=noise) / 16)
    groups = linear.weight.detach().double().view(48, -1, 256 if kind == "int8" else 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if kind == "int8":
        scale = (torch.maximum(high, -low) / 127).to(BF16).double()
        rounded = ((groups / scale).round() * scale).view(48, 256)
    else:
        scale = ((high - low) / 15).to(BF16).double()
        zero = (low + 8 * scale).to(BF16).double()
        rounded = (((groups - zero) / scale).round().clamp(-8, 7) * scale + zero).view(48, 256)
    narrow = NarrowLinear.of(linear, quantize.BITS[kind], triton)
    for shape in ((2, 5, 256), (1, 256), (0, 256)):
        x = torch.randn(shape, generator=noise).to(BF16)
        with torch.inference_mode():
            found = narrow(x)
        expected = F.linear(x.double(), rounded, linear.bias.detach().double())
        torch.testing.assert_close(found.double(), expected, rtol=2**-6, atol=2**-6)


def test_float8_rounds_rows_and_weights_and_no_row_depends_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU computes it too, slowly, once torchao does not look for a GPU. e4m3 rounds by 1/16 at most, below 2^-6 of
    the 448 that a row's largest number becomes by 2^-10."""
    api = pytest.importorskip("torchao.quantization.quant_api")
    monkeypatch.setattr(api, "_check_hardware_support", lambda granularity: None)
    plain, model = (load("mini-llada", dtype="bfloat16", pack=False).transformer for _ in range(2))
    for layer in model.layers:
        quantize_part(layer, "float8", False)
    x = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(0)).to(BF16)
    x[0, 0] *= 2**20  # in a scale of all rows the others would vanish
    for name in ("attn.qkv", "attn.o", "mlp.gate_up"):
        with torch.inference_mode():
            product, weight = model.layers[0].get_submodule(name), plain.layers[0].get_submodule(name).weight
            found, alone = product(x), product(x[1:, 2:])
        rows, weight = x.double(), weight.double()
        off = [one.abs() / 16 + one.abs().amax(-1, keepdim=True) / 448 / 1024 for one in (rows, weight)]
        bound = off[0] @ weight.abs().T + rows.abs() @ off[1].T + off[0] @ off[1].T
        expected = rows @ weight.T
        error = found.double() - expected
        assert (error.abs() <= bound + expected.abs() / 256).all()
        assert 0.005 < error[1].std() / expected[1].std() < 0.06, "most are rounded by less, and to either side"
        torch.testing.assert_close(found[1:, 2:], alone, rtol=2**-7, atol=2**-9)
    expected, found = logits(plain), logits(model)
    assert 0 < (expected - found).abs().max() / expected.abs().max() < 0.05
    with pytest.raises(UserError, match="cannot write packed or quantised weights"):
        save_model(model, "never")


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_fused_products_are_rounded_as_separate_ones(kind: str) -> None:
    """Scales belong to an output, so q, k and v in one are the numbers of q, k and v."""
    noise = torch.Generator().manual_seed(0)
    whole = nn.Linear(128, 96, bias=False, dtype=BF16)
    with torch.no_grad():
        whole.weight.copy_(torch.randn(96, 128, generator=noise))
    x, found = torch.randn(3, 128, generator=noise).to(BF16), []
    for part in whole.weight.split([64, 16, 16]):
        linear = nn.Linear(128, len(part), bias=False, dtype=BF16)
        linear.weight = nn.Parameter(part.detach())
        found.append(NarrowLinear.of(linear, quantize.BITS[kind], True)(x))
    assert torch.equal(torch.cat(found, -1), NarrowLinear.of(whole, quantize.BITS[kind], True)(x))
    layer = mini(kind).transformer.layers[0]
    assert isinstance(layer.attn.qkv, NarrowLinear) and isinstance(layer.mlp.gate_up, NarrowLinear)


def test_a_product_by_our_kernel_is_recorded() -> None:
    pytest.importorskip("triton")
    narrow, graph = NarrowLinear.of(nn.Linear(128, 40, dtype=BF16), 8, True), FakeGraph([])
    rows = torch.randn(3, 128).to(BF16)
    with torch.inference_mode():
        expected, fixed, out = narrow(rows), torch.zeros(3, 128, dtype=BF16), torch.empty(3, 40, dtype=BF16)
        graph.record(lambda: out.copy_(narrow(fixed)))
        fixed.copy_(rows)
        graph.replay()
    assert torch.equal(out, expected)


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    for model in (mini("int8"), load("mini-llada")):
        with pytest.raises(UserError, match="cannot write packed or quantised weights. Load .*quantize=None"):
            save_model(model.transformer, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_runtime_in_which_they_are_slower_is_refused() -> None:
    for runtime in ("auto", "eager", "static"):
        with pytest.raises(UserError, match=f"int4 with runtime={runtime} saves nothing: .* Use runtime=cudagraph, or"):
            check_runtime("int4", runtime, GPU)
    for runtime in ("compile", "compile_cudagraph"):
        with pytest.raises(UserError, match=f"int8 with runtime={runtime} would widen .* Use runtime=cudagraph, or"):
            check_runtime("int8", runtime, GPU)
    for runtime in ("auto", "eager", "static", "cudagraph"):
        with pytest.raises(UserError, match=f"float8 with runtime={runtime} rounds rows in .* Use runtime=compile, or"):
            check_runtime("float8", runtime, GPU)
    for kind in ("int8", "int4"):
        check_runtime(kind, "cudagraph", GPU)
    check_runtime("float8", "compile_cudagraph", GPU)
    check_runtime(None, "eager", GPU)
    check_runtime("int8", "eager", CPU)
    with pytest.raises(UserError, match="float8 with runtime=eager"):
        Decoder(replace(mini(), quantize="float8"), runtime="eager")


def gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], amd: str | None = None) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for module in ("dllm.kernels.dispatch", "dllm.models.weights.quantize", "dllm.models.arithmetic"):
        monkeypatch.setattr(f"{module}.amd_kind", lambda device: amd)


def of(size: int = 256, **changes: Any) -> ModelConfig:
    config = read_model_config(DATA / "models" / "tiny-llada")
    return replace(config, width=size, head_dim=64, heads=size // 64, kv_heads=size // 64, mlp_width=size, **changes)


def test_a_device_that_lacks_float8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"needs a GPU of .* 8\.9 .* the model is on cpu\. Set quantize=int8"):
        check_quantize("float8", of(), BF16, CPU, False)
    monkeypatch.setattr(quantize, "find_spec", lambda name: True)
    for capability, amd, there in (((8, 6), None, r"this GPU has 8\.6"), ((9, 0), "gfx90a", "this is gfx90a")):
        gpu(monkeypatch, capability, amd)
        with pytest.raises(UserError, match=rf"gfx942 or gfx950, and {there}\. Set quantize=int8 or"):
            check_quantize("float8", of(), BF16, GPU, True)
    for capability, amd in (((8, 9), None), ((9, 0), None), ((9, 4), "gfx942")):
        gpu(monkeypatch, capability, amd)
        check_quantize("float8", of(), BF16, GPU, True)
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs torchao.*pip install -e '.*\[quantize\]', or use quantize=int8"):
        check_quantize("float8", of(), BF16, GPU, True)


def test_dtypes_models_and_kernels_that_they_do_not_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    routed, wide = of(moe=MoEConfig(4, 2, 8, "softmax", sparse_layers=(0,))), of(192)
    for dtype in (torch.float32, torch.float16, torch.float64):
        with pytest.raises(UserError, match=r"int8 multiplies rows of bfloat16\. Set dtype=bfloat16 or"):
            check_quantize("int8", of(), dtype, CPU, False)
    with pytest.raises(UserError, match=r"float8 leaves out routed experts.* Set quantize=int8 or"):
        check_quantize("float8", routed, BF16, GPU, True)
    for device, triton in ((CPU, False), (CPU, True), (GPU, True)):
        with pytest.raises(UserError, match=r"int4 takes products whose sizes are multiples of 32, .* 8, 8\."):
            check_quantize("int4", routed, BF16, device, triton)
        check_quantize("int8", routed, BF16, device, triton)
        for kind in ("int4", "int8"):
            check_quantize(kind, wide, BF16, device, triton)
    for config in (of(), routed):
        with pytest.raises(UserError, match=r"int8 on a GPU needs our Triton kernel\. .* use kernels=auto"):
            check_quantize("int8", config, BF16, GPU, False)
    with pytest.raises(UserError, match=r"quantize='int3' must be None, auto, int8, int4 or float8\. Did you mean"):
        check_quantize("int3", of(), BF16, CPU, False)
    monkeypatch.setattr(weights, "_placement", lambda *_: {"embed": "cuda:0", "": "cuda:1"})
    with pytest.raises(UserError, match=r"int8 needs the model on one device, .* use device=cuda:0"):
        load_model(DATA / "models" / "tiny-llada", "auto", BF16, quantize="int8")


def test_a_dtype_that_the_gpu_lacks_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, (7, 5))
    with pytest.raises(UserError, match=r"bfloat16 needs .* 8\.0 .* has 7\.5\. Set dtype=float16"):
        check_numbers(of(), BF16, GPU, "auto", None)
    assert not check_numbers(of(), torch.float16, GPU, "auto", None)
    gpu(monkeypatch, (9, 0), "gfx90a")
    check_numbers(of(), BF16, GPU, "torch", None)
    for name, kind in (("float8_e4m3fn", "float8"), ("int8", "int8"), ("int4", "int4")):
        with pytest.raises(UserError, match=f"dtype={name} must be one of .*quantize={kind} dtype=bf"):
            parse_dtype(name)


def test_the_command_line_refuses_before_it_reads_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "load_model", None)
    for option, sentence in (("model.quantize=int8", "multiplies rows"), ("model.dtype=int8", "must be one of")):
        monkeypatch.setattr(sys, "argv", ["run.py", option, "live=false"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2 and f"{option} {sentence}" in capsys.readouterr().err
