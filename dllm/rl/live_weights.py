"""Weights that change while they decode: what keeps a decoder on them, what replaces them, and what cannot learn.

Decoders, recorded graphs and compiled turns read weights at their addresses. A step of an optimiser and ``reload``
write to the same ones; a trainer that puts other tensors in their place must call ``load`` again, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dllm.errors import UserError
from dllm.kernels.invariant import Tiled
from dllm.kernels.packed import PackedLinear
from dllm.models.bundle import Model, called, locate
from dllm.models.config import ModelConfig
from dllm.models.fused import FUSED, apart
from dllm.models.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.names import parameter_source
from dllm.models.tensor_reader import TensorReader
from dllm.models.transformer import Transformer
from dllm.models.visibility import InBlocks
from dllm.models.weights import prepared, read_model_config

TRAINABLE = "load(FOLDER, trainable=True)"
# Of a config: what may differ where the same network reads the weights.
SAME_NETWORK = ("mask_id", "eos_id", "pad_id", "usual_mask_id", "unsaid", "notes", "published")


def refuse_replaced(model: Model) -> None:
    """Raise UserError where a model object holds other tensors than when ``load`` shared them."""
    lender = model.transformer.lender
    if lender is not None and (name := lender.replaced()) is not None:
        raise UserError(
            f"{type(lender.model).__name__} holds another tensor as {name} than when load shared it (moved, sharded or "
            "merged), so this model decodes with the old one. Call load again, and make the decoder from that."
        )


def refuse_unlearning(model: Model) -> None:
    """Raise UserError, which names a weight, for a model of whose weights none or not all that should can learn."""
    network, narrow = model.transformer, model.quantize or model.quantize_head
    refuse_replaced(model)
    if narrow is not None:
        raise UserError(f"{model.name}: weights in {narrow} cannot learn. Train a plain checkpoint: {TRAINABLE}.")
    parts = {} if network.lender is None else network.lender.parts()
    for ours, name in parts.items():
        raise UserError(f"{model.name}: {ours} is a view of rows of {name}, which no gradient reaches from there. Save "
                        f"the model, and train what {TRAINABLE} gives.")  # fmt: skip
    if not any(parameter.requires_grad for parameter in network.parameters()):
        what = next((name for name, part in network.named_modules() if isinstance(part, PackedLinear | Tiled)), None)
        what = f"{what} is packed" if what is not None else f"{next(network.named_parameters())[0]} is frozen"
        raise UserError(f"{model.name}: none of its weights learns ({what}). Take {TRAINABLE}, or give load the model "
                        "object that is trained.")  # fmt: skip


def gradient_notes(model: Model) -> tuple[str, ...]:
    """Sentences about gradients that differ from those of a model object's own backward."""
    lender = model.transformer.lender
    tables = () if lender is None else (one for one in lender.model.modules() if isinstance(one, nn.Embedding))
    return tuple(
        f"padding_idx={one.padding_idx}: the object's own backward gives this row of the embedding no gradient, and "
        "here it has one"
        for one in tables if one.padding_idx is not None
    )  # fmt: skip


@torch.no_grad()
def reload(model: Model, folder: str | Path) -> Model:
    """Copy a checkpoint's weights into those of a loaded model.

    Args:
        model: as ``load`` gave it. Its decoders, recorded graphs and compiled turns go on with the new weights.
        folder: a name, a folder or a hub id, of the same config. The ids of mask and ends stay the model's.

    Returns:
        The model under the folder's name and path; its network is the same one.

    Raises:
        UserError: the folder has another config; the weights are quantised, merged with an adapter or offloaded.
    """
    path, attention = locate(folder), model.config.attention
    block = attention.length if isinstance(attention, InBlocks) else 0 if model.config.family == "a2d" else None
    config = read_model_config(path, block)
    _refuse_reload(model, config, folder)
    if config.family == MASKED_LM_FAMILY:
        _reload_object(model, path)
    else:
        _, stored, _ = prepared(path, config, None)
        with TensorReader(stored) as reader:
            for names, dtype, device, write in _places(model.transformer):
                parts = [reader.read(parameter_source(name, config), dtype, device) for name in names]
                write(torch.cat(parts) if len(parts) > 1 else parts[0])
    return replace(model, name=called(folder), path=path)


