"""The families of 2026, described as in ``dllm.models.families``. Most are a class of transformers under another mask,
with its defaults: Qwen2Config, Qwen3Config, Qwen3MoeConfig, LlamaConfig and Ministral3Config of releases 4.57 and 5.23.

Sources, by family: ZHZisZZ/dllm@ca17675 (A2D), the classes of iLLaDA, Stable-DiffCoder and Nemotron-Labs-Diffusion as
published beside the weights, RadicalNumerics/RND1@87d5f46, Fast-dLLM v2's remote code as copied in
Satgoy152/DualDiffusion@9587d1e. No code of DreamReasoner, SDAR's 30B and Efficient-DLM could be read: those follow
their cards and two ports each.
"""

from __future__ import annotations

from dataclasses import replace

from dllm.common.coerce import is_whole
from dllm.models.agreement import Values, agree, routed
from dllm.models.families import BLOCK, NORMED, QWEN, Family, Fields
from dllm.models.keys import (
    ALL_FULL,
    MAX_LAYERS,
    MAX_SIZE,
    REQUIRED,
    KeyRules,
    allowed,
    boolean,
    epsilon,
    experts,
    integer,
    list_of,
    size,
)
from dllm.models.network.rope import MINISTRAL, theta
from dllm.models.network.visibility import BlockCausal, ContextCausal, PromptBlock, SeededBlocks
from dllm.models.weights.name_tables import ENCODER_NAMES

A2D_BLOCK = 32  # of the published -bd3lm checkpoints

# Classes of transformers under other masks: Qwen3 (norms of heads), Qwen2 (biases of q, k and v), Llama (neither).
QWEN3: KeyRules = {**QWEN, **NORMED, "head_dim": size(128, null=None), "layer_types": ALL_FULL}
QWEN2: KeyRules = {**QWEN, "layer_types": ALL_FULL}
LLAMA: KeyRules = {
    **QWEN,
    "num_key_value_heads": size(None),
    "max_position_embeddings": integer(1, MAX_SIZE, 2048),
    "attention_bias": allowed(False),
    "mlp_bias": allowed(False),
    "layer_norm_eps": allowed(),
}
QWEN3_MOE: KeyRules = {
    **QWEN,
    **NORMED,
    "num_experts": experts(),
    "num_experts_per_tok": experts(),
    "moe_intermediate_size": size(),
    "intermediate_size": integer(1, MAX_SIZE),
    "num_key_value_heads": size(),
    "rope_theta": theta(REQUIRED),
    "norm_topk_prob": boolean(REQUIRED),  # false in Qwen3MoeConfig, true in all published files
}


def _illada(values: Values) -> Fields:
    features = values["hidden_size"] // values["num_attention_heads"]
    rule = "the class reads the first as the second divided by the third"
    agree(values["head_dim"] in (None, features), values, rule, "head_dim", "hidden_size", "num_attention_heads")
    return {}


def _routed(values: Values, sparse: tuple[int, ...]) -> Fields:
    return Fields(moe=routed(values, sparse, router="softmax", renormalised=values["norm_topk_prob"]))


def _sdar_moe(values: Values) -> Fields:
    step, dense = values["decoder_sparse_step"], values["mlp_only_layers"]
    layers = range(values["num_hidden_layers"])
    return _routed(values, tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0))


def _rnd1(values: Values) -> Fields:
    return _routed(values, tuple(range(values["num_hidden_layers"])))


def _untied(values: Values) -> Fields:
    agree(not values["tie_word_embeddings"], values, "the head is never tied", "tie_word_embeddings")
    return {}


# The file does not tell its attention: ``ModelConfig.with_attention_block``.
_A2D = Family("a2d", QWEN3, {"qk_norm": True}, model_type="a2d-qwen3", usual_mask=151669, answer_block=A2D_BLOCK)

