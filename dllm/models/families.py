"""The families of models: what the keys of a ``config.json`` mean, as fields of ``ModelConfig``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dllm.models import agreement, tables
from dllm.models.agreement import FILE, Values, agree
from dllm.models.moe import MoEConfig
from dllm.models.visibility import BlockCausal, CausalByRank, ContextCausal

Fields = dict[str, Any]  # of ModelConfig
BuildFields = Callable[[Values], Fields]


def special_id(values: Values, key: str, usual: int | None = None) -> int | None:
    """The file's id, the first where it lists several. Without one: the family's usual id, if the vocabulary has it."""
    if values[key] is None:
        return usual if usual is not None and usual < values["vocab_size"] else None
    return next(iter(values[key]), None) if isinstance(values[key], list) else int(values[key])


def _llada(values: Values) -> Fields:
    width, vocab = values["d_model"], values["embedding_size"] or values["vocab_size"]
    agree(vocab >= values["vocab_size"], values, "the first must not be smaller", "embedding_size", "vocab_size")
    features = agreement.head_dim(values, "d_model", "n_heads")
    return Fields(
        family="llada", width=width, layers=values["n_layers"], heads=values["n_heads"],
        kv_heads=agreement.kv_heads(values, "n_heads", "n_kv_heads"), head_dim=features,
        rotary_dim=agreement.rotary_dim(values, features),
        mlp_width=values["mlp_hidden_size"] or int(values["mlp_ratio"] * width),
        vocab=vocab, max_length=values["max_sequence_length"], eps=values["rms_norm_eps"],
        theta=float(values["rope_theta"]), mask_id=values["mask_token_id"],
        eos_id=special_id(values, "eos_token_id"), pad_id=values["pad_token_id"],
        rope_float32=values["rope_full_precision"], qkv_bias=values["include_bias"] or values["include_qkv_bias"],
        output_bias=values["include_bias"], mlp_bias=values["include_bias"], tied=values["weight_tying"],
        logit_scale=width**-0.5 if values["scale_logits"] else 1.0,
        embed_scale=width**0.5 if values["input_emb_norm"] else 1.0,
    )  # fmt: skip


def common(
    values: Values, family: str, mlp: str = "intermediate_size", mask: int | None = None, eos: int | None = None,
    **more: Any,
) -> Fields:  # fmt: skip
    """The keys that all families but LLaDA share with Hugging Face's Qwen classes. mlp: the key of the dense
    layers' width. mask, eos: the family's usual ids."""
    features = agreement.head_dim(values, "hidden_size", "num_attention_heads")
    agreement.check_layer_types(values)
    return Fields(
        family=family, width=values["hidden_size"], layers=values["num_hidden_layers"],
        heads=values["num_attention_heads"], head_dim=features, rotary_dim=agreement.rotary_dim(values, features),
        kv_heads=agreement.kv_heads(values, "num_attention_heads", "num_key_value_heads"), mlp_width=values[mlp] or 0,
        vocab=values["vocab_size"], max_length=values["max_position_embeddings"], eps=values["rms_norm_eps"],
        theta=float(values["rope_theta"]), tied=values["tie_word_embeddings"],
        mask_id=special_id(values, "mask_token_id", mask),
        eos_id=special_id(values, "eos_token_id", eos), pad_id=values["pad_token_id"], **more,
    )  # fmt: skip


def unsaid_block(values: Values, usual: int) -> str:
    """What ``task=check`` says of a file that names no attention block, where files of its family have several."""
    if values["block_size"] is not None or values["block_length"] is not None:
        return ""
    return (
        f"{FILE} names no block_size: attention goes by blocks of {usual}, as is usual in this family. For a "
        "checkpoint that was trained with others, set model.attention_block."
    )


def _dream(values: Values) -> Fields:
    usual = 151666  # of the published class, which a tokenizer of another vocabulary goes before
    return common(
        values, "dream", qkv_bias=True, prediction_shift=1,
        usual_mask_id=usual if usual < values["vocab_size"] else None,
    )  # fmt: skip


def _llada_moe(values: Values) -> Fields:
    layers, frequency = values["num_hidden_layers"], values["moe_layer_freq"]
    agree(len(frequency) == layers, values, "there must be one number per layer", "moe_layer_freq", "num_hidden_layers")
    moe = MoEConfig(
        experts=values["num_experts"], top_k=values["num_experts_per_tok"], width=values["expert_intermediate_size"],
        router="softmax", sparse_layers=tuple(i for i, sparse in enumerate(frequency) if sparse),
    )  # fmt: skip
    agreement.check_routing(values, moe.sparse_layers, "dense_intermediate_size")
    return common(
        values, "llada_moe", qk_norm=values["qk_layernorm"], moe=moe, mlp="dense_intermediate_size",
        mask=156895, eos=156892,  # 156895 is not in the published config; it is the Ling tokenizer's <|mask|>
    )  # fmt: skip


def _llada2(values: Values) -> Fields:
    dense, layers = values["first_k_dense_replace"], values["num_hidden_layers"]
    agree(dense <= layers, values, "the first must not be larger", "first_k_dense_replace", "num_hidden_layers")
    moe = MoEConfig(
        experts=values["num_experts"], top_k=values["num_experts_per_tok"], width=values["moe_intermediate_size"],
        router="sigmoid", shared_width=values["moe_intermediate_size"] * values["num_shared_experts"],
        groups=values["n_group"], top_groups=values["topk_group"], scale=values["routed_scaling_factor"],
        expert_bias=True, sparse_layers=tuple(range(dense, layers)),
    )  # fmt: skip
    agreement.check_routing(values, moe.sparse_layers, "intermediate_size")
    agreement.check_groups(values)
    return common(
        values, "llada2", moe=moe, qk_norm=True, qkv_bias=values["use_qkv_bias"], output_bias=values["use_bias"],
        attention=BlockCausal(agreement.attention_block(values, 32)), mask=156895, eos=156892,
    )  # fmt: skip


def _sdar(values: Values) -> Fields:
    return common(
        values, "sdar", qk_norm=True, attention=BlockCausal(agreement.attention_block(values, 4)),
        unsaid=unsaid_block(values, 4),
        mask=151669,  # published inference configs may lack the id; this is the tokenizer's <|MASK|>
    )  # fmt: skip


def _wedlm(values: Values) -> Fields:
    norms, usual = values["qk_norm"], 151665  # of the published fine-tuning code
    return common(
        values, "wedlm", qkv_bias=values["attention_bias"], attention=CausalByRank(),
        qk_norm=not values["attention_bias"] if norms is None else norms,  # the published engine asks the bias alone
        usual_mask_id=usual if usual < values["vocab_size"] else None,
    )  # fmt: skip


def _nbdiff(values: Values) -> Fields:
    return common(
        values, "nbdiff", prediction_shift=1, qkv_bias=values["bias"], output_bias=values["bias"],
        attention=ContextCausal(agreement.attention_block(values, 32)),
        mask=45830, eos=45892,  # [unused0] and [unused10] of openPangu's tokenizer; no published file names the mask
    )  # fmt: skip


FIRST_FAMILIES: dict[str, tuple[tables.Table, BuildFields]] = {
    "LLaDAModelLM": (tables.LLADA, _llada),
    "LLaDAMoEModelLM": (tables.LLADA_MOE, _llada_moe),
    "LLaDA2MoeModelLM": (tables.LLADA2, _llada2),
    "DreamModel": (tables.DREAM, _dream),
    "SDARForCausalLM": (tables.SDAR, _sdar),
    "WeDLMForCausalLM": (tables.WEDLM, _wedlm),
    "PanguEmbeddedForCausalLM": (tables.NBDIFF, _nbdiff),
}
