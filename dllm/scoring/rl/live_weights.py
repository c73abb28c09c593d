"""Weights that change while they decode: what keeps a decoder on them, what replaces them, and what cannot learn.

Decoders, recorded graphs and compiled turns read weights at their addresses. A step of an optimiser and ``reload``
write to the same ones. A trainer that replaces them by other tensors must call ``load`` again: an error says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from dllm.common.errors import UserError
from dllm.kernels.invariant import Tiled
from dllm.kernels.packed import PackedLinear
from dllm.models.arithmetic import DTYPES
from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.models.keys import printed
from dllm.models.network.fused import FUSED, apart
from dllm.models.network.masked_lm import MaskedLM, load_masked_lm
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.network.transformer import Transformer
from dllm.models.network.visibility import InBlocks
from dllm.models.weights.checkpoint_path import folder_label, locate
from dllm.models.weights.names import Source, parameter_source
from dllm.models.weights.tensor_reader import TensorReader
from dllm.models.weights.weights import prepared, read_model_config

FLOAT_TYPES = frozenset(DTYPES.values())
IGNORED_SUFFIX = "rotary_emb.inv_freq"  # as ``load`` does
# All experts of a layer in one tensor, as the classes of transformers 5 hold those of Qwen3-MoE's kind.
EXPERT_STACK = re.compile(r"(.+\.experts)\.(gate_up|down)_proj")
TRAINABLE = "load(FOLDER, trainable=True)"
# Entries of a config that may differ where the same network reads the weights.
SAME_NETWORK = ("mask_id", "eos_id", "pad_id", "usual_mask_id", "unsaid", "notes", "published")


def refuse_replaced(model: Model) -> None:
    """Raise UserError where a model object holds other tensors than when ``load`` shared them."""
    lender = model.transformer.lender
    if lender is not None and (name := lender.replaced()) is not None:
        raise UserError(
            f"{type(lender.model).__name__} holds another tensor as {name} than when load shared it (moved, sharded or "
            "merged), so this model decodes with the old one. Call load again, and make the decoder from that."
        )


def refuse_next_token(model: Model) -> None:
    """Raise UserError for a model without a mask: what a text leaves of its canvas has an id that no embedding has."""
    if model.config.attention.next_token:
        raise UserError(
            f"{model.name} predicts the next token, and rollouts here are canvases of masks. Take transformers' "
            "generate, or a trainer of autoregressive models."
        )


def refuse_unlearning(model: Model) -> None:
    """Raise UserError, which names a weight, for a model of whose weights none or not all that should can learn."""
    network, narrow = model.transformer, model.quantize or model.quantize_head
    refuse_replaced(model)
    if narrow is not None:
        raise UserError(f"{model.name}: weights in {narrow} cannot learn. Train a plain checkpoint: {TRAINABLE}.")
    parts = {} if network.lender is None else network.lender.parts()
    for ours, name in parts.items():
        raise UserError(
            f"{model.name}: {ours} is a view of rows of {name}, which no gradient reaches from there. Save "
            f"the model, and train what {TRAINABLE} gives."
        )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        reason = next((name for name, part in network.named_modules() if isinstance(part, PackedLinear | Tiled)), None)
        reason = f"{reason} is packed" if reason is not None else f"{next(network.named_parameters())[0]} is frozen"
        raise UserError(
            f"{model.name}: none of its weights learns ({reason}). Take {TRAINABLE}, or give load the model "
            "object that is trained."
        )


def gradient_notes(model: Model) -> tuple[str, ...]:
    """Sentences about gradients that differ from those of a model object's own backward."""
    lender = model.transformer.lender
    tables = () if lender is None else (table for table in lender.model.modules() if isinstance(table, nn.Embedding))
    return tuple(
        f"padding_idx={table.padding_idx}: the object's own backward gives this row of the embedding no gradient, and "
        "here it has one"
        for table in tables
        if table.padding_idx is not None
    )


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
    block = attention.length if isinstance(attention, InBlocks) else 0 if model.config.layout.answer_block else None
    config = read_model_config(path, block, family=model.config.described_by)
    _refuse_reload(model, config, folder)
    if config.family == MASKED_LM_FAMILY:
        network = model.transformer
        network.load_state_dict(load_masked_lm(path, model.config, network.device, network.dtype).state_dict())
    else:
        _, tensors, _ = prepared(path, config, None)
        with TensorReader(tensors) as reader:
            for place in _places(model.transformer):
                parts = [reader.read(parameter_source(name, config), place.dtype, place.device) for name in place.rows]
                place.write(torch.cat(parts) if len(parts) > 1 else parts[0])
    return replace(model, name=folder_label(folder), path=path)


