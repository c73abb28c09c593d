"""A model ready to decode: network, config, tokenizer and special ids. ``load`` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Never

import torch
from torch import nn

from dllm.common.errors import Refusal, Set, UserError, warn_once
from dllm.common.hints import refuse_unknown
from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.dispatch import INVARIANT
from dllm.kernels.packed import can_pack
from dllm.models.arithmetic import check_numbers, parse_device, parse_dtype, resolve_device
from dllm.models.config import ModelConfig
from dllm.models.families import Family
from dllm.models.fastest import AUTO_KIND, Kinds, Residence, settled_kinds
from dllm.models.formats.gguf_tokenizer import tokenizer_at
from dllm.models.network.activations import round_activations
from dllm.models.network.attention import has_varlen
from dllm.models.network.masked_lm import load_masked_lm
from dllm.models.network.masked_lm_class import MASKED_LM_FAMILY
from dllm.models.network.networks import network_of
from dllm.models.network.rope_ntk import RopeSetting
from dllm.models.network.transformer import Transformer
from dllm.models.shared import object_config, object_ends, sharing, tokenizer_of, unwrapped
from dllm.models.text.ids import Ids, resolve_ids
from dllm.models.text.tokenizer import Tokenizer
from dllm.models.text.tokenizer_files import generation_ends
from dllm.models.weights.adapter import Adapter, attach_drafts
from dllm.models.weights.checkpoint_path import folder_label, locate
from dllm.models.weights.cut import check_cut, local_device, refuse_object
from dllm.models.weights.load_progress import load_progress
from dllm.models.weights.names import published_shapes
from dllm.models.weights.narrow_folder import load_narrow
from dllm.models.weights.shipped import is_shipped
from dllm.models.weights.weights import load_model, read_model_config

MINI_KNOWS = "lists, puzzles, sentences and records"


@dataclass(frozen=True)
class Model:
    """A loaded model."""

    transformer: Transformer  # the network
    config: ModelConfig  # the description, with the resolved ids of mask, end and padding
    tokenizer: Tokenizer | None  # None: the folder has none
    ids: Ids  # of the mask and the ends of a text
    name: str  # as reports call it
    path: Path  # the folder, or the GGUF file
    quantize: str | None = None  # as given to ``load``, or as its files are
    adapter: Path | None = None  # the LoRA that was merged; None: none
    kernels: str = "auto"  # which kernels were asked for
    draft_adapter: Path | None = None  # the LoRA of rows that draft; None: none
    quantize_head: str | None = None  # as given to ``load``, or as its files are
    activations: str | None = None  # as given to ``load``; None, too, where the device does not round rows

    @property
    def knows(self) -> str:
        """What one of the mini models was trained on, and nothing else; empty for any other model."""
        return MINI_KNOWS if is_shipped(self.path) else ""

    @property
    def ranks(self) -> Ranks:
        """The processes that hold it together."""
        return self.transformer.ranks


class Description(NamedTuple):
    """What is known of a model without its weights."""

    path: Path  # its folder, or its GGUF file
    config: ModelConfig  # with the resolved mask, eos and pad ids
    tokenizer: Tokenizer | None  # None: the folder has none
    ids: Ids  # the ids that proposing needs
    name: str  # of the folder or hub id


def load(
    path: str | Path | nn.Module,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str | torch.dtype = "float32",
    mask_id: int | None = None,
    kernels: str = "auto",
    quantize: str | None = None,
    pack: bool = True,
    adapter: str | Path | None = None,
    attention_block: int | None = None,
    draft_adapter: str | Path | None = None,
    quantize_head: str | None = None,
    trainable: bool = False,
    tp: int = 1,
    ep: bool = False,
    rope: Mapping[str, Any] | RopeSetting | None = None,
    activations: str | None = None,
    family: Family | str | None = None,
    memory_gib: float | None = None,
    **unknown: Never,
) -> Model:
    """Load a model: a shipped one, a local folder, a hub id, a GGUF file, or a model object of transformers.

    Args:
        path: its name, folder, hub id or file; or the object, whose weights are shared (``dllm.models.shared``), peft's
            adapters in its layers included. For an object only ``tokenizer``, ``mask_id``, ``attention_block``,
            ``rope`` and ``family`` apply.
        tokenizer: of a model object, as transformers has it (None: none).
        device: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (all GPUs, or else the CPU).
        dtype: of weights and arithmetic.
        mask_id: overrides the checkpoint's.
        kernels: ``triton``, ``torch``, ``auto`` (Triton on GPUs that support it) or ``invariant`` (on a CPU no number
            depends on the batch).
        quantize: ``int8``, ``int4`` or ``float8`` weights (``dllm.models.weights.quantize``), or ``auto``: of what fits
            the memory the kinds of weights and rows that are fastest on this CPU (``dllm.models.fastest``).
        pack: keep float32 weights of a CPU in oneDNN's layout, which is faster but excludes ``runtime=compile``.
        adapter: a folder of a LoRA in peft's format, merged into the weights.
        attention_block: columns of an attention block, if config.json does not say it (A2D: 0 is full attention).
        draft_adapter: a folder of a LoRA for the drafts of ``sampler=linear_spec`` alone (Nemotron-Labs-Diffusion's).
        quantize_head: embedding and head in ``int8`` or ``int4``, on a CPU.
        trainable: weights that learn: each matrix by itself, unpacked, with a gradient. A model object's learn as it
            says.
        tp: processes of an initialised ``torch.distributed`` that hold the model together, each a share of its heads,
            widths and vocabulary. All of them must make the same calls.
        ep: share out routed experts whole, instead of a part of each.
        rope: reach beyond the texts of training, such as ``{"target": 16384}`` (``dllm.models.network.rope_ntk``).
        family: whose config.json and tensors these are, where the file names an architecture that is not known: the
            known one's name, or a description of your own (``dllm.models.families``).
        activations: rows of narrow products in ``int8``, too, on a CPU (``dllm.kernels.rounded_rows``).
        memory_gib: GiB that ``quantize="auto"`` may take; None: what is free.

    Returns:
        The network with its configuration, tokenizer and special ids.

    Raises:
        UserError: something does not fit; if possible before weights are read.

    >>> from dllm import load
    >>> model = load("mini-llada")
    >>> model.name, model.config.prediction_shift
    ('mini-llada', 0)
    """
    refuse_unknown("load", load, unknown)
    if isinstance(path, nn.Module):
        refuse_object(tp)
        return _of_object(path, tokenizer, mask_id, attention_block, rope, family)
    tokenizer_of(tokenizer)  # refuses what is none: a device, say
    if tokenizer is not None:
        raise UserError("tokenizer goes with a model object; a folder has its own files. Leave it out.")
    dtype, device = parse_dtype(dtype), parse_device(device)
    described = describe(path, mask_id, attention_block, rope, family)
    choice = Kinds(quantize, quantize_head, activations)
    if trainable:
        kernels = _kernels_with_gradients(kernels, described.config, choice, tp)
    residence = Residence(dtype, resolve_device(device), kernels, pack, tp, memory_gib)
    kinds = settled_kinds(described.config, choice, residence, adapter)
    if choice.quantize == AUTO_KIND:
        warn_once(f"model.quantize=auto takes {kinds}: the fastest here of what fits.")
    check_cut(described.config, tp, ep, kinds.quantize, kinds.head)
    place = local_device(device, tp)
    triton = check_numbers(described.config, dtype, resolve_device(place), kernels, *kinds)
    build = _Build(described, place, residence, kinds, trainable, ep, triton)
    lora = read_adapter(adapter, described.config, path)
    return build.model(path, lora, read_draft_adapter(draft_adapter, described.config, path))


@dataclass(frozen=True)
class _Build:
    """How the weights of a checkpoint become a network."""

    described: Description  # the checkpoint
    place: str  # the device, of this rank
    residence: Residence  # what holds the model
    kinds: Kinds  # of the weights, as asked for or as stored
    trainable: bool  # weights take gradients
    ep: bool  # ranks share out whole experts
    triton: bool  # our Triton kernels run

    @property
    def device(self) -> torch.device:
        return resolve_device(self.place)

    @property
    def is_invariant(self) -> bool:
        """Whether no number depends on the batch."""
        return self.residence.kernels == INVARIANT

    def model(self, path: str | Path, lora: Adapter | None, drafts: Adapter | None) -> Model:
        """Read the weights. path: as given to ``load``. lora: is merged; drafts: of rows that draft."""
        _, config, tokenizer, ids, name = self.described
        folder = locate(path)
        for sentence in config.warnings:
            warn_once(f"{path}: {sentence}")
        if config.family == MASKED_LM_FAMILY:
            lm = load_masked_lm(folder, config, self.device, self.residence.dtype).requires_grad_(self.trainable)
            return Model(lm, config, tokenizer, ids, name, folder)
        network = self._network(folder, lora)
        if drafts is not None:
            attach_drafts(network, drafts)
        activations = self.kinds.activations
        if activations is not None:
            activations = round_activations(network, self.is_invariant)
        if self.is_invariant:
            network.become_invariant()
        return Model(
            network,
            config,
            tokenizer,
            ids,
            name,
            folder,
            self.kinds.quantize,
            adapter=None if lora is None else lora.folder,
            kernels=self.residence.kernels,
            draft_adapter=None if drafts is None else drafts.folder,
            quantize_head=self.kinds.head,
            activations=activations,
        )

    def _network(self, folder: Path, lora: Adapter | None) -> Transformer:
        config, dtype, triton = self.described.config, self.residence.dtype, self.triton
        ranks = Ranks.joined(self.residence.tp) if self.residence.tp > 1 else ALONE
        with load_progress(self.described.name) as watch:
            if config.stored_kind is not None:
                network = load_narrow(folder, config, str(self.device), triton, watch, ranks, self.ep)
            else:
                plain = not self.trainable and self.kinds.quantize is None and not triton
                network = load_model(
                    folder,
                    "cpu" if self.place == "auto" and not torch.cuda.is_available() else self.place,
                    dtype,
                    config,
                    lora,
                    fuse=not (self.is_invariant or self.trainable),
                    quantize=self.kinds.quantize,
                    triton=triton,
                    pack=self.residence.pack and plain and can_pack(self.device, dtype),
                    watch=watch,
                    quantize_head=self.kinds.head,
                    ranks=ranks,
                    ep=self.ep,
                )
        if self.trainable:
            return network.requires_grad_(True)
        network.use_kernels(triton, has_varlen(network.device, dtype))
        return network


def _kernels_with_gradients(kernels: str, config: ModelConfig, kinds: Kinds, tp: int) -> str:
    """The kernels of weights that learn. Raises UserError for weights in few bits or shares, and other kernels."""
    if tp > 1:
        raise UserError(f"trainable=True with tp={tp}: sums over ranks carry no gradient. Train with tp=1.")
    if narrow := config.stored_kind or kinds.quantize or kinds.head:
        raise UserError(f"trainable=True: weights in {narrow} cannot learn. Load a plain checkpoint, unquantised.")
    if kernels not in ("auto", "torch"):
        raise Refusal("trainable=True with {kernels:quoted}: they compute no gradient. Use kernels='auto'.", [kernels])
    return "torch"


def _of_object(
    model: nn.Module,
    tokenizer: Any,
    mask_id: int | None,
    attention_block: int | None,
    rope: Mapping[str, Any] | RopeSetting | None,
    family: Family | str | None,
) -> Model:
    """A model object of transformers with shared weights. Its folder is the one that it came from, or this one."""
    model, words = unwrapped(model), tokenizer_of(tokenizer)
    config = object_config(model, attention_block, family).with_rope(rope)
    config, ids = resolve_ids(config, words, mask_id, object_ends(model))
    for sentence in config.warnings:
        warn_once(f"{type(model).__name__}: {sentence}")
    came_from = Path(getattr(model.config, "name_or_path", "") or ".")
    return Model(sharing(model, config), config, words, ids, came_from.resolve().name, came_from)


def read_adapter(adapter: str | Path | None, config: ModelConfig, path: str | Path) -> Adapter | None:
    """The headers of an adapter for the model ``path``. Raises UserError for anything but a plain LoRA of peft, and
    where it adapts what the model lacks, or has in another shape."""
    if adapter is None:
        return None
    if config.family == MASKED_LM_FAMILY:
        raise Refusal(
            f"{{model.adapter}}: a {config.architecture} is run through its own class, which has other names. Merge "
            "the adapter by peft's merge_and_unload, and save the model.",
            [adapter],
        )
    lora = Adapter.read(adapter)
    with torch.device("meta"):
        shapes = published_shapes(network_of(config))
    lora.check_fits(shapes, path)
    return lora


def read_draft_adapter(adapter: str | Path | None, config: ModelConfig, path: str | Path) -> Adapter | None:
    """The same of an adapter for drafts. Raises UserError, too, for a model whose drafts no causal row judges."""
    if adapter is None:
        return None
    if not (config.attention.causal and config.attention.judges):
        raise Refusal(
            f"{{model.draft_adapter}}: no causal row judges drafts where, as in {config.architecture}, attention is "
            f"{config.attention.is_called}.",
            [adapter],
            (Set("model.draft_adapter", None),),
        )
    try:
        return read_adapter(adapter, config, path)
    except Refusal as error:
        raise (error.about("model.draft_adapter") if error.at == "model.adapter" else error) from error


def describe(
    path: str | Path,
    mask_id: int | None = None,
    attention_block: int | None = None,
    rope: Mapping[str, Any] | RopeSetting | None = None,
    family: Family | str | None = None,
) -> Description:
    """Describe a model without reading its weights. mask_id, attention_block, rope, family: as in ``load``.

    Each id comes from the first source that has it: the argument, config.json, the tokenizer. A missing eos is the pad
    id, and a missing pad the eos id (they are the same in most published checkpoints). The returned config holds the
    ids. Raises UserError when no usable mask or eos id is known.
    """
    folder = locate(path, weights=False)
    config = read_model_config(folder, attention_block, rope, family)
    tokenizer = tokenizer_at(folder)
    tokenizer = tokenizer if tokenizer is None else tokenizer.knowing(config.described_by)
    config, ids = resolve_ids(config, tokenizer, mask_id, generation_ends(folder))
    return Description(folder, config, tokenizer, ids, folder_label(path))


def warn_of_mismatch(model: Mapping[str, Any], config: ModelConfig) -> None:
    """Warn where a folder is of another architecture than the settings ``model`` of a run, under which it is given."""
    expected = model.get("expects")
    if expected is not None and expected != config.architecture:
        warn_once(
            f"{{model.path={model['path']}}} holds a checkpoint of {config.architecture}, and "
            f"{{model={model['name']}}} names one of {expected}: tables would call it by the wrong name. Choose the "
            "model of its kind, or leave model out."
        )
