"""DiffusionGemma as llama.cpp's converter writes it: names by its table, each vector in float32."""

from __future__ import annotations

import re

_TOP = {
    "embed_tokens": "token_embd", "norm": "output_norm", "self_conditioning.pre_norm": "self_cond_pre_norm",
    **{f"self_conditioning.{part}_proj": f"self_cond_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip
_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "post_feedforward_layernorm": "post_ffw_norm", "router.proj": "ffn_gate_inp",
}  # fmt: skip
_BARE = {
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
}  # fmt: skip


def gguf_name(published: str) -> str:
    """The name of a published tensor in a file."""
    found = re.fullmatch(r"model\.(decoder|encoder\.language_model)\.layers\.(\d+)\.(.+)", published)
    if found is None:
        return _TOP[published.removeprefix("model.decoder.").removesuffix(".weight")] + ".weight"
    theirs = _BARE.get(found[3]) or _LAYER[found[3].removesuffix(".weight")] + ".weight"
    return f"blk.{found[2]}.{'enc_' if found[1] != 'decoder' else ''}{theirs}"
