"""What a transformer of ours is made of, read from a published ``config.json``.

One dataclass covers LLaDA, Dream, LLaDA-MoE, LLaDA2 and SDAR. Every size comes from the checkpoint's own file;
the only constants here are ids that the published files leave out (LLaDA-MoE's and SDAR's mask token).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dllm.errors import UserError


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Routed experts of a layer's MLP.

    ``router`` is ``softmax`` (LLaDA-MoE: no renormalisation) or ``sigmoid`` (LLaDA2: group-limited choice with a
    bias, weights renormalised). ``first_dense`` layers keep a dense MLP; ``sparse_layers`` lists the others.
    """

    experts: int
    top_k: int
    width: int
    router: str
    shared_width: int = 0
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    expert_bias: bool = False
    sparse_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and conventions of one model. Letters as in the design: D width, H heads, V logit columns."""

    family: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    max_length: int
    eps: float
    theta: float
    mask_id: int | None
    eos_id: int | None
    pad_id: int | None
    rotary_dim: int = 0
    rope_float32: bool = False
    qkv_bias: bool = False
    linear_bias: bool = False
    tied: bool = False
    qk_norm: bool = False
    logit_scale: float = 1.0
    embed_scale: float = 1.0
    prediction_shift: int = 0
    attention_block: int | None = None
    moe: MoEConfig | None = None
    published: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def from_published(published: Mapping[str, Any]) -> ModelConfig:
        """Build from the parsed ``config.json``.

        Raises UserError when the architecture is unknown or a key asks for something no published checkpoint uses.
        """
        reader = FAMILIES.get(architecture_of(published))
        if reader is None:
            raise UserError(
                f"config.json names architectures={published.get('architectures')!r} and "
                f"model_type={published.get('model_type')!r}; known architectures are "
                f"{', '.join(sorted(FAMILIES))}. Use a checkpoint of one of these families."
            )
        config = reader(published)
        return replace(config, rotary_dim=config.rotary_dim or config.head_dim, published=dict(published))

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


def architecture_of(published: Mapping[str, Any]) -> str:
    """The loader's key: ``architectures[0]`` first, because LLaDA and LLaDA-MoE share one ``model_type``."""
    names = published.get("architectures") or []
    if names and names[0] in FAMILIES:
        return str(names[0])
    return MODEL_TYPES.get(str(published.get("model_type")), "") if not names else ""


def _need(published: Mapping[str, Any], *keys: str) -> list[Any]:
    missing = [key for key in keys if published.get(key) is None]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}, which this architecture needs to be built.")
    return [published[key] for key in keys]


