"""The families of 2026: what the keys of a ``config.json`` mean. Most are a class of transformers under another mask.

Sources, by family: ZHZisZZ/dllm@ca17675 (A2D), the classes of iLLaDA, Stable-DiffCoder and Nemotron-Labs-Diffusion as
published beside the weights, RadicalNumerics/RND1@87d5f46, Fast-dLLM v2's remote code as copied in
Satgoy152/DualDiffusion@9587d1e. No code of DreamReasoner, SDAR's 30B and Efficient-DLM could be read: those follow
their cards and two ports each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dllm.models import rope, tables
from dllm.models.agreement import FILE, Values, agree, attention_block, check_routing
from dllm.models.families import BuildFields, Fields, common, unsaid_block
from dllm.models.moe import MoEConfig
from dllm.models.visibility import BlockCausal, ContextCausal, PromptBlock, SeededBlocks

A2D_BLOCK = 32  # of the published -bd3lm checkpoints


def _usual(values: Values, mask: int) -> int | None:
    """The family's mask, which the tokenizer's goes before, where the vocabulary has it."""
    return mask if mask < values["vocab_size"] else None


def _a2d(values: Values, **body: Any) -> Fields:
    """The file does not tell its attention: ``ModelConfig.with_attention_block``."""
    return common(values, "a2d", usual_mask_id=_usual(values, 151669), **body)


def _illada(values: Values) -> Fields:
    features = values["hidden_size"] // values["num_attention_heads"]
    rule = "the class reads the first as the second divided by the third"
    agree(values["head_dim"] in (None, features), values, rule, "head_dim", "hidden_size", "num_attention_heads")
    return common(values, "illada", usual_mask_id=5)  # <[MASK]>


def _dream_reasoner(values: Values) -> Fields:
    """Qwen3's body without Dream's shift, though its ``model_type`` is Dream's."""
    return common(
        values, "dream_reasoner", qk_norm=True, attention=BlockCausal(attention_block(values, 32)),
        unsaid=unsaid_block(values, 32), usual_mask_id=_usual(values, 151669),
    )  # fmt: skip


def _diffcoder(values: Values) -> Fields:
    """4 and 5 are defaults of the published ``generate_block``; no file names them."""
    kind = BlockCausal(attention_block(values, 4))
    return common(values, "diffcoder", attention=kind, usual_mask_id=5)  # <[MASK_TOKEN]>


def _routed(values: Values, sparse: tuple[int, ...]) -> MoEConfig:
    check_routing(values, sparse, "intermediate_size")
    return MoEConfig(
        experts=values["num_experts"], top_k=values["num_experts_per_tok"], width=values["moe_intermediate_size"],
        router="softmax", renormalised=values["norm_topk_prob"], sparse_layers=sparse,
    )  # fmt: skip


def _sdar_moe(values: Values) -> Fields:
    step, dense = values["decoder_sparse_step"], values["mlp_only_layers"]
    layers = range(values["num_hidden_layers"])
    moe = _routed(values, tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0))
    return common(
        values, "sdar_moe", qk_norm=True, moe=moe, attention=BlockCausal(attention_block(values, 4)),
        unsaid=unsaid_block(values, 4), usual_mask_id=_usual(values, 151669),
    )  # fmt: skip


def _rnd1(values: Values) -> Fields:
    moe = _routed(values, tuple(range(values["num_hidden_layers"])))
    mask = _usual(values, 151669)
    return common(values, "rnd1", qk_norm=True, moe=moe, prediction_shift=1, usual_mask_id=mask)


def _fast_dllm_v2(values: Values) -> Fields:
    return common(
        values, "fast_dllm_v2", qkv_bias=True, prediction_shift=1, usual_mask_id=_usual(values, 151665),
        attention=SeededBlocks(attention_block(values, 32, ("bd_size",))),
    )  # fmt: skip


def _nemotron(values: Values) -> Fields:
    """Ministral 3's body. Inside a block a row predicts its own column; the first column is the causal row's before."""
    agree(not values["tie_word_embeddings"], values, "the head is never tied", "tie_word_embeddings")
    agree(values["rope_theta"] > 1, values, "a YaRN embedding needs a base above 1", "rope_theta")
    yarn = rope.yarn_of({key: values[key] for key in ("rope_parameters", "rope_scaling")}, FILE)
    return common(
        values, "nemotron", yarn=yarn, seed_shift=1, attention=ContextCausal(attention_block(values, 32)),
        usual_mask_id=_usual(values, 100),
    )  # fmt: skip


def _efficient_dlm(values: Values) -> Fields:
    agree(not values["tie_word_embeddings"], values, "the head is never tied", "tie_word_embeddings")
    return common(
        values, "efficient_dlm", qk_norm=True, attention=PromptBlock(attention_block(values, 32)),
        usual_mask_id=_usual(values, 151662),
    )  # fmt: skip


def _body(**body: Any) -> BuildFields:
    return partial(_a2d, **body)


FAMILIES_2026: dict[str, tuple[tables.Table, BuildFields]] = {
    "A2DQwen3LMHeadModel": (tables.QWEN3, _body(qk_norm=True)),
    "A2DQwen2LMHeadModel": (tables.QWEN2, _body(qkv_bias=True)),
    "A2DLlamaLMHeadModel": (tables.LLAMA, _body()),
    "ILLaDAForCausalLM": (tables.ILLADA, _illada),
    "DreamForCausalLM": (tables.DREAM_REASONER, _dream_reasoner),
    "StableDiffcoderForCausalLM": (tables.DIFFCODER, _diffcoder),
    "SDARMoeForCausalLM": (tables.SDAR_MOE, _sdar_moe),
    "RND1LM": (tables.RND1, _rnd1),
    "Fast_dLLM_QwenForCausalLM": (tables.FAST_DLLM_V2, _fast_dllm_v2),
    "NemotronLabsDiffusionModel": (tables.NEMOTRON, _nemotron),
    "EfficientDLM": (tables.EFFICIENT_DLM, _efficient_dlm),  # its model_type is plain qwen3
}

SCALED = frozenset({"NemotronLabsDiffusionModel"})  # whose rotary embeddings are scaled
FALSE_IS_NULL = {"RND1LM": ("rope_scaling",)}  # its file writes false where others write null

MODEL_TYPES_2026 = {
    "a2d-qwen3": "A2DQwen3LMHeadModel", "a2d-qwen2": "A2DQwen2LMHeadModel", "a2d-llama": "A2DLlamaLMHeadModel",
    "illada": "ILLaDAForCausalLM", "sdar_moe": "SDARMoeForCausalLM", "rnd1": "RND1LM",
    "Fast_dLLM_Qwen": "Fast_dLLM_QwenForCausalLM", "nemotron_labs_diffusion": "NemotronLabsDiffusionModel",
}  # fmt: skip
