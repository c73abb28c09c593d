"""Published safetensors to our transformer and back, by tensor name. No code of a checkpoint is ever executed.

``load_model`` builds on the meta device, and then finishes the model part by part: read, cast, fuse, quantise, place.
Beside the finished weights it needs the memory of one layer, as read and as fused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dllm.common.errors import Refusal, UserError, warn_once
from dllm.common.ranks import ALONE, Ranks
from dllm.kernels.invariant import Tiled
from dllm.kernels.narrow_linear import NarrowLinear
from dllm.kernels.packed import PackedLinear, pack_weights
from dllm.kernels.rounded_linear import RoundedLinear
from dllm.kernels.stepped import SteppedLinear
from dllm.models.config import ModelConfig
from dllm.models.families import Family
from dllm.models.formats.formats import matrix_widths, with_whole_weights
from dllm.models.formats.gguf_config import gguf_config, gguf_contents
from dllm.models.formats.gguf_file import GGUF_SUFFIX, is_gguf, read_gguf
from dllm.models.formats.packed_settings import with_files_beside
from dllm.models.formats.prequantized import QUANTISED_KEYS
from dllm.models.network.expert_stacks import with_published_experts
from dllm.models.network.experts import at_least_float32
from dllm.models.network.fused import apart, fuse_products, open_stacks
from dllm.models.network.networks import network_of
from dllm.models.network.rope_ntk import RopeSetting
from dllm.models.network.transformer import Places, Transformer
from dllm.models.weights.adapter import Adapter
from dllm.models.weights.cut import rank_share, share_of
from dllm.models.weights.files import (
    CHECKPOINT_FILES,
    CONVERSION,
    FLOATS,
    SINGLE,
    Contents,
    StoredTensor,
    first_names,
    read_contents,
    read_json,
    refuse_no_files,
)
from dllm.models.weights.fit import Fit, check_sizes
from dllm.models.weights.footprint import refuse_too_large
from dllm.models.weights.load_progress import LoadProgress, Watch, unwatched
from dllm.models.weights.names import Source, parameter_source, parameter_sources, published_shapes
from dllm.models.weights.placement import device_map, offloaded_words
from dllm.models.weights.quantize import on_several_devices, quantize_end, quantize_part
from dllm.models.weights.shipped import plain_folder
from dllm.models.weights.tensor_reader import TensorReader

_PARTS = ("embed", "layers", "norm", "lm_head")  # of every network


def read_model_config(
    folder: Path,
    attention_block: int | None = None,
    rope: Mapping[str, Any] | RopeSetting | None = None,
    family: Family | str | None = None,
) -> ModelConfig:
    """The folder's ``config.json``, or what a GGUF file says in its place. attention_block, rope, family: see
    ``ModelConfig.with_attention_block``, ``with_rope`` and ``from_published``. Raises UserError when it is missing,
    broken or of an unknown family."""
    if is_gguf(folder):
        if family is not None:
            raise Refusal(
                f"{{model.family:name}} says how to read a config.json, and {folder} is a GGUF file. Leave it {{null}}."
            )
        return gguf_config(read_gguf(folder)).with_attention_block(attention_block).with_rope(rope)
    file = folder / "config.json"
    refuse_no_files(folder, CHECKPOINT_FILES)
    if (folder / CONVERSION).is_file():
        raise UserError(f"{folder} holds a conversion that has not ended. Run the same task=quantize command again.")
    if not file.is_file():
        files = sorted(entry.name for entry in folder.glob(f"*{GGUF_SUFFIX}"))
        has, way_out = "", "Point {model.path:name} at one"
        if files:
            has, way_out = f" It has {first_names(files)}.", f"Name a file of it: {{model.path={folder / files[0]}}}"
        raise Refusal(f"{folder} holds no config.json, so it is not a checkpoint folder.{has} {way_out}.")
    names = folder.resolve().parts[:-4:-1]  # a hub's id is two folders above its files
    published = with_files_beside(folder, read_json(file))
    return ModelConfig.from_published(published, family).with_attention_block(attention_block, names).with_rope(rope)


def contents_of(folder: Path, config: ModelConfig) -> Contents:
    """The headers of a checkpoint. Raises UserError as ``read_contents``, and for packed weights that do not fit."""
    contents = gguf_contents(read_gguf(folder), config) if is_gguf(folder) else read_contents(folder)
    return with_published_experts(with_whole_weights(contents, config.packed, matrix_widths(config)), config)


def packed_words(tensors: Mapping[str, StoredTensor], kind: str, exact: int) -> str:
    """A sentence about matrices that come in few bits and what becomes of them; empty without any. kind: a dtype,
    or one of ``model.quantize``. exact: matrices that keep their steps."""
    packed = Counter(
        tensor.dtype for tensor in tensors.values() if tensor.packing is not None and tensor.dtype not in FLOATS
    )
    if not packed:
        return ""
    counts = ", ".join(f"{count} matrices as {name}" for name, count in packed.most_common())
    if exact:
        rest = packed.total() - exact
        anew = f"; the other {rest} are widened, and those of layers rounded to 4 bits again" if rest else ""
        return f"the file has {counts}: {exact} keep their steps, with scales in bfloat16{anew}."
    if kind.startswith("int"):
        return (
            f"the file has {counts}: they are widened, and those of layers rounded to {kind.removeprefix('int')} bits."
        )
    return f"the file has {counts}: they are widened to {kind}. model.quantize narrows them again."


def load_model(
    folder: str | Path,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    config: ModelConfig | None = None,
    adapter: Adapter | None = None,
    fuse: bool = True,
    quantize: str | None = None,
    triton: bool = False,
    pack: bool = False,
    watch: Watch = unwatched,
    quantize_head: str | None = None,
    ranks: Ranks = ALONE,
    ep: bool = False,
) -> Transformer:
    """The checkpoint in ``folder`` as a Transformer in eval mode, its products fused unless it shall be trained.

    config: the folder's where None. triton: quantised weights are for our kernels. watch: is told how far it is.
    ranks: each reads its own share. Else as in ``dllm.load``. Raises UserError that names the tensor when the files do
    not fit the config, and for an adapter of another base.
    """
    path = plain_folder(Path(folder))
    config = config or read_model_config(path)
    model, tensors, notes = prepared(path, config, adapter)
    sources = parameter_sources(model)
    if ranks.size > 1:
        config = share_of(config, ranks, ep)
        model, sources = rank_share(model, config)
    kind = quantize or str(dtype).removeprefix("torch.")
    if device == "cpu":
        refuse_too_large(model, kind, quantize_head)
    for sentence in notes:
        warn_once(f"{path}: {sentence}")
    placement = _placement(path, model, device, dtype)
    if quantize is not None and len({*placement.values()}) > 1:
        raise on_several_devices(quantize)

    def finish(prefix: str, part: nn.Module) -> None:
        """Bring a part that has been read, by its name ``prefix``, into the form in which it computes."""
        if fuse:
            fuse_products(part)
        if quantize is not None:
            quantize_part(part, quantize, triton)
            quantize_end(model, prefix, quantize_head)
        elif pack:
            pack_weights(part)

    place, head_early = partial(device_of, placement=placement), quantize_head is not None
    keep, stack = quantize == "int4", fuse and quantize != "int4"
    exact = fill(model, tensors, sources, place, dtype, adapter, finish, watch, (), keep, head_early, stack)
    if sentence := packed_words(tensors, kind, exact):
        warn_once(f"{path}: {sentence}")
    if config.tied:
        model.tie()
    if pack and quantize is None:
        pack_weights(model)  # the head
    spread_over_devices(model.eval().requires_grad_(False), placement)
    return model


def _placement(path: Path, model: Transformer, device: str, dtype: torch.dtype) -> dict[str, str]:
    """The device of each part of a model; of all of them under ``""``. Warns where some lie in the CPU's memory."""
    if device != "auto":
        return {"": device}
    placement = device_map(model, dtype, [name for name, _ in parts_of(model)])
    if sentence := offloaded_words(model, placement, dtype):
        warn_once(f"{path}: {sentence}")
    return placement