def _refuse(published: Mapping[str, Any], rules: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse values that change the computation and that no published checkpoint of the family uses."""
    for key, allowed in rules.items():
        if key in published and published[key] not in allowed:
            raise UserError(
                f"config.json has {key}={published[key]!r}; only {' or '.join(map(repr, allowed))} is supported, "
                "as in every published checkpoint of this family."
            )


def _default(published: Mapping[str, Any], key: str, usual: int) -> int | None:
    """The file's id, else the family's usual one where the vocabulary reaches that far."""
    if published.get(key) is not None:
        return int(published[key])
    return usual if usual < (published.get("vocab_size") or 0) else None


def _eos(published: Mapping[str, Any], usual: int | None = None) -> int | None:
    """``eos_token_id``, the first one where the file lists several."""
    ids = published.get("eos_token_id")
    if isinstance(ids, list):
        return int(ids[0]) if ids else None
    return ids if usual is None else _default(published, "eos_token_id", usual)


def _kv_heads(published: Mapping[str, Any]) -> int:
    heads, kv_heads = published["n_heads"], published.get("n_kv_heads")
    multi_query = published.get("multi_query_attention")
    if kv_heads is None:
        return 1 if multi_query else heads
    if multi_query is not None and multi_query != (kv_heads == 1):
        raise UserError(f"config.json: n_kv_heads={kv_heads} and multi_query_attention={multi_query} contradict.")
    return int(kv_heads)


def _llada(published: Mapping[str, Any]) -> ModelConfig:
    _refuse(published, {
        "block_type": ("llama",), "activation_type": ("silu",), "layer_norm_type": ("rms",), "rope": (True,),
        "alibi": (False, None), "attention_layer_norm": (False, None), "bias_for_layer_norm": (False, None),
        "layer_norm_with_affine": (True, None),
    })  # fmt: skip
    width, layers, heads, vocab = _need(published, "d_model", "n_layers", "n_heads", "vocab_size")
    return ModelConfig(
        family="llada", width=width, layers=layers, heads=heads, kv_heads=_kv_heads(published), head_dim=width // heads,
        mlp_width=published.get("mlp_hidden_size") or int(published.get("mlp_ratio", 4) * width),
        vocab=published.get("embedding_size") or vocab, max_length=published.get("max_sequence_length", 4096),
        eps=published.get("rms_norm_eps", 1e-5), theta=published.get("rope_theta", 10000.0),
        mask_id=published.get("mask_token_id"), eos_id=_eos(published),
        pad_id=published.get("pad_token_id"),
        rope_float32=published.get("rope_full_precision", True),
        qkv_bias=bool(published.get("include_bias") or published.get("include_qkv_bias")),
        linear_bias=bool(published.get("include_bias")), tied=published.get("weight_tying", True),
        logit_scale=width**-0.5 if published.get("scale_logits") else 1.0,
        embed_scale=width**0.5 if published.get("input_emb_norm") else 1.0,
    )  # fmt: skip


def _rope_theta(published: Mapping[str, Any]) -> float:
    """``rope_theta`` moved into ``rope_parameters`` in files written by transformers 5."""
    scaling = published.get("rope_scaling")
    if scaling and scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise UserError(f"config.json has rope_scaling={scaling!r}; only unscaled rotary embeddings are supported.")
    parameters = published.get("rope_parameters") or {}
    return float(published.get("rope_theta") or parameters.get("rope_theta") or 10000.0)


def _common(published: Mapping[str, Any], family: str, **more: Any) -> ModelConfig:
    """The keys that Dream, LLaDA-MoE, LLaDA2 and SDAR share with Hugging Face's Qwen classes."""
    _refuse(published, {"hidden_act": ("silu",), "use_sliding_window": (False, None)})
    width, layers, heads, vocab = _need(
        published, "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"
    )
    values: dict[str, Any] = {
        "kv_heads": published.get("num_key_value_heads") or heads,
        "head_dim": published.get("head_dim") or width // heads,
        "mlp_width": published.get("intermediate_size") or 0,
        "mask_id": published.get("mask_token_id"),
        "eos_id": _eos(published),
        "pad_id": published.get("pad_token_id"),
    }
    return ModelConfig(
        family=family, width=width, layers=layers, heads=heads, vocab=vocab,
        max_length=published.get("max_position_embeddings", 32768), eps=published.get("rms_norm_eps", 1e-6),
        theta=_rope_theta(published), tied=bool(published.get("tie_word_embeddings")), **{**values, **more},
    )  # fmt: skip


def _dream(published: Mapping[str, Any]) -> ModelConfig:
    return _common(published, "dream", qkv_bias=True, prediction_shift=1)


def _llada_moe(published: Mapping[str, Any]) -> ModelConfig:
    _refuse(published, {
        "moe_router_score_function": ("softmax",), "partial_rotary_factor": (1, 1.0, None), "clip_qkv": (None,),
        "shared_expert_intermediate_size": (None, 0), "attention_bias": (False, None),
        "moe_router_enable_expert_bias": (False, None),
    })  # fmt: skip
    experts, top_k, width, layers = _need(
        published, "num_experts", "num_experts_per_tok", "expert_intermediate_size", "num_hidden_layers"
    )
    frequency = published.get("moe_layer_freq") or [1] * layers
    moe = MoEConfig(
        experts=experts, top_k=top_k, width=width, router="softmax",
        sparse_layers=tuple(i for i, sparse in enumerate(frequency) if sparse),
    )  # fmt: skip
    return _common(
        published, "llada_moe", qk_norm=bool(published.get("qk_layernorm")), moe=moe,
        mlp_width=published.get("dense_intermediate_size") or 0,
        # 156895 is not in the published config; it is the tokenizer's <|mask|> (Ling tokenizer).
        mask_id=_default(published, "mask_token_id", 156895), eos_id=_eos(published, 156892),
    )  # fmt: skip


def _llada2(published: Mapping[str, Any]) -> ModelConfig:
    _refuse(published, {"use_qkv_bias": (False, None), "use_bias": (False, None), "score_function": ("sigmoid", None)})
    experts, top_k, width, layers, hidden, heads = _need(
        published, "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_hidden_layers", "hidden_size",
        "num_attention_heads",
    )  # fmt: skip
    dense, head_dim = published.get("first_k_dense_replace", 0), published.get("head_dim") or hidden // heads
    moe = MoEConfig(
        experts=experts, top_k=top_k, width=width, router="sigmoid",
        shared_width=width * (published.get("num_shared_experts") or 0),
        groups=published.get("n_group") or 1, top_groups=published.get("topk_group") or 1,
        scale=published.get("routed_scaling_factor", 1.0), expert_bias=True,
        sparse_layers=tuple(range(dense, layers)),
    )  # fmt: skip
    return _common(
        published, "llada2", moe=moe, qk_norm=True, head_dim=head_dim,
        rotary_dim=int(head_dim * published.get("partial_rotary_factor", 1.0)),
        attention_block=published.get("block_length") or 32,
        mask_id=_default(published, "mask_token_id", 156895), eos_id=_eos(published, 156892),
    )  # fmt: skip


def _sdar(published: Mapping[str, Any]) -> ModelConfig:
    _refuse(published, {"attention_bias": (False, None)})
    return _common(
        published, "sdar", qk_norm=True, attention_block=published.get("block_size") or 4,
        # Published inference configs may lack the id; 151669 is the tokenizer's <|MASK|>.
        mask_id=_default(published, "mask_token_id", 151669),
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Mapping[str, Any]], ModelConfig]] = {
    "LLaDAModelLM": _llada,
    "LLaDAMoEModelLM": _llada_moe,
    "LLaDA2MoeModelLM": _llada2,
    "DreamModel": _dream,
    "SDARForCausalLM": _sdar,
}

# Used only when a repackaged checkpoint carries no ``architectures`` at all.
MODEL_TYPES = {"Dream": "DreamModel", "llada2_moe": "LLaDA2MoeModelLM", "sdar": "SDARForCausalLM"}
