"""Published safetensors to our transformer and back, by tensor name. No code of a checkpoint is ever executed.

``check_tensors`` reads only the headers. ``load_model`` builds on the meta device and assigns, so an 8B model never
needs twice its memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dllm.errors import UserError
from dllm.kernels.narrow_linear import NarrowLinear
from dllm.kernels.packed import PackedLinear
from dllm.models.adapter import Adapter
from dllm.models.config import ModelConfig
from dllm.models.files import SINGLE, Stored, mismatched, read_json, stored_tensors
from dllm.models.fused import apart, fuse_products
from dllm.models.keys import shown
from dllm.models.transformer import Places, Transformer

FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors call them

_LLADA = {
    "embed": "model.transformer.wte", "norm": "model.transformer.ln_f", "lm_head": "model.transformer.ff_out",
    "layer": "model.transformer.blocks.", "attn_norm": "attn_norm", "mlp_norm": "ff_norm",
    "attn.q": "q_proj", "attn.k": "k_proj", "attn.v": "v_proj", "attn.o": "attn_out",
    "mlp.gate": "ff_proj", "mlp.up": "up_proj", "mlp.down": "ff_out",
}  # fmt: skip
_QWEN = {
    "embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head", "layer": "model.layers.",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj", "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate", "mlp.experts": "mlp.experts", "mlp.shared": "mlp.shared_experts",
}  # fmt: skip
_FUSED = "attention.query_key_value"
_LLADA2 = {
    **_QWEN, "embed": "model.word_embeddings", "attn.q": _FUSED, "attn.k": _FUSED, "attn.v": _FUSED,
    "attn.o": "attention.dense", "attn.q_norm": "attention.query_layernorm",
    "attn.k_norm": "attention.key_layernorm", "mlp.expert_bias": "mlp.gate.expert_bias",
}  # fmt: skip
PUBLISHED_NAMES = {
    "llada": _LLADA, "dream": _QWEN, "llada_moe": _QWEN, "sdar": _QWEN, "llada2": _LLADA2, "wedlm": _QWEN,
    "nbdiff": _QWEN,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where a published file holds one of our parameters: the tensor's name, and its rows (None: all)."""

    name: str
    rows: tuple[int, int] | None = None


def parameter_source(parameter: str, config: ModelConfig) -> Source:
    """The published name of our ``parameter``, and its rows where one tensor holds several of ours (LLaDA2's qkv)."""
    names = PUBLISHED_NAMES[config.family]
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", parameter)
    if match is None:
        module, _, leaf = parameter.rpartition(".")
        return Source(f"{names[module]}.{leaf}")
    place, inner = _layer_name(int(match[1]), config), match[2]
    if inner in names:  # a bare parameter: the router's expert_bias
        return Source(f"{place}.{names[inner]}")
    expert = re.fullmatch(r"mlp\.(experts\.\d+|shared)\.(gate|up|down)\.(\w+)", inner)
    if expert is not None:
        group = expert[1].replace("experts", names["mlp.experts"]).replace("shared", names["mlp.shared"])
        return Source(f"{place}.{group}.{expert[2]}_proj.{expert[3]}")
    module, _, leaf = inner.rpartition(".")
    return Source(f"{place}.{names[module]}.{leaf}", _fused_rows(module, names, config))


def _layer_name(index: int, config: ModelConfig) -> str:
    """The published name of a layer. Grouped layers have another prefix (LLaDA)."""
    prefix, group = PUBLISHED_NAMES[config.family]["layer"], int(config.published.get("block_group_size") or 1)
    if group == 1:
        return f"{prefix}{index}"
    return f"{prefix.replace('.blocks.', '.block_groups.')}{index // group}.{index % group}"


def _fused_rows(module: str, names: Mapping[str, str], config: ModelConfig) -> tuple[int, int] | None:
    if names[module] != _FUSED:
        return None
    query, key = config.heads * config.head_dim, config.kv_width
    return {"attn.q": (0, query), "attn.k": (query, query + key), "attn.v": (query + key, query + 2 * key)}[module]


def parameter_sources(model: Transformer) -> dict[str, Source]:
    """For every parameter of ours, none of them fused, its place in the published file."""
    return {name: parameter_source(name, model.config) for name, _ in model.named_parameters()}


def published_shapes(model: Transformer) -> dict[str, tuple[int, ...]]:
    """The shape of every published tensor that holds parameters of ours, none of them fused."""
    found: dict[str, tuple[int, ...]] = {}
    for ours, source in parameter_sources(model).items():
        rows, *rest = model.get_parameter(ours).shape
        found[source.name] = (rows + found.get(source.name, (0,))[0], *rest)
    return found


