"""Folders whose weights are quantised already, as ``task=quantize`` writes them: read without work and without a copy.

``config.json`` is the published one, with ``dllm_quantization`` (a version and the kinds). The tensors have our names:
products are fused, each with its narrow weights and scales (``dllm.kernels.narrow_linear.stored``); what stays wide is
in bfloat16. Each part of the model has a safetensors file of its own, whose SHA-256 is in the index; its header is
filled up to a multiple of 64 bytes, which vector instructions of a mapped file want.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from dllm.common.digest import sha256_of
from dllm.common.errors import UserError
from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.narrow_experts import NarrowExperts
from dllm.kernels.narrow_linear import NarrowLinear
from dllm.models.config import ModelConfig
from dllm.models.network.fused import fuse_products
from dllm.models.network.transformer import Transformer
from dllm.models.weights.cut import local_network, share_of
from dllm.models.weights.files import INDEX, Contents, StoredTensor, broken, read_contents, read_json
from dllm.models.weights.footprint import refuse_mapped
from dllm.models.weights.load_progress import LoadProgress, Watch
from dllm.models.weights.narrow_cut import local_tensors
from dllm.models.weights.quantize import quantize_end, quantize_part
from dllm.models.weights.weights import parts_of, read_bytes

TYPE_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int8: "I8", torch.uint8: "U8"}  # as safetensors say
CHECKSUMS = "sha256"  # of the index's metadata: the hash of each file


def skeleton(config: ModelConfig) -> Transformer:
    """The quantised model, or a rank's share of it, on the meta device, as its folder stores it."""
    assert config.stored_kind is not None
    model = local_network(config)
    for prefix, _ in parts_of(model):
        part = model.get_submodule(prefix)
        fuse_products(part, True)
        quantize_part(part, config.stored_kind, False, True)
        quantize_end(model, prefix, config.stored_head, True)
    if config.tied:
        model.tie()
    return model.eval().requires_grad_(False)


def tensors_of(part: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Parameters and buffers of a part by name; none twice."""
    tensors = {**dict(part.named_parameters(prefix)), **dict(part.named_buffers(prefix))}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def narrow_problems(config: ModelConfig, contents: Contents) -> list[str]:
    """A sentence, without its full stop, for each tensor that is missing or another than the config implies."""
    shapes, tensors = tensors_of(skeleton(config)), contents.tensors
    out = []
    for name, tensor in shapes.items():
        there = tensors.get(name)
        if there is None:
            out.append(f"tensor {name} is missing")
        elif (there.shape, there.dtype) != (tuple(tensor.shape), TYPE_NAMES[_file_form(name, tensor).dtype]):
            facts = f"{there.dtype} {list(there.shape)}, and config.json implies"
            out.append(f"tensor {name} is {facts} {TYPE_NAMES[_file_form(name, tensor).dtype]} {list(tensor.shape)}")
    return out + [f"tensor {name} is not part of this architecture" for name in tensors if name not in shapes]


def _file_form(name: str, tensor: Tensor) -> Tensor:
    """With the dtype in which a file has the tensor: that of the router's selection bias is float32."""
    wide = tensor.dtype == torch.float32 and not name.endswith("expert_bias")
    return tensor.to(torch.bfloat16) if wide else tensor


def changed_files(folder: Path, sha256: Mapping[str, str]) -> Iterator[str]:
    """A sentence, without its full stop, for each file that is missing or another than was written."""
    for name, value in sha256.items():
        if not (folder / name).is_file():
            yield f"{name} is missing"
        elif sha256_of(folder / name) != value:
            yield f"{name} is not what was written: its SHA-256 is another"


def checksums(folder: Path) -> Mapping[str, str]:
    """The hash of each file of weights, by its name. Raises UserError where the index has none."""
    metadata = read_json(folder / INDEX).get("metadata", {})
    values = metadata.get(CHECKSUMS) if isinstance(metadata, dict) else None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise broken(f"{folder / INDEX} has no metadata.{CHECKSUMS}")
    return values


def load_narrow(
    folder: Path, config: ModelConfig, device: str, triton: bool, watch: Watch, ranks: Ranks = ALONE, ep: bool = False
) -> Transformer:
    """The model, its tensors mapped where the device reads them as they are stored. ranks: each reads its own share;
    ep: of experts whole ones. Raises UserError for files that do not fit the config."""
    contents = read_contents(folder)
    if problems := narrow_problems(config, contents):
        raise UserError(f"{folder}: {'; '.join(problems[:5])}{' ...' if len(problems) > 5 else ''}.")
    model = skeleton(share_of(config, ranks, ep))
    whole = model if ranks.size == 1 else skeleton(config)
    sizes = {
        name: read_bytes(contents.tensors[name], parameter)
        for name, parameter in tensors_of(model).items()
        if name in contents.tensors
    }  # a tied head has none of its own
    total, count = sum(sizes.values()), 0
    if device == "cpu":
        refuse_mapped(total)
    watch(LoadProgress(0, total, "beginning"))
    for prefix, words in parts_of(model):
        part = model.get_submodule(prefix)
        if not (config.tied and prefix == "lm_head"):
            read_tensor = lambda name: mapped(contents.tensors[name])  # noqa: E731
            for name, tensor in local_tensors(part, whole.get_submodule(prefix), prefix, ranks, read_tensor):
                _set(model, name, tensor.to(device))
                count += sizes[name]
            _place(part, triton)
        watch(LoadProgress(count, total, words))
    if config.tied:
        model.tie()
    return model


def mapped(source: StoredTensor) -> Tensor:
    """A tensor of a file, in the file's own pages."""
    with safe_open(source.file, framework="pt") as shard:
        return shard.get_tensor(source.name)


def _set(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    is_buffer = leaf in dict(module.named_buffers(recurse=False))
    setattr(module, leaf, tensor if is_buffer else nn.Parameter(tensor, requires_grad=False))


def _place(part: nn.Module, triton: bool) -> None:
    for module in part.modules():
        if isinstance(module, NarrowLinear | NarrowExperts):
            module.place(triton)
