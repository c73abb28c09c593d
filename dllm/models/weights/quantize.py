"""Weights in fewer bits: ``model.quantize=int8 | int4 | float8``.

These are a half or a quarter of bfloat16's bytes. On a GPU that saves memory and not yet time: a turn of LLaDA-8B at
batch 1 took 6.1 ms in int8 as in bfloat16 on an H200, and 13.4 ms in int4 (docs/measured/speed.md).

int8, int4: the weights alone. The product widens them tile by tile: on a GPU in our kernels, on a CPU in PyTorch's
operators. The host of an eager GPU takes longer to launch the products than the GPU to read the weights, so there
fewer bytes save nothing; runtime=cudagraph launches them all at once.

float8: weights and rows, each with a scale per row, so that no row depends on another (a scale per tensor would take
the largest number of all rows). The GPU's matrix units multiply them as they are, which torchao documents as its fast
way at any number of rows; float8 weights alone are widened whole in every call. Without torch.compile, finding the
scales and rounding take several kernels per product.

Products are quantised after q, k and v, and gate and up, have become one: every output has scales of its own, so its
numbers are those of the separate ones. The embedding and the head stay, since a GPU's fused head reads bfloat16. On a
CPU ``model.quantize_head=int8 | int4`` narrows them beside int8 and int4, in a kind of their own.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import cast

import torch
from torch import nn

from dllm.common.errors import Refusal, Set, nearest
from dllm.common.installing import not_installed
from dllm.common.ranks import ALONE
from dllm.kernels.dispatch import AMD_GPUS, amd_kind
from dllm.kernels.narrow_embedding import NarrowEmbedding
from dllm.kernels.narrow_experts import NarrowExperts
from dllm.kernels.narrow_linear import NarrowLinear
from dllm.kernels.narrow_product import GROUP
from dllm.kernels.stepped import SteppedLinear, has_steps, stepped_experts
from dllm.models.config import ModelConfig
from dllm.models.network.experts import MLP, MoE, StackedExperts
from dllm.models.network.layer import Layer
from dllm.models.network.transformer import Transformer

BITS = {"int8": 8, "int4": 4}
QUANTIZATIONS = (*BITS, "float8")
MULTIPLES = {"int8": 1, "int4": GROUP, "float8": 16}  # of the sizes of products
NARROWING = ("o", "down")  # products whose inputs ranks share
FLOAT8_CAPABILITY = (8, 9)  # Ada, Hopper
_PLAIN, _INT8 = Set("model.quantize", None), Set("model.quantize", "int8")  # ways out


def check_quantize(
    kind: str | None, config: ModelConfig, dtype: torch.dtype, device: torch.device, triton: bool
) -> None:
    """Raises UserError for an unknown kind, and for a model, dtype or device without it. triton: our kernels run."""
    if kind is None:
        return
    name = f"{{model.quantize={kind}}}"
    if kind not in QUANTIZATIONS:
        raise Refusal(
            f"{{model.quantize:quoted}} must be {{null}}, auto, int8, int4 or float8.{nearest(kind, QUANTIZATIONS)}",
            [kind],
        )
    if config.moe is not None and kind == "float8":
        raise Refusal(f"{name} leaves out routed experts, which are most of this model.", (), [_INT8, _PLAIN])
    if dtype != torch.bfloat16:
        raise Refusal(f"{name} multiplies rows of bfloat16.", (), [Set("model.dtype", "bfloat16"), _PLAIN])
    experts = () if config.moe is None else (config.moe.width, config.moe.shared_width or config.moe.width)
    sizes, multiple = (config.width, config.heads * config.head_dim, config.mlp_width, *experts), MULTIPLES[kind]
    if any(size % multiple for size in sizes) or (kind != "int8" and config.kv_width % 16):
        raise Refusal(
            f"{name} takes products whose sizes are multiples of {multiple}, and this model's are "
            f"{', '.join(map(str, sizes))}.",
            (),
            [_INT8, _PLAIN],
        )
    if kind == "float8":
        check_float8(device)
    elif device.type != "cpu" and not triton:
        way_out = "Or use {kernels=auto} on a GPU that has it."
        raise Refusal(f"{name} on a GPU needs our Triton kernel.", (), [_PLAIN], way_out)


def needs_narrow(name: str, kind: str | None, plain: Set) -> None:
    """Raises UserError if layers of ``kind`` are not in int8 or int4, which setting ``name`` needs. plain: the way
    out without it."""
    if kind not in BITS:
        reason = f"{name} goes with layers in int8 or int4, and there is {{model.quantize}}."
        raise Refusal(reason, [kind], [_INT8, plain])


def check_head(head: str | None, kind: str | None, config: ModelConfig, device: torch.device) -> None:
    """Raises UserError for an unknown kind of embedding and head, and for one that does not go with the layers'
    ``kind``, the model or the device."""
    if head is None:
        return
    name, plain = f"{{model.quantize_head={head}}}", Set("model.quantize_head", None)
    if head not in BITS:
        raise Refusal(
            f"{{model.quantize_head:quoted}} must be {{null}}, int8 or int4.{nearest(head, tuple(BITS))}", [head]
        )
    needs_narrow(name, kind, plain)
    if device.type != "cpu":
        is_narrow = config.stored_head is not None
        raise Refusal(
            f"{name} is for a CPU: the fused head of a GPU reads bfloat16.",
            (),
            [Set("model.device", "cpu"), *(() if is_narrow else (plain,))],
            "Or run task=quantize without {model.quantize_head:name}." if is_narrow else "",
        )
    if head == "int4" and config.width % GROUP:
        raise Refusal(
            f"{name} takes widths that are multiples of {GROUP}, and this model's is {config.width}.",
            (),
            [Set("model.quantize_head", "int8"), plain],
        )


def check_float8(device: torch.device) -> None:
    """Raises UserError where the device does not multiply in float8, or torchao is not installed."""
    there = "the model is on " + device.type
    if device.type == "cuda" and (amd := amd_kind(device)) is not None:
        there = "" if amd in AMD_GPUS else f"this is {amd}"
    elif device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        there = "" if capability >= FLOAT8_CAPABILITY else f"this GPU has {'.'.join(map(str, capability))}"
    if there:
        raise Refusal(
            "{model.quantize=float8} needs a GPU of compute capability 8.9 (Ada, Hopper) or newer, or AMD's "
            f"{' or '.join(AMD_GPUS)}, and {there}.",
            (),
            [_INT8, _PLAIN],
        )
    if find_spec("torchao") is None:
        raise not_installed("{model.quantize=float8}", "torchao", "quantize", "use {model.quantize=int8}")


def check_runtime(kind: str | None, runtime: str, device: torch.device, activations: str | None = None) -> None:
    """Raises UserError for a runtime in which the weights would be slower than plain ones, or no faster, and for one
    that cannot compile rounded rows."""
    if activations is not None and device.type == "cpu" and runtime.startswith("compile"):
        raise Refusal(
            "{model.activations} with {runtime}: torch.compile cannot look into weights in oneDNN's layout.",
            [activations, runtime],
            [Set("runtime", "eager"), Set("model.activations", None)],
        )
    if kind == "float8" and not runtime.startswith("compile"):
        reason, way_out = "rounds rows in several kernels per product, which costs more than it saves", "compile"
    elif kind in BITS and device.type == "cuda" and runtime.startswith("compile"):
        reason, way_out = "would widen all weights in every call: torch.compile does not read our kernel", "cudagraph"
    elif kind in BITS and device.type == "cuda" and runtime != "cudagraph":
        reason, way_out = "saves nothing: the host launches products more slowly than the GPU reads them", "cudagraph"
    else:
        return
    ways = [Set("runtime", way_out), _PLAIN]
    raise Refusal(f"{{model.quantize}} with {{runtime}} {reason}.", [kind, runtime], ways)


def on_several_devices(kind: str) -> Refusal:
    """The error for a model that is spread over devices."""
    return Refusal(
        "{model.quantize} needs the model on one device, and this one is spread over several.",
        [kind],
        [_PLAIN],
        "Or use {model.device=cuda:0} if it fits there.",
    )


def quantize_end(model: Transformer, prefix: str, kind: str | None, as_stored: bool = False) -> None:
    """Quantise the embedding or the head in place, where ``prefix`` names it; a tied head follows by ``tie``. kind:
    None changes nothing. as_stored: in the form of files."""
    if kind is None or prefix not in ("embed", "lm_head") or (prefix == "lm_head" and model.config.tied):
        return
    narrow = NarrowEmbedding.of(model.get_submodule(prefix).get_parameter("weight").detach(), BITS[kind])
    setattr(model, prefix, narrow if prefix == "embed" else narrow.head(as_stored))


def quantize_part(part: nn.Module, kind: str, triton: bool, as_stored: bool = False) -> None:
    """Quantise the products of a layer in place, each when the one before is done; the other parts of a model stay.
    triton: our kernel multiplies. as_stored: in the form of files, which this machine may not multiply."""
    if not isinstance(part, Layer):
        return
    if kind == "float8":
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

        # torchao's settings of inductor would choose kernels by a stopwatch, in the whole process.
        scaled = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False)
        quantize_(part, scaled, lambda module, name: type(module) is nn.Linear)
        return
    for mixture in [each for each in part.modules() if isinstance(each, MoE) and has_steps(each.experts)]:
        pairs = [(expert.gate_up, expert.down) for expert in cast("list[MLP]", list(mixture.experts.children()))]
        mixture.experts = stepped_experts(cast("list[tuple[nn.Module, nn.Module]]", pairs), triton, as_stored)
    for module in list(part.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                sharing = part.ranks if name in NARROWING else ALONE
                setattr(module, name, NarrowLinear.of(child, BITS[kind], triton, as_stored, sharing))
            elif isinstance(child, SteppedLinear):
                setattr(module, name, child.narrow(triton, as_stored))
            elif isinstance(child, StackedExperts):
                sharing, bits = ALONE if getattr(module, "local_experts", None) else part.ranks, BITS[kind]
                stacks, activation = (child.gate_up, child.down), child.activation
                setattr(module, name, NarrowExperts.of(*stacks, bits, triton, as_stored, activation, sharing))