def read_model_config(folder: Path) -> ModelConfig:
    """The folder's ``config.json``. Raises UserError when it is missing, broken or of an unknown family."""
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(f"{folder} holds no config.json, so it is no checkpoint folder. Point model.path at one.")
    return ModelConfig.from_published(read_json(file))


def check_sizes(config: ModelConfig, stored: Mapping[str, Stored]) -> None:
    """Refuse sizes that the files cannot hold, before a module is built: building 10**8 experts would never end.

    Up to twice the stored tensors pass, so that ``check_tensors`` can name the missing ones. Raises UserError.
    """
    widest = max((max(tensor.shape) for tensor in stored.values() if tensor.shape and 0 not in tensor.shape), default=0)
    for key, size in config.sizes.items():
        if size > widest:
            most = f"no tensor of the weights has more than {widest} rows or columns"
            raise mismatched(f"config.json has {key}={size}, but {most}", "config.json and weights")
    if config.least_tensors > 2 * len(stored):
        counts = [f"{key}={config.published[key]}" for key in ("n_layers", "num_hidden_layers", "num_experts")
                  if config.published.get(key) is not None]  # fmt: skip
        needs = f"{', '.join(counts)}: that takes {config.least_tensors} tensors or more"
        raise mismatched(f"config.json has {needs}, and the weights hold {len(stored)}", "config.json and weights")


def check_tensors(model: Transformer, stored: Mapping[str, Stored]) -> list[str]:
    """A sentence for each tensor that is missing, misshapen, of no float type, unexpected, or no copy of the one that
    it is tied to. Empty: the files fit."""
    problems, needed = [], published_shapes(model)
    for name, shape in needed.items():
        if name not in stored:
            problems.append(f"tensor {name} is missing")
        elif stored[name].shape != shape:
            problems.append(f"tensor {name} has shape {list(stored[name].shape)}, config.json implies {list(shape)}")
        elif stored[name].dtype not in FLOATS:
            problems.append(f"tensor {name} is stored as {stored[name].dtype}, not as one of {', '.join(FLOATS)}")
    tied_head = PUBLISHED_NAMES[model.config.family]["lm_head"] + ".weight" if model.config.tied else None
    problems += [f"tensor {_printed(name)} is not part of this architecture" for name in stored
                 if name not in needed and name != tied_head and not name.endswith("rotary_emb.inv_freq")]  # fmt: skip
    return problems or tie_problems(model.config, stored)


def _printed(name: str) -> str:
    """A tensor's name as a file gives it, shortened and escaped where it is long or holds control characters."""
    return name if name.isprintable() and len(name) <= 120 else shown(name)


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
    stored = stored_tensors(path)
    check_sizes(config, stored)
    with torch.device("meta"):
        model = Transformer(config)
    problems = check_tensors(model, stored)
    if problems:
        raise UserError(f"{path}: {'; '.join(problems[:5])}{' ...' if len(problems) > 5 else ''}.")
    if adapter is not None:
        adapter.check_fits(published_shapes(model), path)
        adapter.check_base(stored, path)
    placement = device_map(model, dtype) if device == "auto" else {"": device}
    tensors = dict(_read(model, stored, placement, dtype, adapter))
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
                part = shard.get_slice(source.name)
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


def tie_problems(config: ModelConfig, stored: Mapping[str, Stored]) -> list[str]:
    """Where the config ties the head to the embedding and the files hold a head too, both must be equal."""
    names = PUBLISHED_NAMES[config.family]
    head, embed = stored.get(names["lm_head"] + ".weight"), stored.get(names["embed"] + ".weight")
    if not config.tied or head is None or embed is None:
        return []
    with safe_open(head.file, framework="pt") as a, safe_open(embed.file, framework="pt") as b:
        equal = torch.equal(a.get_tensor(head.name), b.get_tensor(embed.name))
    return [] if equal else [f"config.json ties head and embedding, but {head.name} differs from {embed.name}"]


def save_model(model: Transformer, folder: str | Path) -> None:
    """Write config.json and model.safetensors under the published names. Raises UserError for a model whose weights are
    packed or quantised."""
    if any(isinstance(part, PackedLinear | NarrowLinear) for part in model.modules()) or any(
        type(parameter) is not nn.Parameter for parameter in model.parameters()
    ):
        raise UserError(
            "save_model cannot write packed or quantised weights. Load the model with pack=False and quantize=None.")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    grouped: dict[str, list[Tensor]] = {}
    for ours, parameter in apart(model):
        grouped.setdefault(parameter_source(ours, model.config).name, []).append(parameter.detach())
    tensors = {name: torch.cat(parts).cpu() for name, parts in grouped.items()}
    save_file(tensors, path / SINGLE, metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(model.config.published), indent=1) + "\n")
