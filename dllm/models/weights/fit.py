"""Whether a folder's tensors fit a model: the headers alone decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from safetensors import safe_open

from dllm.models.config import ModelConfig
from dllm.models.formats.prequantized import of_quantised
from dllm.models.keys import printed
from dllm.models.network.transformer import Transformer
from dllm.models.weights.files import FLOATS, INDEX, Contents, StoredTensor, first_names, mismatched
from dllm.models.weights.names import Source, published_shapes
from dllm.models.weights.tensor_reader import TensorReader

BASE, PEFT = "model.", "base_model.model."  # prefixes: of the part below the head, and peft's of all


@dataclass(frozen=True)
class Fit:
    """What a folder's tensors are to a model."""

    tensors: Mapping[str, StoredTensor]  # the stored tensor of each published name that the model needs
    # a sentence, without its full stop, for each tensor that is missing, misshapen, of no float type, unexpected, or no
    # copy of the one that it is tied to; empty: the files fit
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()  # sentences about tensors that are not read

    @staticmethod
    def of(model: Transformer, contents: Contents) -> Fit:
        shapes = published_shapes(model)
        tensors = _with_base_prefix(_with_tied_prefix(model.config, contents.tensors, shapes), shapes)
        problems = [*_unfit(tensors, shapes)]
        outside, inside = _extra(model.config, tensors, shapes, contents.unnamed)
        if why := problems and (of_quantised(tensors) or _prefixed(tensors, shapes)):
            return Fit(tensors, (why,))
        inside = [name for name in inside if not _adds_nothing(name, tensors)]
        problems += [f"tensor {printed(name)} is not part of this architecture" for name in inside]
        problems = problems or tie_problems(model.config, tensors)
        return Fit(tensors, tuple(problems), tuple(_notes(outside, contents)))


