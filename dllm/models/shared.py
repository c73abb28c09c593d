"""A model object of the user's, decoded with as it is: ``load(model, tokenizer)``.

Its weights are shared, not copied: a training loop evaluates what it holds, and every step of its optimiser shows at
once. An object of a known family lends its tensors to our transformer; one of transformers' own masked language models
is called itself (``dllm.models.network.masked_lm``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError
from dllm.models.config import FAMILIES, ModelConfig
from dllm.models.families import Family
from dllm.models.network.masked_lm import MaskedLM, checked_padding, evaluating
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY, is_masked_lm
from dllm.models.network.networks import network_of
from dllm.models.network.transformer import Transformer
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.weights.names import Source, parameter_sources


def unwrapped(model: Any) -> nn.Module:
    """The model in a wrapper of peft's, whose adapters are in its layers; any other object as it is. Raises UserError
    for adapters that are tokens of the prompt."""
    settings = getattr(model, "peft_config", None)
    if settings is None or not hasattr(model, "get_base_model"):
        return model
    for name, config in settings.items():
        if config.is_prompt_learning:
            raise UserError(
                f"adapter {name!r} of {type(model).__name__} is a {type(config).__name__}, which puts tokens "
                "before the prompt, and adapters are read in layers alone. Use a LoraConfig."
            )
    return model.get_base_model()


def object_config(model: nn.Module, attention_block: int | None, family: Family | str | None = None) -> ModelConfig:
    """The description of a model object. Raises UserError for one of no known family."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_json_string"):
        raise UserError(
            f"{type(model).__name__} is not a model object of transformers: it has no config. Give load the model "
            "itself, not what wraps it (DDP: .module), or a folder."
        )
    published = {**json.loads(config.to_json_string()), "architectures": [architecture_of_object(model, config)]}
    return ModelConfig.from_published(published, family).with_attention_block(attention_block)


def object_ends(model: nn.Module) -> list[int]:
    """The ids that end a text by the generation config of a model object."""
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [] if ids is None else list(ids) if isinstance(ids, list | tuple) else [int(ids)]


def architecture_of_object(model: nn.Module, config: Any) -> str:
    """Of its config where that names a known family, else its class's name."""
    names, class_name = list(getattr(config, "architectures", None) or []), type(model).__name__
    if names and str(names[0]) in FAMILIES:
        return str(names[0])
    if class_name in FAMILIES or is_masked_lm(class_name) or not names:
        return class_name
    return str(names[0])


def sharing(model: nn.Module, config: ModelConfig) -> Transformer:
    """Our transformer on the weights of ``model``. Raises UserError where the object's tensors are others than those of
    its family, or of several dtypes or devices."""
    if config.family == MASKED_LM_FAMILY:
        return checked_padding(MaskedLM(model, config))
    tensors, adapted = named_tensors(model), adapted_layers(model)
    with torch.device("meta"):
        ours = network_of(config)
    shapes = {name: parameter.shape for name, parameter in ours.named_parameters()}
    sources, parameters, wrapped = dict[str, Source](), dict[str, nn.Parameter](), dict[str, str]()
    for name, source in parameter_sources(ours).items():
        (owner, _, leaf), (layer, _, _) = name.rpartition("."), source.name.rpartition(".")
        if layer in adapted:
            refuse_adapted(ours.get_submodule(owner), layer, source, config.tied and owner == "lm_head")
            source = replace(source, name=f"{layer}.{adapted[layer]}.{leaf}")
            wrapped[owner] = layer
        sources[name] = source
        parameters[name] = shared_parameter(tensors, source, shapes[name], type(model).__name__)
        setattr(ours.get_submodule(owner), leaf, parameters[name])
    if config.tied:
        ours.tie()
    ours.eval()
    for owner, layer in wrapped.items():  # which stay in the mode in which they are
        ours.set_submodule(owner, AdaptedLinear(model.get_submodule(layer)))
    kinds = {(tensor.dtype, tensor.device) for name, tensor in parameters.items() if not name.endswith("expert_bias")}
    if len(kinds) > 1:
        what = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise UserError(f"{type(model).__name__} has weights of several kinds ({what}). Use one dtype and one device.")
    addresses = {source.name: address(tensors[source.name]) for source in sources.values()}
    ours.lender = Lender(model, sources, addresses, bool(wrapped))
    return ours