def write_weights(model: Model, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy tensors, by their published names and in any order, into a loaded model's weights: all of them in one call,
    or in several, or some alone. Raises UserError as ``WeightWriter``."""
    with WeightWriter(model) as writer:
        for name, tensor in tensors:
            writer.write(name, tensor)


class WeightWriter:
    """Takes tensors of a checkpoint, one after the other, into a loaded model's weights. A context: what decodes sees
    all of them when it has ended.

    A matrix that is packed with others (q, k and v) is written with them if they come, too, and otherwise beside the
    weights that they have. No tensor is kept that the caller may overwrite.

    Raises:
        UserError: quantised, adapted, offloaded or divided weights; a name that the model does not have, a tensor of
            another shape or of no float type, and a head that differs from the embedding that it is tied to.
    """

    def __init__(self, model: Model) -> None:
        _refuse_derived(model, "write_weights(model, ...)")
        self.model, self.waiting = model, dict[int, dict[str, Tensor]]()
        self.places = [*_places(model.transformer)]
        self.targets: dict[str, list[_Target]] = {}
        for number, place in enumerate(self.places):
            for ours in place.rows:
                source = Source(ours) if place.is_published else parameter_source(ours, model.config)
                self.targets.setdefault(source.name, []).append(_Target(number, ours, source.rows))
        self.tied = set[str]()  # names of the embedding and of the head tied to it that came

    def __enter__(self) -> WeightWriter:
        return self

    @torch.no_grad()
    def __exit__(self, *_: object) -> None:
        for number, new in self.waiting.items():
            place = self.places[number]
            present = place.present().split([*place.rows.values()])
            place.write(torch.cat([new.get(name, old) for name, old in zip(place.rows, present, strict=True)]))
        self.waiting.clear()

    @torch.no_grad()
    def write(self, name: str, tensor: Tensor) -> None:
        """Write one tensor, by its published name."""
        config = self.model.config
        if name.endswith(IGNORED_SUFFIX) or name.startswith(config.layout.towers):
            return
        ours, theirs = config.layout.tied
        if theirs and name.startswith(theirs) and name not in self.targets:  # two parts that are one network
            name = ours + name.removeprefix(theirs)
        stack = None if name in self.targets else EXPERT_STACK.fullmatch(name)
        if stack is not None and config.moe is not None and len(tensor) == config.moe.experts:
            parts = FUSED.get(stack[2], ("down",))
            for number, matrix in enumerate(tensor):
                for kind, rows_of_kind in zip(parts, matrix.chunk(len(parts)), strict=True):
                    self.write(f"{stack[1]}.{number}.{kind}_proj.weight", rows_of_kind)
            return
        targets = self.targets.get(self._our_name(name, tensor), ())
        if not targets:
            raise UserError(
                f"{self.model.name} has no weight {printed(name)}. Send the tensors by the names of its checkpoint."
            )
        self._refuse_unfit(name, tensor, targets)
        for number, parameter, rows in targets:
            place = self.places[number]
            part = tensor if rows is None else tensor[slice(*rows)]
            if len(place.rows) == 1:
                place.write(part.to(place.device, place.dtype))
                continue
            pieces = self.waiting.setdefault(number, {})
            pieces[parameter] = part.to(place.device, place.dtype, copy=True)
            if len(pieces) == len(place.rows):
                place.write(torch.cat([pieces[row] for row in place.rows]))
                del self.waiting[number]

    def _our_name(self, name: str, tensor: Tensor) -> str:
        """The name under which the model has a tensor. Raises UserError for a head that differs from its embedding."""
        config = self.model.config
        if not config.tied or config.family == MASKED_LM_FAMILY:
            return name
        embed, head = (parameter_source(f"{module}.weight", config).name for module in ("embed", "lm_head"))
        if name in (embed, head):
            embedding = self.places[self.targets[embed][0].place].there
            if (
                self.tied - {name}
                and tensor.shape == embedding.shape
                and not torch.equal(tensor.to(embedding), embedding)
            ):
                raise UserError(f"{head} differs from {embed}, to which {self.model.name} ties it. Send one of them.")
            self.tied.add(name)
        return embed if name == head else name

    def _refuse_unfit(self, name: str, tensor: Tensor, targets: Sequence[_Target]) -> None:
        """Raise UserError for a tensor of another shape than the model's, or of no float type."""
        count, *widths = self.places[targets[0].place].shape(targets[0].name)
        shape = [
            count if targets[0].rows is None else max(target.rows[1] for target in targets if target.rows),
            *widths,
        ]
        if list(tensor.shape) != shape:
            raise UserError(
                f"{name} has the shape {list(tensor.shape)}, and in {self.model.name} it has {shape}. Send "
                "whole tensors of the same config."
            )
        if tensor.dtype not in FLOAT_TYPES or tensor.is_meta:
            kind = "on the meta device" if tensor.is_meta else str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{name} is {kind}, and weights are {', '.join(DTYPES)}. Send numbers of one of these.")


def _refuse_reload(model: Model, config: ModelConfig, folder: str | Path) -> None:
    """Raise UserError for a folder of another config, and for weights that are made from more than a checkpoint's."""
    call = f"reload(model, {str(folder)!r})"
    _refuse_derived(model, call)
    for name in (entry.name for entry in fields(ModelConfig) if entry.name not in SAME_NETWORK):
        ours, theirs = getattr(model.config, name), getattr(config, name)
        if ours != theirs:
            raise UserError(
                f"{call}: its {name} is {theirs!r}, and the model's is {ours!r}. Give a folder of the same"
                " config, or call load."
            )


def _refuse_derived(model: Model, call: str) -> None:
    """Raise UserError for weights that are made from more than a checkpoint's."""
    sources = {"quantize": model.quantize or model.quantize_head, "adapter": model.adapter or model.draft_adapter}
    for name, value in sources.items():
        if value is not None:
            raise UserError(f"{call}: the model's weights are made with {name}={str(value)!r}. Call load instead.")
    if model.transformer.lender is not None and model.transformer.lender.adapted:
        raise UserError(f"{call}: peft's adapters are on the object that it shares. Write into the object itself.")
    if model.ranks.size > 1:
        raise UserError(f"{call}: {model.ranks.size} processes divide the model's weights. Call load instead.")
    if any(parameter.is_meta for parameter in model.transformer.parameters()):
        raise UserError(f"{call}: some of the model's weights are offloaded. Call load instead.")


class _Target(NamedTuple):
    """Where a published tensor goes: a place, the name there, and which of the tensor's rows (None: all)."""

    place: int
    name: str
    rows: tuple[int, int] | None


@dataclass(frozen=True)
class _Place:
    """What holds weights of ours."""

    rows: Mapping[str, int]  # how many it has of each, by our name in a network of single matrices
    there: Tensor  # in any layout
    write: Callable[[Tensor], object]  # takes all rows
    is_published: bool = False  # the names are those of the checkpoint

    @property
    def dtype(self) -> torch.dtype:
        return self.there.dtype

    @property
    def device(self) -> str:
        return str(self.there.device)

    def present(self) -> Tensor:
        """All rows, as a plain tensor."""
        return self.there.to_dense() if self.there.layout is torch._mkldnn else self.there  # type: ignore[attr-defined]

    def shape(self, name: str) -> tuple[int, ...]:
        return (self.rows[name], *self.there.shape[1:]) if len(self.rows) > 1 else tuple(self.there.shape)


def _places(network: Transformer) -> Iterator[_Place]:
    """All places that hold weights."""
    if isinstance(network, MaskedLM):
        yield from (_Place({name: 1}, tensor, tensor.copy_, True) for name, tensor in network.lm.state_dict().items())
        return
    for name, there in apart(network):
        yield _Place({name.replace(".module.", "."): 1}, there, there.copy_)
    for path, part in network.named_modules():
        if isinstance(part, PackedLinear):
            path = path.replace(".module", "")
            owner, _, last = path.rpartition(".")
            path = "embed" if path == "lm_head" and network.config.tied else path
            names, sizes = [path], [part.out_features]
            if last in FUSED:
                names = [f"{owner}.{module}" for module in FUSED[last]]
                sizes = cast("list[int]", network.get_submodule(owner).sizes)
            rows = {f"{module}.weight": size for module, size in zip(names, sizes, strict=True)}
            yield _Place(rows, part.packed, part.repack)