def check_sizes(config: ModelConfig, tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse sizes that the files cannot hold, before a module is built: building 10**8 experts would never end.

    Up to twice the stored tensors pass, so that ``Fit`` can name the missing ones. Raises UserError.
    """
    embedding = config.layout.names["embed"] + ".weight"
    missing = "" if embedding in tensors else f"tensor {embedding} is missing, and "
    widest = max(
        (max(tensor.shape) for tensor in tensors.values() if tensor.shape and 0 not in tensor.shape), default=0
    )
    for key, size in config.sizes.items():
        if size > widest:
            most = f"no tensor of the weights has more than {widest} rows or columns"
            raise mismatched(f"{missing}config.json has {key}={size}, but {most}", "config.json and weights")
    if config.least_tensors > 2 * len(tensors):
        keys = config.published.get("text_config") or config.published
        names = ("n_layers", "num_hidden_layers", "num_experts")
        counts = [f"{key}={keys[key]}" for key in names if keys.get(key) is not None]
        needs = f"{', '.join(counts)}: that takes {config.least_tensors} tensors or more"
        raise mismatched(
            f"{missing}config.json has {needs}, and the weights hold {len(tensors)}", "config.json and weights"
        )


def _unfit(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """What is missing, misshapen or of no float type."""
    unused = [name for name in tensors if name not in shapes]
    for name, shape in shapes.items():
        if name not in tensors:
            yield f"tensor {name} is missing{_likely(name, unused)}"
        elif tensors[name].shape != shape:
            yield f"tensor {name} has shape {list(tensors[name].shape)}, config.json implies {list(shape)}"
        elif tensors[name].packing is None and tensors[name].dtype not in FLOATS:
            yield f"tensor {name} is stored as {tensors[name].dtype}, not as one of {', '.join(FLOATS)}"


def _with_tied_prefix(
    config: ModelConfig, tensors: Mapping[str, StoredTensor], names: Iterable[str]
) -> Mapping[str, StoredTensor]:
    """The tensors under the names that we read, where the file has those of the other pass alone."""
    ours, theirs = config.layout.tied
    renamed = dict(tensors)
    for name in names if ours else ():
        other = theirs + name.removeprefix(ours)
        if name.startswith(ours) and name not in tensors and other in tensors and not name.endswith("layer_scalar"):
            renamed[name] = renamed.pop(other)
    return renamed


def _with_base_prefix(tensors: Mapping[str, StoredTensor], names: Iterable[str]) -> Mapping[str, StoredTensor]:
    """The tensors under the names of the whole model, where the file was saved from the part below its head: without
    its prefix, as transformers reads such a file, too."""
    renamed = dict(tensors)
    for name in names:
        if name.startswith(BASE) and name not in tensors:
            if name.removeprefix(BASE) not in tensors:
                return tensors
            renamed[name] = renamed.pop(name.removeprefix(BASE))
    return renamed


def _prefixed(tensors: Iterable[str], names: Iterable[str]) -> str:
    """A sentence where the names of the file have a prefix that those of the model lack; empty: they have none."""
    missing = [name for name in names if name not in tensors]
    plain = {name.replace(".base_layer.", "."): name for name in tensors}  # before peft wrapped a weight
    for name, file_name in plain.items():
        for lack in missing:
            prefix = name.removesuffix(lack)
            if prefix != name and prefix.endswith(".") and all(prefix + other in plain for other in missing):
                way = "by peft's merge_and_unload" if PEFT in prefix else "save the model that the wrapper holds"
                return (
                    f"tensor {lack} is missing, and the file has {printed(file_name)}: its names begin with "
                    f"{prefix!r}, as those of a wrapped model do. Take the wrapper off: {way}"
                )
    return ""


def _likely(missing: str, names: Iterable[str]) -> str:
    """Words about a name of the file instead of a missing one: it ends alike, or stands for all experts of a
    layer. Empty without one."""
    tail, place = "." + ".".join(missing.split(".")[-3:]), missing.partition(".experts.")[0] + ".experts."
    name_alike = next((name for name in names if name.endswith(tail) or name.startswith(place)), None)
    return f", and the file has {printed(name_alike)}" if name_alike else ""


def _extra(
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    shapes: Mapping[str, tuple[int, ...]],
    unnamed: frozenset[str],
) -> tuple[list[str], list[str]]:
    """The tensors that the model does not need: those of no concern, and those that belong to a network of its kind
    and so would change what it computes. Outside are a value head, say, and what the index does not name."""
    names = config.layout.names
    tied_head = names["lm_head"] + ".weight" if config.tied else None
    surplus = [
        name
        for name in tensors
        if name not in shapes
        and name != tied_head
        and not name.endswith("rotary_emb.inv_freq")
        and not name.startswith(config.layout.towers)
    ]
    inside = [name for name in surplus if name.startswith((BASE, names["lm_head"] + ".")) and name not in unnamed]
    return [name for name in surplus if name not in inside], inside


def _adds_nothing(name: str, tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a tensor is the bias of a matrix and all zero: AutoGPTQ writes one for every matrix that it packs."""
    stem, _, leaf = name.rpartition(".")
    bias, weight = tensors[name], tensors.get(f"{stem}.weight")
    if leaf != "bias" or weight is None or len(weight.shape) != 2 or bias.shape != weight.shape[:1]:
        return False
    if bias.packing is None and bias.dtype not in FLOATS:
        return False
    with TensorReader(tensors) as reader:
        return not reader.read(Source(name), torch.float32).any()


def _notes(outside: list[str], contents: Contents) -> Iterator[str]:
    yield from contents.notes
    if contents.stale:
        yield f"{INDEX} is not read, since there is a single file of weights."
    if outside:
        why = "the index does not name" if contents.unnamed.issuperset(outside) else "this model does not use"
        yield f"left out: {first_names(outside)}, which {why}."


def tie_problems(config: ModelConfig, tensors: Mapping[str, StoredTensor]) -> list[str]:
    """Where the config ties the head to the embedding and the files hold a head too, both must be equal."""
    names = config.layout.names
    head, embed = tensors.get(names["lm_head"] + ".weight"), tensors.get(names["embed"] + ".weight")
    if not config.tied or head is None or embed is None or (head.packing or embed.packing) is not None:
        return []
    with safe_open(head.file, framework="pt") as a, safe_open(embed.file, framework="pt") as b:
        equal = torch.equal(a.get_tensor(head.name), b.get_tensor(embed.name))
    return [] if equal else [f"config.json ties head and embedding, but {head.name} differs from {embed.name}"]