class AdaptedLinear(nn.Module):
    """A linear layer of the user's with what peft has put on it, which it adds itself while it is switched on. There is
    no dropout: at the same weights a forward gives the same numbers."""

    weight = None  # no one multiplies with it in another way

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with evaluating(self.layer):
            return self.layer(x)


def adapted_layers(model: nn.Module) -> dict[str, str]:
    """The layers that peft has wrapped, by name, and what each calls the layer in it."""
    return {
        name: inner
        for name, layer in model.named_modules()
        for inner in ("base_layer", "original_module")
        if isinstance(getattr(layer, inner, None), nn.Module)
    }


def refuse_adapted(ours: nn.Module, layer: str, source: Source, is_tied: bool) -> None:
    """Raise UserError for an adapter on anything but a linear layer of its own."""
    if type(ours) is not nn.Linear or source.rows is not None or is_tied:
        what = "a tied head" if is_tied else "rows of one tensor" if source.rows else f"no {nn.Linear.__name__} here"
        raise UserError(
            f"{layer} has an adapter and is {what}. Put adapters on the products of attention and MLPs, or "
            "give load what merge_and_unload returns."
        )


@dataclass(frozen=True)
class Lender:
    """The object that lends a network its weights: what of it the network does not see is asked here."""

    model: nn.Module  # the user's
    sources: Mapping[str, Source]  # of our parameters, by name
    addresses: Mapping[str, int]  # of its tensors when they were shared, by its names
    adapted: bool = False  # peft's adapters are on some of its layers

    def replaced(self) -> str | None:
        """The first tensor that is another one than when it was shared; None: all are the same."""
        tensors = named_tensors(self.model)
        return next((name for name, there in self.addresses.items() if address(tensors.get(name)) != there), None)

    def parts(self) -> dict[str, str]:
        """Our parameters that are rows of a tensor that learns, and its name: no gradient goes from them to it."""
        tensors = named_tensors(self.model)
        rows = {ours: source.name for ours, source in self.sources.items() if source.rows is not None}
        return {ours: name for ours, name in rows.items() if name in tensors and tensors[name].requires_grad}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by every name that they have."""
    return {**dict(model.named_buffers()), **dict(model.named_parameters(remove_duplicate=False))}


def address(tensor: Tensor | None) -> int:
    """Where its numbers are; 0: they are in no plain tensor."""
    return tensor.data_ptr() if tensor is not None and type(tensor.data) is Tensor else 0


def shared_parameter(tensors: Mapping[str, Tensor], source: Source, shape: torch.Size, kind: str) -> nn.Parameter:
    """The object's own parameter, or rows of it as a view."""
    tensor = tensors.get(source.name)
    if tensor is None or type(tensor.data) is not Tensor or tensor.is_meta:
        why = "has no plain tensor" if tensor is None else "holds no plain numbers in"
        raise UserError(
            f"{kind} {why} {source.name}, where its family has its weights, so they cannot be shared. Save it with "
            "save_pretrained and load the folder."
        )
    part = tensor if source.rows is None else tensor[slice(*source.rows)]
    if part.shape != shape:
        raise UserError(
            f"{kind}: {source.name} has the shape {list(part.shape)}, and its config implies "
            f"{list(shape)}. Give load a model whose config is its own."
        )
    if isinstance(part, nn.Parameter):
        return part
    return nn.Parameter(part.detach(), requires_grad=False)


def tokenizer_of(tokenizer: Any) -> Tokenizer | None:
    """Ours, from transformers' object. Raises UserError for one without files of the ``tokenizers`` package."""
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not hasattr(tokenizer, "save_pretrained"):
        raise UserError(
            f"tokenizer={tokenizer!r} must be a tokenizer of transformers; it goes with a model object. A device is "
            "named: load(path, device='cuda')."
        )
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return Tokenizer.from_folder(Path(folder))
