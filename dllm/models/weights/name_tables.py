"""What published files call our modules. Names of a layer follow ``layer``, a prefix, and the layer's number.

Modules of one name are in one tensor, row after row (LLaDA2's q, k and v).
"""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, str]  # of tensors, without weight or bias, by our module

LLADA_NAMES: Names = {
    "embed": "model.transformer.wte",
    "norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "layer": "model.transformer.blocks.",
    "attn_norm": "attn_norm",
    "mlp_norm": "ff_norm",
    "attn.q": "q_proj",
    "attn.k": "k_proj",
    "attn.v": "v_proj",
    "attn.o": "attn_out",
    "mlp.gate": "ff_proj",
    "mlp.up": "up_proj",
    "mlp.down": "ff_out",
}
QWEN_NAMES: Names = {
    "embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head", "layer": "model.layers.",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj", "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate", "mlp.experts": "mlp.experts", "mlp.shared": "mlp.shared_experts",
}  # fmt: skip
LLADA2_NAMES: Names = {
    **QWEN_NAMES,
    "embed": "model.word_embeddings",
    **dict.fromkeys(("attn.q", "attn.k", "attn.v"), "attention.query_key_value"),
    "attn.o": "attention.dense",
    "attn.q_norm": "attention.query_layernorm",
    "attn.k_norm": "attention.key_layernorm",
    "mlp.expert_bias": "mlp.gate.expert_bias",
}
ENCODER_NAMES: Names = {
    **QWEN_NAMES,
    "embed": "encoder.embed_tokens",
    "norm": "encoder.norm",
    "lm_head": "diffusion_head",
    "layer": "encoder.layers.",
}
GEMMA_NAMES: Names = {
    **QWEN_NAMES,
    "embed": "model.decoder.embed_tokens",
    "norm": "model.decoder.norm",
    "layer": "model.decoder.layers.",
    "attn_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_out_norm": "post_feedforward_layernorm_2",
    "out_norm": "post_feedforward_layernorm",
    "attn.norm_q": "self_attn.q_norm",
    "attn.norm_k": "self_attn.k_norm",
    **{f"router.{part}": f"router.{part}" for part in ("proj", "scale", "per_expert_scale")},
    "experts.gate_up": "experts.gate_up_proj",
    "experts.down": "experts.down_proj",
    "denoising_scalar": "layer_scalar",
    "scalar": "layer_scalar",
    "layer.scalar": "model.encoder.language_model.layers.",
    "self_conditioning.norm": "model.decoder.self_conditioning.pre_norm",
    **{
        f"self_conditioning.mlp.{part}": f"model.decoder.self_conditioning.{part}_proj"
        for part in ("gate", "up", "down")
    },
}