FAMILIES_2026 = {
    "A2DQwen3LMHeadModel": _A2D,
    "A2DQwen2LMHeadModel": replace(_A2D, keys=QWEN2, fixed={"qkv_bias": True}, model_type="a2d-qwen2"),
    "A2DLlamaLMHeadModel": replace(_A2D, keys=LLAMA, fixed={}, model_type="a2d-llama"),
    "ILLaDAForCausalLM": Family(  # of the class only the default of eps is known
        "illada",
        {**LLAMA, "rope_theta": theta(REQUIRED), "max_position_embeddings": integer(1, MAX_SIZE, REQUIRED)},
        of=_illada,
        model_type="illada",
        usual_mask=5,
        mask_tokens=("<[MASK]>",),
    ),
    "DreamForCausalLM": Family(  # Qwen3's body without Dream's shift, though its model_type is Dream's
        "dream_reasoner",
        {**QWEN3, **BLOCK, "rope_theta": theta(REQUIRED), "num_key_value_heads": size()},
        {"qk_norm": True},
        blocks=BlockCausal,
        block=32,
        varies=True,
        usual_mask=151669,
    ),
    "StableDiffcoderForCausalLM": Family(  # 4 and 5 are defaults of the published generate_block; no file names them
        "diffcoder", {**LLAMA, **BLOCK}, blocks=BlockCausal, block=4, usual_mask=5, mask_tokens=("<[MASK_TOKEN]>",)
    ),
    "SDARMoeForCausalLM": Family(
        "sdar_moe",
        {
            **QWEN3_MOE,
            **BLOCK,
            "decoder_sparse_step": integer(1, MAX_LAYERS, 1),
            "mlp_only_layers": list_of(
                "a list of numbers of layers", lambda value: is_whole(value) and 0 <= value < MAX_LAYERS, []
            ),
        },
        {"qk_norm": True},
        _sdar_moe,
        "sdar_moe",
        blocks=BlockCausal,
        block=4,
        varies=True,
        usual_mask=151669,
    ),
    "RND1LM": Family(  # the class makes every layer sparse
        "rnd1",
        {**QWEN3_MOE, "decoder_sparse_step": allowed(1), "mlp_only_layers": allowed([]), "is_causal": allowed(False)},
        {"qk_norm": True, "prediction_shift": 1},
        _rnd1,
        "rnd1",
        usual_mask=151669,
        false_is_null=("rope_scaling",),
    ),
    "Fast_dLLM_QwenForCausalLM": Family(
        "fast_dllm_v2",
        {**QWEN2, "bd_size": integer(1, MAX_SIZE, 32)},
        {"qkv_bias": True, "prediction_shift": 1},
        model_type="Fast_dLLM_Qwen",
        blocks=SeededBlocks,
        block=32,
        usual_mask=151665,
        mask_tokens=("|<MASK>|",),
    ),
    # Ministral 3's body. Inside a block a row predicts its own column; the first column is the causal row's before.
    "NemotronLabsDiffusionModel": Family(
        "nemotron",
        {
            **LLAMA,
            **BLOCK,
            "num_key_value_heads": size(8, null=None),
            "head_dim": size(128, null=None),
            "max_position_embeddings": integer(1, MAX_SIZE, 262144),
            "rms_norm_eps": epsilon(1e-5),
            "dlm_paradigm": allowed("bidirectional"),
            "sliding_window": allowed(),
        },
        {"seed_shift": 1},
        _untied,
        "nemotron_labs_diffusion",
        blocks=ContextCausal,
        block=32,
        usual_mask=100,
        rotations=MINISTRAL,
        names=ENCODER_NAMES,
    ),
    "EfficientDLM": Family(  # its model_type is plain qwen3
        "efficient_dlm",
        {
            **QWEN3,
            **BLOCK,
            "disable_qk_norm": allowed(False),
            "dlm_paradigm": allowed("bidirectional"),
            "dlm_type": allowed("llada"),
            "dlm_arch": allowed("encoder"),
            "num_ar_layers": allowed(0),
            "num_diffusion_layers": allowed(0),
        },
        {"qk_norm": True},
        _untied,
        blocks=PromptBlock,
        block=32,
        usual_mask=151662,
        names=ENCODER_NAMES,
    ),
}