@torch.no_grad()
def write_weights(model: Model, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy tensors, by their published names and in any order, into a loaded model's weights. Raises UserError for a
    name that the model does not have, and for quantised, adapted or offloaded weights."""
    _refuse_made(model, "write_weights(model, ...)")
    config, network = model.config, model.transformer
    places = [([parameter_source(name, config) for name in names], dtype, device, write)
              for names, dtype, device, write in _places(network)]  # fmt: skip
    parts: dict[int, dict[int, Tensor]] = {}  # of places that have not all their rows yet
    for name, tensor in tensors:
        wanted = [(number, at, one) for number, (sources, *_) in enumerate(places) for at, one in enumerate(sources)
                  if one.name == name]  # fmt: skip
        if not wanted and not (config.tied and name == parameter_source("lm_head.weight", config).name):
            raise UserError(f"{model.name} has no weight {name}. Send the tensors by the names of its checkpoint.")
        for number, at, source in wanted:
            sources, dtype, device, write = places[number]
            found = parts.setdefault(number, {})
            rows = tensor if source.rows is None else tensor[slice(*source.rows)]
            found[at] = rows.to(device, dtype)
            if len(found) == len(sources):
                write(torch.cat([found[one] for one in range(len(sources))]))
                del parts[number]


def _refuse_reload(model: Model, config: ModelConfig, folder: str | Path) -> None:
    """Raise UserError for a folder of another config, and for weights that are made from more than a checkpoint's."""
    asked = f"reload(model, {str(folder)!r})"
    _refuse_made(model, asked)
    for name in (one.name for one in fields(ModelConfig) if one.name not in SAME_NETWORK):
        ours, theirs = getattr(model.config, name), getattr(config, name)
        if ours != theirs:
            raise UserError(f"{asked}: its {name} is {theirs!r}, and the model's is {ours!r}. Give a folder of the same"
                            " config, or call load.")  # fmt: skip


def _refuse_made(model: Model, asked: str) -> None:
    """Raise UserError for weights that are made from more than a checkpoint's."""
    kept = {"quantize": model.quantize or model.quantize_head, "adapter": model.adapter or model.draft_adapter}
    for name, value in kept.items():
        if value is not None:
            raise UserError(f"{asked}: the model's weights are made with {name}={str(value)!r}. Call load instead.")
    if any(parameter.is_meta for parameter in model.transformer.parameters()):
        raise UserError(f"{asked}: some of the model's weights are offloaded. Call load instead.")


_Place = tuple[list[str], torch.dtype, str, Callable[[Tensor], object]]  # our names, and what takes their rows together


def _places(network: Transformer) -> Iterator[_Place]:
    """All places that hold weights of ours, by the names that these have in a network of single matrices."""
    for name, there in apart(network):
        yield [name.replace(".module.", ".")], there.dtype, str(there.device), there.copy_
    for path, part in network.named_modules():
        if isinstance(part, PackedLinear):
            path = path.replace(".module", "")
            owner, _, last = path.rpartition(".")
            path = "embed" if path == "lm_head" and network.config.tied else path
            names = [f"{owner}.{one}" for one in FUSED[last]] if last in FUSED else [path]
            yield [f"{one}.weight" for one in names], part.packed.dtype, "cpu", part.repack


def _reload_object(model: Model, path: Path) -> None:
    from dllm.models.masked_lm import load_masked_lm  # BERT's classes, which nothing else needs

    network = model.transformer
    network.load_state_dict(load_masked_lm(path, model.config, network.device, network.dtype).state_dict())