def prepared(
    folder: Path, config: ModelConfig, adapter: Adapter | None
) -> tuple[Transformer, Mapping[str, StoredTensor], tuple[str, ...]]:
    """The model on the meta device, the stored tensors that it needs, and sentences about those that are left out.
    Raises UserError where files or adapter do not fit the config."""
    contents = contents_of(folder, config)
    check_sizes(config, contents.tensors)
    with torch.device("meta"):
        model = network_of(config)
    fit = Fit.of(model, contents)
    if fit.problems:
        raise UserError(f"{folder}: {'; '.join(fit.problems[:5])}{' ...' if len(fit.problems) > 5 else ''}.")
    if adapter is not None:
        adapter.check_fits(published_shapes(model), folder)
        adapter.check_base(fit.tensors, folder)
    return model, fit.tensors, fit.notes


def spread_over_devices(model: Transformer, placement: Mapping[str, Any]) -> None:
    """Set ``Transformer.places`` for a model whose tensors are on several devices, as ``placement`` says.

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


@torch.inference_mode(False)
def fill(
    model: Transformer,
    tensors: Mapping[str, StoredTensor],
    sources: Mapping[str, Source],
    place: Callable[[str], str],
    dtype: torch.dtype,
    adapter: Adapter | None,
    finish: Callable[[str, nn.Module], None],
    watch: Watch,
    skip: Collection[str] = (),
    keep: bool = False,
    head_early: bool = False,
    stack: bool = False,
) -> int:
    """Read one part after the other, and hand it to ``finish`` by its name. sources: of each parameter, by its name.
    place: its device. skip: parts that are not read. keep: products of layers stay on the sixteen steps that files
    have them on. head_early: see ``parts_of``. stack: experts go into one tensor. Returns how many matrices stayed."""
    sizes = {ours: read_bytes(tensors[source.name], model.get_parameter(ours)) for ours, source in sources.items()}
    total = sum({source: sizes[ours] for ours, source in sources.items()}.values())
    count = exact = 0
    watch(LoadProgress(0, total, "beginning"))
    with TensorReader(tensors) as reader:
        for prefix, words in parts_of(model, head_early):
            part, names = model.get_submodule(prefix), [name for name in sources if name.startswith(prefix + ".")]
            room = open_stacks(part, prefix, place(names[0]), dtype) if stack and names else {}
            for ours in names:
                count += sizes[ours]
                if prefix in skip:
                    pass
                elif keep and _keeps(model, ours, sources[ours], adapter, reader, place(ours)):
                    exact += 1
                else:
                    # The router's selection bias is float32 whatever the model's dtype, as in LLaDA2's published code.
                    kind = torch.float32 if ours.endswith("expert_bias") else dtype
                    tensor = _parameter(reader, sources[ours], kind, place(ours), adapter)
                    owner, _, leaf = ours.rpartition(".")
                    if ours in room:
                        room[ours].copy_(tensor)
                    else:
                        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
                watch(LoadProgress(count, total, words))
            if prefix not in skip:
                finish(prefix, part)
    return exact


def read_bytes(tensor: StoredTensor, parameter: Tensor) -> int:
    """Bytes of a stored tensor that a parameter, which may be a part of it, takes from the file."""
    return tensor.bytes * parameter.numel() // prod(tensor.shape)


def _keeps(
    model: Transformer, ours: str, source: Source, adapter: Adapter | None, reader: TensorReader, device: str
) -> bool:
    """Put the weight of a layer's product into the model on its sixteen steps, where the file has it so and nothing is
    added to it. Returns whether it did."""
    owner, _, leaf = ours.rpartition(".")
    part = model.get_submodule(owner)
    if not ours.startswith("layers.") or leaf != "weight" or type(part) is not nn.Linear:
        return False
    if adapter is not None and source.name in adapter.pairs or (four_bits := reader.four_bits(source)) is None:
        return False
    model.set_submodule(owner, SteppedLinear(four_bits.steps.to(device), four_bits.sizes.to(device), part.bias))
    return True


def _parameter(
    reader: TensorReader, source: Source, dtype: torch.dtype, device: str, adapter: Adapter | None
) -> Tensor:
    """A parameter, with what an adapter adds to it: the sum is rounded once."""
    if adapter is None or source.name not in adapter.pairs:
        return reader.read(source, dtype, device)
    weight = reader.read(source, at_least_float32(dtype), device)
    return adapter.merged(source.name, weight, source, dtype).to(dtype)


def parts_of(model: Transformer, head_early: bool = False) -> Iterator[tuple[str, str]]:
    """The parts of a model in the order in which rows pass them: the module's name, and what it is called. head_early:
    the head is the second. Of a large vocabulary it is more than two layers, which are all that else is in memory
    beside the finished parts."""
    yield "embed", "the embedding"
    if head_early:
        yield "lm_head", "the head"
    count = len(model.layers)
    yield from ((name, name.replace("_", "-")) for name, _ in model.named_children() if name not in _PARTS)
    yield from ((f"layers.{number}", f"layer {number + 1} of {count}") for number in range(count))
    yield "norm", "the last norm"
    if not head_early:
        yield "lm_head", "the head"


def device_of(parameter: str, placement: Mapping[str, Any]) -> str:
    """The device of a parameter. accelerate numbers GPUs: 0 is cuda:0."""
    names = [name for name in placement if name == "" or parameter == name or parameter.startswith(name + ".")]
    device = placement[max(names, key=len)]
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def save_model(model: Transformer, folder: str | Path) -> None:
    """Write config.json and model.safetensors under the published names. Raises UserError for a model whose weights are
    packed or quantised."""
    if any(isinstance(part, PackedLinear | Tiled | NarrowLinear | RoundedLinear) for part in model.modules()) or any(
        type(parameter) is not nn.Parameter for parameter in model.parameters()
    ):
        raise UserError(
            "save_model cannot write packed or quantised weights. Load the model with pack=False, kernels='auto' and "
            "quantize=None; task=quantize writes quantised ones."
        )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    grouped: dict[str, list[Tensor]] = {}
    for ours, parameter in apart(model):
        grouped.setdefault(parameter_source(ours, model.config).name, []).append(parameter.detach())
    tensors = {name: torch.cat(parts).cpu() for name, parts in grouped.items()}
    save_file(tensors, path / SINGLE, metadata={"format": "pt"})
    plain = {key: value for key, value in model.config.published.items() if key not in QUANTISED_KEYS}
    (path / "config.json").write_text(json.dumps(plain, indent=1) + "\n")
