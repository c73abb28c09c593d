"""Published safetensors to our transformer and back, by tensor name. No code of a checkpoint is ever executed.

``load_model`` builds on the meta device and assigns, so an 8B model never needs twice its memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dllm.errors import UserError, warn_once
from dllm.kernels.invariant import Tiled
from dllm.kernels.narrow_linear import NarrowLinear
from dllm.kernels.packed import PackedLinear
from dllm.models.adapter import Adapter
from dllm.models.config import ModelConfig
from dllm.models.files import SINGLE, Stored, read_contents, read_json
from dllm.models.fit import Fit, check_sizes
from dllm.models.fused import apart, fuse_products
from dllm.models.names import Source, parameter_source, parameter_sources, published_shapes
from dllm.models.transformer import Places, Transformer


def read_model_config(folder: Path, attention_block: int | None = None) -> ModelConfig:
    """The folder's ``config.json``. attention_block: see ``ModelConfig.with_attention_block``. Raises UserError when it
    is missing, broken or of an unknown family."""
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(f"{folder} holds no config.json, so it is no checkpoint folder. Point model.path at one.")
    called = folder.resolve().parts[:-4:-1]  # a hub's id is two folders above its files
    return ModelConfig.from_published(read_json(file)).with_attention_block(attention_block, called)


def load_model(
    folder: str | Path, device: str = "cpu", dtype: torch.dtype = torch.float32, config: ModelConfig | None = None,
    adapter: Adapter | None = None, fuse: bool = True,
) -> Transformer:  # fmt: skip
    """The checkpoint in ``folder`` as a Transformer in eval mode, its products fused unless it shall be trained.

    device: ``auto`` spreads the layers over all GPUs (accelerate). config: the folder's where None. adapter: merged
    into the weights. Raises UserError that names the tensor when the files do not fit the config, and for an adapter of
    another base.
    """
    path = Path(folder)
    config = config or read_model_config(path)
    found = read_contents(path)
    check_sizes(config, found.tensors)
    with torch.device("meta"):
        model = Transformer(config)
    fit = Fit.of(model, found)
    if fit.problems:
        raise UserError(f"{path}: {'; '.join(fit.problems[:5])}{' ...' if len(fit.problems) > 5 else ''}.")
    if adapter is not None:
        adapter.check_fits(published_shapes(model), path)
        adapter.check_base(fit.tensors, path)
    for sentence in fit.left_out:
        warn_once(f"{path}: {sentence}")
    placement = device_map(model, dtype) if device == "auto" else {"": device}
    tensors = dict(_read(model, fit.tensors, placement, dtype, adapter))
    model.load_state_dict(tensors, assign=True, strict=not model.config.tied)
    if model.config.tied:
        model.lm_head.weight = model.embed.weight
    if fuse:
        fuse_products(model)
    spread_over_devices(model.eval().requires_grad_(False), placement)
    return model


def spread_over_devices(model: Transformer, placement: Mapping[str, Any]) -> None:
    """Set ``model.places`` for a model whose tensors lie on several devices, as ``placement`` says.

    Layers in the CPU's memory run on the first GPU: accelerate copies their weights there in every forward.
    """
    devices = dict.fromkeys(placement.values())
    if len(devices) < 2:
        return
    first, offloaded = next(device for device in devices if device != "cpu"), "cpu" in devices
    if offloaded:
        from accelerate import dispatch_model

        dispatch_model(model, dict(placement), main_device=first)
    runs = {name: first if device == "cpu" else device for name, device in placement.items()}
    *layers, norm, head = (
        torch.device(device_of(f"{part}.weight", runs))
        for part in (*(f"layers.{layer}" for layer in range(model.config.layers)), "norm", "lm_head")
    )
    model.places = Places(layers, norm, head, offloaded)


def _read(
    model: Transformer, stored: Mapping[str, Stored], placement: Mapping[str, Any], dtype: torch.dtype,
    adapter: Adapter | None,
) -> Iterator[tuple[str, Tensor]]:  # fmt: skip
    places: dict[tuple[Path, str], list[tuple[str, Source]]] = {}  # each file is opened once per device
    for ours, source in parameter_sources(model).items():
        places.setdefault((stored[source.name].file, device_of(ours, placement)), []).append((ours, source))
    for (file, device), wanted in places.items():
        with safe_open(file, framework="pt", device=device) as shard:
            for ours, source in wanted:
                part = shard.get_slice(stored[source.name].name)
                tensor = part[:] if source.rows is None else part[slice(*source.rows)]
                if adapter is not None:
                    tensor = adapter.merged(source.name, tensor, source.rows, dtype)
                # The router's selection bias is float32 whatever the model's dtype, as in LLaDA2's published code.
                yield ours, tensor.to(torch.float32 if ours.endswith("expert_bias") else dtype).contiguous()


def device_of(parameter: str, placement: Mapping[str, Any]) -> str:
    """The device of a parameter. accelerate numbers GPUs: 0 is cuda:0."""
    names = [name for name in placement if name == "" or parameter == name or parameter.startswith(name + ".")]
    device = placement[max(names, key=len)]
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def device_map(model: Transformer, dtype: torch.dtype) -> dict[str, Any]:
    """The device of each part of a model, chosen by accelerate: a GPU's number or ``cpu``. Raises UserError where the
    model does not fit into memory."""
    from accelerate import infer_auto_device_map

    placement = dict(infer_auto_device_map(model, no_split_module_classes=["Layer"], dtype=dtype))
    if "disk" in placement.values():
        raise UserError("the model does not fit in this machine's memory, GPUs and CPU together. Use a smaller dtype.")
    return placement


def save_model(model: Transformer, folder: str | Path) -> None:
    """Write config.json and model.safetensors under the published names. Raises UserError for a model whose weights are
    packed or quantised."""
    if any(isinstance(part, PackedLinear | Tiled | NarrowLinear) for part in model.modules()) or any(
        type(parameter) is not nn.Parameter for parameter in model.parameters()
    ):
        raise UserError(
            "save_model cannot write packed or quantised weights. Load the model with pack=False, kernels='auto' and "
            "quantize=None."
        )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    grouped: dict[str, list[Tensor]] = {}
    for ours, parameter in apart(model):
        grouped.setdefault(parameter_source(ours, model.config).name, []).append(parameter.detach())
    tensors = {name: torch.cat(parts).cpu() for name, parts in grouped.items()}
    save_file(tensors, path / SINGLE, metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(model.config.published), indent=1) + "\n")
