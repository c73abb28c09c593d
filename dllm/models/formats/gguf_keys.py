"""What the metadata of a GGUF file may say beside what is read: how rotary embeddings are scaled, and unknown keys.

Meanings and defaults are llama.cpp's (``llama-model.cpp``): a rotary factor counts whatever its type, which is linear
where the file names none, and type ``none`` switches it off. Its graphs of these architectures use none of
``_NEUTRAL``, so such a key is reported unless it has the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllm.common.errors import UserError
from dllm.models.formats.gguf_file import GgufFile, GgufTensor
from dllm.models.keys import quote
from dllm.models.weights.files import broken

FREQUENCIES = "rope_freqs.weight"  # by which llama.cpp divides those of the rotary embedding
_FACTORS = ("rope.scaling.factor", "rope.scale_linear")  # the older name last
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.sliding_window": (0,), "attention.max_alibi_bias": (0,),
    "attention.clamp_kqv": (0,), "attention.scale": (0,), "logit_scale": (0, 1), "residual_scale": (0, 1),
    "embedding_scale": (0, 1), "attn_logit_softcapping": (0,), "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,), "use_parallel_residual": (False,), "pooling_type": (0,),
    "expert_shared_count": (0,), "expert_group_count": (0, 1), "expert_group_used_count": (0, 1),
    "expert_weights_scale": (0, 1), "expert_gating_func": (0, 1), "nextn_predict_layers": (0,),
    "leading_dense_block_count": (0,), "moe_every_n_layers": (0,), "interleave_moe_layer_step": (0, 1),
}  # fmt: skip
_NORMED = {"llada-moe": False, "rnd1": True}  # whether an architecture's graph norms the weights of experts
NEXT_TOKEN = ("llama", "qwen2", "qwen3")  # architectures that predict it
_SHIFTED = {"llada": False, "llada-moe": False, "dream": True, "rnd1": True, "diffusion-gemma": False,
            **dict.fromkeys(NEXT_TOKEN, True)}  # fmt: skip  # a column is read from the row before it


class Metadata:
    """Values of one architecture's keys. Those that were asked for count as read."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file, self.architecture = file, architecture
        self.lookups = {f"{architecture}.vocab_size", f"{architecture}.decoder_start_token_id"}  # change nothing

    def plain(self, key: str, default: Any = None) -> Any:
        """The value of a whole key, as it is there."""
        self.lookups.add(key)
        return self.file.metadata.get(key, default)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``architecture.key``; of a float32 the shortest number that is it."""
        value = self.plain(f"{self.architecture}.{key}", default)
        if isinstance(value, list):
            value = self._alike(key, value)
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def _alike(self, key: str, values: list[Any]) -> Any:
        """The value of all layers, where a file gives one for each. Raises UserError where they differ."""
        layers = self.file.metadata.get(f"{self.architecture}.block_count")
        if len({*map(repr, values)}) != 1 or len(values) != layers:
            raise UserError(
                f"{self.file.files[0]} has {self.architecture}.{key}={quote(values)}: one number for all "
                f"{quote(layers)} layers is supported. Take the checkpoint's safetensors."
            )
        return values[0]

    def need(self, key: str) -> Any:
        """Raises UserError for a key that the file lacks."""
        if (value := self.get(key)) is None:
            raise broken(f"{self.file.files[0]} lacks {self.architecture}.{key}")
        return value

    def of_layers(self, key: str, count: int) -> list[Any]:
        """A value for each of ``count`` layers, where the file has one for each, or one for all. Raises UserError for
        another number of them, and for none."""
        value = self.plain(f"{self.architecture}.{key}")
        if not isinstance(value, list):
            return [self.need(key)] * count
        if len(value) != count:
            raise broken(
                f"{self.file.files[0]} has {len(value)} values of {self.architecture}.{key} for {count} layers"
            )
        return value

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def unread(self) -> tuple[str, ...]:
        """The keys about the network that nothing asked for, but for those whose value changes nothing."""
        prefix, scaling = f"{self.architecture}.", f"{self.architecture}.rope.scal"  # of embeddings that are not scaled
        return tuple(
            key
            for key, value in self.file.metadata.items()
            if key.startswith((prefix, "diffusion."))
            and key not in self.lookups
            and not key.startswith(scaling)
            and not self._changes_nothing(key.removeprefix(prefix), value)
        )

    def _changes_nothing(self, name: str, value: Any) -> bool:
        if name == "expert_weights_norm":
            return bool(value == _NORMED.get(self.architecture))
        if name == "attention.causal":
            return bool(value == (self.architecture in NEXT_TOKEN))
        return any(value == neutral for neutral in _NEUTRAL.get(name, ()))


def refuse_scaled(metadata: Metadata, in_part: bool = False) -> None:
    """Raise UserError for scaled rotary embeddings, and for columns that are read from another row than those of the
    architecture. in_part: factors of frequencies say which part of a head turns."""
    where, architecture = metadata.file.files[0], metadata.architecture
    how = next(_scaled(metadata), "" if in_part else _frequencies(metadata.file.tensors.get(FREQUENCIES)))
    if how:
        raise UserError(
            f"{where} has scaled rotary embeddings ({how}), which are not supported. Take the checkpoint without them."
        )
    shifted = metadata.plain("diffusion.shift_logits", _SHIFTED[architecture])
    if shifted != _SHIFTED[architecture]:
        raise UserError(
            f"{where} has diffusion.shift_logits={quote(shifted)}, and {architecture} is read with "
            f"{quote(_SHIFTED[architecture])}. Take a file that llama.cpp's converter wrote."
        )


def _scaled(metadata: Metadata) -> Iterator[str]:
    """What scales the embedding, as the file spells it."""
    prefix, kind = f"{metadata.architecture}.", metadata.plain(f"{metadata.architecture}.rope.scaling.type")
    if kind not in (None, "none", "linear"):
        yield f"{prefix}rope.scaling.type={quote(kind)}"
    factors = {name: value for name in _FACTORS if (value := metadata.plain(prefix + name)) is not None}
    for name, value in list(factors.items())[:1]:
        if kind != "none" and value not in (0, 1):
            yield f"{prefix}{name}={quote(value)}"
    if (factor := metadata.plain(f"{prefix}rope.scaling.attn_factor")) not in (None, 1):
        yield f"{prefix}rope.scaling.attn_factor={quote(factor)}"


def _frequencies(tensor: GgufTensor | None) -> str:
    """A word for factors of frequencies that are not all 1; empty: they are, or the file has none."""
    if tensor is None:
        return ""
    factors = frequencies(tensor)
    return "" if factors is not None and (factors == 1).all() else FREQUENCIES


def frequencies(tensor: GgufTensor) -> NDArray[Any] | None:
    """What frequencies are divided by; None: the tensor is not of plain floats."""
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    if tensor.kind not in kinds:
        return None
    return np.fromfile(tensor.file, kinds[tensor.kind], prod(tensor.shape), offset=tensor.begin)
