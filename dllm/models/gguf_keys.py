"""What the metadata of a GGUF file may say beside what is read: how rotary embeddings are scaled, and unknown keys.

Meanings and defaults are llama.cpp's (``llama-model.cpp``): a rotary factor counts whatever its type, which is linear
where the file names none, and type ``none`` switches it off. Its graphs of these architectures use none of
``_NEUTRAL``, so such a key is reported unless it has the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dllm.errors import UserError
from dllm.models.gguf_file import GgufFile, GgufTensor
from dllm.models.keys import shown

FREQUENCIES = "rope_freqs.weight"  # by which llama.cpp divides those of the rotary embedding
_FACTORS = ("rope.scaling.factor", "rope.scale_linear")  # the older name last
# Keys of an architecture that are read, and those of scaled embeddings that mean nothing where none is scaled.
_READ = """
block_count context_length embedding_length feed_forward_length expert_count expert_used_count
expert_feed_forward_length attention.head_count attention.head_count_kv attention.layer_norm_rms_epsilon
attention.key_length attention.value_length rope.freq_base rope.dimension_count rope.scaling.type rope.scaling.factor
rope.scale_linear rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.finetuned
rope.scaling.yarn_log_multiplier rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor
rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow vocab_size decoder_start_token_id
"""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (False,), "attention.sliding_window": (0,), "attention.max_alibi_bias": (0,),
    "attention.clamp_kqv": (0,), "attention.scale": (0,), "logit_scale": (0, 1), "residual_scale": (0, 1),
    "embedding_scale": (0, 1), "attn_logit_softcapping": (0,), "final_logit_softcapping": (0,),
    "router_logit_softcapping": (0,), "use_parallel_residual": (False,), "pooling_type": (0,),
    "expert_shared_count": (0,), "expert_group_count": (0, 1), "expert_group_used_count": (0, 1),
    "expert_weights_scale": (0, 1), "expert_gating_func": (0, 1), "nextn_predict_layers": (0,),
    "leading_dense_block_count": (0,), "moe_every_n_layers": (0,), "interleave_moe_layer_step": (0, 1),
}  # fmt: skip
_NORMED = {"llada-moe": False, "rnd1": True}  # whether an architecture's graph norms the weights of experts
# Of other places: where a file comes from, how it is cut into parts, its tokenizer.
_PREFIXES = ("general.", "split.", "quantize.", "imatrix.", "tokenizer.chat_template")
_TOKENIZER = """
model pre tokens token_type token_type_count scores merges add_bos_token add_eos_token add_sep_token
"""
_OTHER = {"diffusion.shift_logits", "tokenizer.huggingface.json", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
_OTHER |= {f"tokenizer.ggml.{word}" for word in _TOKENIZER.split()}
_SHIFTED = {"llada": False, "llada-moe": False, "dream": True, "rnd1": True,
            "diffusion-gemma": False}  # fmt: skip  # a column is read from the row before it


def unread_keys(file: GgufFile, architecture: str, more: Collection[str] = ()) -> tuple[str, ...]:
    """The keys of a file that nothing here reads, but for those whose value changes nothing. more: those of one
    architecture."""
    read, own = _READ.split(), f"{architecture}."
    known = {*_OTHER, *more}
    return tuple(key for key, value in file.metadata.items() if not (
        key in known or key.startswith(_PREFIXES) or (key.startswith("tokenizer.ggml.") and key.endswith("_token_id"))
        or (key.startswith(own) and (key.removeprefix(own) in read or _changes_nothing(key, value, architecture)))
    ))  # fmt: skip


def _changes_nothing(key: str, value: Any, architecture: str) -> bool:
    name = key.removeprefix(f"{architecture}.")
    if name == "expert_weights_norm":
        return bool(value == _NORMED.get(architecture))
    return any(value == one for one in _NEUTRAL.get(name, ()))


def refuse_scaled(file: GgufFile, architecture: str, in_part: bool = False) -> None:
    """Raise UserError for scaled rotary embeddings, and for columns that are read from another row than those of the
    architecture. in_part: factors of frequencies say which part of a head turns."""
    where, given = file.files[0], {name: file.metadata.get(f"{architecture}.{name}") for name in _READ.split()}
    said = next(_scaled(given, architecture), None)
    if said := said or ("" if in_part else _frequencies(file.tensors.get(FREQUENCIES))):
        raise UserError(f"{where} has scaled rotary embeddings ({said}), which are not supported. Take the checkpoint "
                        "without them.")  # fmt: skip
    shifted = file.metadata.get("diffusion.shift_logits", _SHIFTED[architecture])
    if shifted != _SHIFTED[architecture]:
        raise UserError(f"{where} has diffusion.shift_logits={shown(shifted)}, and {architecture} is read with "
                        f"{shown(_SHIFTED[architecture])}. Take a file that llama.cpp's converter wrote.")  # fmt: skip


def _scaled(given: Mapping[str, Any], architecture: str) -> Iterator[str]:
    """What scales the embedding, as the file spells it."""
    kind = given["rope.scaling.type"]
    if kind not in (None, "none", "linear"):
        yield f"{architecture}.rope.scaling.type={shown(kind)}"
    name = next((name for name in _FACTORS if given[name] is not None), _FACTORS[0])
    if kind != "none" and given[name] not in (None, 0, 1):
        yield f"{architecture}.{name}={shown(given[name])}"
    if given["rope.scaling.attn_factor"] not in (None, 1):
        yield f"{architecture}.rope.scaling.attn_factor={shown(given['rope.scaling.attn_factor'])}"


def _frequencies(tensor: GgufTensor | None) -> str:
    """A word for factors of frequencies that are not all 1; empty: they are, or the file has none."""
    if tensor is None:
        return ""
    found = frequencies(tensor)
    return "" if found is not None and (found == 1).all() else FREQUENCIES


def frequencies(tensor: GgufTensor) -> NDArray[Any] | None:
    """What frequencies are divided by; None: the tensor is not of plain floats."""
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    if tensor.kind not in kinds:
        return None
    return np.fromfile(tensor.file, kinds[tensor.kind], prod(tensor.shape), offset=tensor.begin)
