"""The families of models: for each published class the keys of its ``config.json`` and what they mean.

Defaults are those of the classes that come with the checkpoints (``configuration_*.py``), which a file may leave out:
LLaDAConfig of GSAI-ML/LLaDA-8B, LLaDAConfig of inclusionAI/LLaDA-MoE-7B-A1B, LLaDA2MoeConfig of inclusionAI/LLaDA2.0,
DreamConfig of Dream-org/Dream-v0, SDARConfig of JetLM/SDAR, WeDLMConfig of tencent/WeDLM-8B and PanguEmbeddedConfig of
openPangu-Embedded-7B (NBDiff's base). REQUIRED: the class has no default that can be built, one that is not supported
here, or one that could not be read. Keys that no family reads: ``dllm.models.keys``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dllm.common.coerce import is_whole
from dllm.models import agreement
from dllm.models.agreement import BLOCK_KEYS, FILE, Values, agree
from dllm.models.foreign import DREAM_REASONER, I_DLM, LLADA22, Foreign, refuse_foreign
from dllm.models.formats.prequantized import QUANTISED_KEYS, STORED_KEY
from dllm.models.keys import (
    ALL_FULL,
    LAYERS,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_SIZE,
    NEUTRAL_KEYS,
    REQUIRED,
    KeyRule,
    KeyRules,
    allowed,
    boolean,
    epsilon,
    experts,
    integer,
    list_of,
    read_keys,
    real,
    size,
    token_ids,
    unread_keys,
)
from dllm.models.network import rope
from dllm.models.network.attention_order import AttentionKind
from dllm.models.network.rope import ROPE_KINDS, UNSCALED, theta
from dllm.models.network.visibility import BlockCausal, CausalByRank, ContextCausal
from dllm.models.weights.name_tables import LLADA2_NAMES, LLADA_NAMES, QWEN_NAMES, Names

Fields = dict[str, Any]  # of ModelConfig

# The keys that decide the family.
ARCHITECTURE: KeyRules = {
    "architectures": list_of("a list of names", lambda value: isinstance(value, str), []),
    "model_type": KeyRule("a name", lambda value: isinstance(value, str)),
}
_ALL: KeyRules = {
    "eos_token_id": token_ids(MAX_SIZE),
    "pad_token_id": integer(0, MAX_SIZE),
    "mask_token_id": integer(0, MAX_SIZE),
    "vocab_size": size(),
    # ``dllm.models.network.rope`` reads them first; what it found is in rope_theta and partial_rotary_factor
    "rope_scaling": KeyRule("an object or null", lambda value: isinstance(value, dict)),
    "rope_parameters": KeyRule("an object or null", lambda value: isinstance(value, dict)),
    "rotary_dim": integer(2, MAX_SIZE),
    "partial_rotary_factor": allowed(1, 1.0),  # all features of a head rotate
}
# What all families but LLaDA share with Hugging Face's Qwen classes.
QWEN: KeyRules = {
    **_ALL,
    "hidden_size": size(),
    "num_hidden_layers": LAYERS,
    "num_attention_heads": size(),
    "num_key_value_heads": size(32, null=None),
    "head_dim": size(None),
    "intermediate_size": size(),
    "max_position_embeddings": integer(1, MAX_SIZE, 32768),
    "rms_norm_eps": epsilon(1e-6),
    "rope_theta": theta(1e4),
    "tie_word_embeddings": boolean(),
    "hidden_act": allowed("silu"),
    "use_sliding_window": allowed(False),
}
NORMED: KeyRules = {name: allowed(True) for name in ("qk_norm", "use_qk_norm", "qk_layernorm")}
# Two spellings of the length of an attention block, which must agree; without them the family's usual length counts.
BLOCK: KeyRules = {name: integer(1, MAX_SIZE) for name in BLOCK_KEYS[:2]}


def of_nothing(values: Values) -> Fields:
    """No fields beside those that every family has."""
    return {}


@dataclass(frozen=True, eq=False)
class Family:
    """A published class: the keys of its ``config.json`` and the fields of ``ModelConfig`` that they give, the names of
    its tensors and its special tokens. A model of your own has one by ``dataclasses.replace`` of the nearest."""

    name: str  # of the layout of its tensors
    keys: KeyRules  # that are read: type, range, and the default of the published class
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields that are the same in all its files
    of: Callable[[Values], Fields] = of_nothing  # fields that its own keys give. Raises UserError where they disagree
    model_type: str = ""  # by which a file without ``architectures`` is known; empty: by none
    mlp: str = "intermediate_size"  # the key of the dense layers' width
    mask: int | None = None  # id of the mask where the file names none
    eos: int | None = None  # id of the end of text where the file names none
    # id of the mask where neither file nor tokenizer names one, if the vocabulary has it
    usual_mask: int | None = None
    blocks: Callable[[int], AttentionKind] | None = None  # attention by blocks of a length; None: it has none
    block: int = 0  # that length where the file names none
    varies: bool = False  # published files have several lengths: a file that names none is reported
    answer_block: int = 0  # of the answer's blocks, if it has any: its files do not tell (``model.attention_block``)
    pipelined: bool = False  # attention is full, and D2F has adapters that attend by blocks
    whole: bool = False  # ``of`` gives all fields
    rotations: Mapping[str, KeyRules] = field(default_factory=lambda: ROPE_KINDS)  # kinds of rotary embeddings, by name
    false_is_null: tuple[str, ...] = ()  # keys in which the file writes false where others write null
    names: Names = field(default_factory=lambda: QWEN_NAMES)  # of its tensors, by our modules
    mask_tokens: tuple[str, ...] = ()  # spellings of the mask, where a tokenizer does not say which token it is
    stop_tokens: tuple[str, ...] = ()  # spellings of what ends an answer
    kin: tuple[Foreign, ...] = ()  # other models that publish under its architecture
    towers: tuple[str, ...] = ()  # prefixes of tensors that are left out where only text is read
    tied: tuple[str, str] = ("", "")  # a prefix that is read, and one under which a file may have the same tensors

    def __deepcopy__(self, _: object) -> Family:
        return self  # a copied network is of the same family

    def fields(self, published: Mapping[str, Any], architecture: str) -> Fields:
        """The fields of ``ModelConfig`` that a parsed config.json gives. Raises UserError for keys of a wrong type or
        range, that contradict each other, or ask for what no published checkpoint uses."""
        refuse_foreign(architecture, self.kin, published, FILE)
        unset = dict.fromkeys(key for key in self.false_is_null if published.get(key) is False)
        content = rope.flat({**published, **unset}, FILE)
        values = read_keys({**NEUTRAL_KEYS, **self.keys}, content, FILE)
        specific = {**self.fixed, **self.of(values)}
        fields = specific if self.whole else {**specific, **self._attention(values), **self._common(values)}
        turned, longest = fields["rotary_dim"], fields["max_length"]
        scaling = rope.scaling_of(content, FILE, fields["theta"], turned, longest, self.rotations)
        more = {} if scaling is None else {"scaling": scaling, "max_length": max(longest, scaling.reach)}
        return {**fields, "family": self.name, **more}

    def unread(self, published: Mapping[str, Any]) -> tuple[str, ...]:
        """The keys of a file that nothing here knows."""
        return unread_keys({*self.keys, *QUANTISED_KEYS, STORED_KEY}, published)

    def sizes(self, published: Mapping[str, Any]) -> dict[str, int]:
        """Rows and columns that some stored tensor must have, by the keys that imply them."""
        return {key: published[key] for key, key_rule in self.keys.items() if key_rule.size and published.get(key)}

    def warnings(self, published: Mapping[str, Any]) -> Iterator[str]:
        """Sentences about what of a file is not read as it is."""
        yield from ()

    def _attention(self, values: Values) -> Fields:
        """Attention by blocks, and what ``task=check`` says of a file that names no length where several are usual."""
        if self.blocks is None:
            return {}
        spellings = tuple(key for key in BLOCK_KEYS if key in self.keys)
        kind = self.blocks(agreement.attention_block(values, self.block, spellings))
        if not self.varies or any(values[key] is not None for key in spellings):
            return {"attention": kind}
        return {
            "attention": kind,
            "unsaid": (
                f"{FILE} names no block_size: attention goes by blocks of {self.block}, as is usual in this family. "
                "For a checkpoint that was trained with others, set model.attention_block."
            ),
        }

    def _common(self, values: Values) -> Fields:
        """What the keys of Qwen's classes give."""
        features, heads = agreement.head_dim(values, "hidden_size", "num_attention_heads"), "num_attention_heads"
        agreement.check_layer_types(values)
        return Fields(
            width=values["hidden_size"],
            layers=values["num_hidden_layers"],
            heads=values[heads],
            head_dim=features,
            rotary_dim=agreement.rotary_dim(values, features),
            kv_heads=agreement.kv_heads(values, heads, "num_key_value_heads"),
            mlp_width=values[self.mlp] or 0,
            vocab=values["vocab_size"],
            max_length=values["max_position_embeddings"],
            eps=values["rms_norm_eps"],
            theta=float(values["rope_theta"]),
            tied=values["tie_word_embeddings"],
            mask_id=special_id(values, "mask_token_id", self.mask),
            eos_id=special_id(values, "eos_token_id", self.eos),
            pad_id=values["pad_token_id"],
            usual_mask_id=_in_vocabulary(self.usual_mask, values),
        )


def special_id(values: Values, key: str, usual: int | None = None) -> int | None:
    """The file's id, the first where it lists several. Without one: the family's usual id, if the vocabulary has it."""
    if values[key] is None:
        return _in_vocabulary(usual, values)
    return next(iter(values[key]), None) if isinstance(values[key], list) else int(values[key])


def _in_vocabulary(token: int | None, values: Values) -> int | None:
    return token if token is not None and token < values["vocab_size"] else None


def _llada(values: Values) -> Fields:
    width, vocab = values["d_model"], values["embedding_size"] or values["vocab_size"]
    agree(vocab >= values["vocab_size"], values, "the first must not be smaller", "embedding_size", "vocab_size")
    features = agreement.head_dim(values, "d_model", "n_heads")
    return Fields(
        width=width,
        layers=values["n_layers"],
        heads=values["n_heads"],
        kv_heads=agreement.kv_heads(values, "n_heads", "n_kv_heads"),
        head_dim=features,
        rotary_dim=agreement.rotary_dim(values, features),
        mlp_width=values["mlp_hidden_size"] or int(values["mlp_ratio"] * width),
        vocab=vocab,
        max_length=values["max_sequence_length"],
        eps=values["rms_norm_eps"],
        theta=float(values["rope_theta"]),
        mask_id=values["mask_token_id"],
        eos_id=special_id(values, "eos_token_id"),
        pad_id=values["pad_token_id"],
        rope_float32=values["rope_full_precision"],
        qkv_bias=values["include_bias"] or values["include_qkv_bias"],
        output_bias=values["include_bias"],
        mlp_bias=values["include_bias"],
        tied=values["weight_tying"],
        logit_scale=width**-0.5 if values["scale_logits"] else 1.0,
        embed_scale=width**0.5 if values["input_emb_norm"] else 1.0,
    )


def _llada_moe(values: Values) -> Fields:
    layers, frequency = values["num_hidden_layers"], values["moe_layer_freq"]
    agree(len(frequency) == layers, values, "there must be one number per layer", "moe_layer_freq", "num_hidden_layers")
    sparse = tuple(layer for layer, is_sparse in enumerate(frequency) if is_sparse)
    moe = agreement.routed(values, sparse, "expert_intermediate_size", "dense_intermediate_size", router="softmax")
    return Fields(qk_norm=values["qk_layernorm"], moe=moe)


def _llada2(values: Values) -> Fields:
    dense, layers = values["first_k_dense_replace"], values["num_hidden_layers"]
    agreement.agree_within(values, "first_k_dense_replace", "num_hidden_layers")
    moe = agreement.routed(
        values,
        tuple(range(dense, layers)),
        router="sigmoid",
        shared_width=values["moe_intermediate_size"] * values["num_shared_experts"],
        groups=values["n_group"],
        top_groups=values["topk_group"],
        scale=values["routed_scaling_factor"],
        expert_bias=True,
    )
    agreement.check_groups(values)
    return Fields(moe=moe, qkv_bias=values["use_qkv_bias"], output_bias=values["use_bias"])


def _wedlm(values: Values) -> Fields:
    norms, bias = values["qk_norm"], values["attention_bias"]
    # The published engine asks the bias alone.
    return Fields(qkv_bias=bias, qk_norm=not bias if norms is None else norms)


def _nbdiff(values: Values) -> Fields:
    return Fields(qkv_bias=values["bias"], output_bias=values["bias"])


LING: Mapping[str, Any] = {"mask_tokens": ("<|mask|>",), "stop_tokens": ("<|role_end|>",)}  # of its tokenizer
LLADA = Family("llada", {
    **_ALL,
    "d_model": size(), "n_layers": LAYERS, "n_heads": size(), "n_kv_heads": size(None),
    "multi_query_attention": boolean(None), "mlp_hidden_size": size(None), "mlp_ratio": real(1e-3, 1e3, 4),
    "embedding_size": size(50304, null=None), "max_sequence_length": integer(1, MAX_SIZE, 1024),
    "rms_norm_eps": epsilon(1e-5), "rope_theta": theta(1e4), "rope_full_precision": boolean(True),
    "include_bias": boolean(), "include_qkv_bias": boolean(), "weight_tying": boolean(True), "scale_logits": boolean(),
    "input_emb_norm": boolean(), "block_group_size": integer(1, MAX_LAYERS, 1),
    # The class's own defaults are sequential, swiglu, default and false.
    "block_type": allowed("llama", default=REQUIRED), "activation_type": allowed("silu", default=REQUIRED),
    "layer_norm_type": allowed("rms", default=REQUIRED), "rope": allowed(True, default=REQUIRED),
    "alibi": allowed(False), "attention_layer_norm": allowed(False), "bias_for_layer_norm": allowed(False),
    "layer_norm_with_affine": allowed(True),
    "tie_word_embeddings": boolean(),  # of transformers' base class; LLaDA's asks weight_tying alone
}, of=_llada, whole=True, rotations=UNSCALED, pipelined=True, names=LLADA_NAMES,  # the class reads no scaling
    mask_tokens=("<|mdm_mask|>",), stop_tokens=("<|endoftext|>", "<|eot_id|>"))  # fmt: skip

LLADA_MOE = Family("llada_moe", {
    **{key: rule for key, rule in QWEN.items() if key != "intermediate_size"},
    "num_experts": experts(), "num_experts_per_tok": experts(), "num_key_value_heads": size(None),
    "max_position_embeddings": integer(1, MAX_SIZE, 4096), "rms_norm_eps": epsilon(1e-5), "rope_theta": theta(REQUIRED),
    "expert_intermediate_size": size(), "dense_intermediate_size": integer(1, MAX_SIZE), "qk_layernorm": boolean(),
    "moe_layer_freq": list_of(
        "a list of 0 and 1, one per layer", lambda value: is_whole(value) and value in (0, 1), REQUIRED
    ),
    "moe_router_score_function": allowed("softmax"), "moe_router_enable_expert_bias": allowed(False),
    # The class never renormalises nor scales, whatever the file says.
    "norm_topk_prob": allowed(False), "routed_scaling_factor": allowed(1, 1.0),
    "router_num_group": allowed(-2), "router_topk_group": allowed(-2),
    "shared_expert_intermediate_size": allowed(0, -1), "partial_rotary_factor": allowed(1, 1.0, default=REQUIRED),
}, of=_llada_moe, mlp="dense_intermediate_size",
    mask=156895, eos=156892, **LING)  # fmt: skip  # 156895 is not in the published config, but in Ling's tokenizer

LLADA2 = Family("llada2", {
    **QWEN, **NORMED, **BLOCK,
    "num_experts": experts(), "num_experts_per_tok": experts(), "moe_intermediate_size": size(),
    "num_key_value_heads": size(), "max_position_embeddings": integer(1, MAX_SIZE, 16384),
    "rms_norm_eps": epsilon(1e-5),
    "intermediate_size": integer(1, MAX_SIZE), "first_k_dense_replace": integer(0, MAX_LAYERS, 0),
    "num_shared_experts": integer(0, MAX_EXPERTS, 0), "n_group": experts(8), "topk_group": experts(4),
    "routed_scaling_factor": real(1e-3, 1e3, 2.5), "partial_rotary_factor": real(1e-3, 1, 0.5),
    "use_qkv_bias": boolean(), "use_bias": boolean(True),
    # The class always routes by sigmoid with a bias in float32, and renormalises.
    "score_function": allowed("sigmoid"), "norm_topk_prob": allowed(True),
    "moe_router_enable_expert_bias": allowed(True), "router_dtype": allowed("fp32"),
}, {"qk_norm": True}, _llada2, "llada2_moe", mask=156895, eos=156892, blocks=BlockCausal, block=32,
    names=LLADA2_NAMES, kin=(LLADA22,), **LING)  # fmt: skip

DREAM = Family(
    "dream",
    {**QWEN, "attention_bias": allowed(True)},  # of q, k and v
    {"qkv_bias": True, "prediction_shift": 1},
    model_type="Dream",
    usual_mask=151666,  # of the published class, which a tokenizer of another vocabulary goes before
    pipelined=True,
    kin=(DREAM_REASONER,),
    mask_tokens=("<|mask|>",),
    stop_tokens=("<|im_end|>", "<|dlm_pad|>"),
)

SDAR = Family(
    "sdar",
    {**QWEN, **NORMED, **BLOCK, "head_dim": size(128, null=None), "use_regular_causal": allowed(False)},
    {"qk_norm": True},
    model_type="sdar",
    blocks=BlockCausal,
    block=4,
    varies=True,
    mask=151669,  # published inference configs may lack the id; this is the tokenizer's <|MASK|>
    kin=(I_DLM,),
    mask_tokens=("<|MASK|>", "<MASK>"),
)

WEDLM = Family("wedlm", {
    **QWEN, "qk_norm": boolean(None), "layer_types": ALL_FULL,
    "attention_bias": boolean(REQUIRED),  # true in Qwen2.5's body and by default, false in Qwen3's
}, {"attention": CausalByRank()}, _wedlm, "wedlm", usual_mask=151665)  # fmt: skip  # of the published fine-tuning code

NBDIFF = Family("nbdiff", {
    **QWEN, **BLOCK, "num_key_value_heads": size(8, null=None), "rms_norm_eps": epsilon(1e-5),
    "rope_theta": theta(1.6e7), "bias": boolean(True),  # of q, k, v and the output projection
}, {"prediction_shift": 1}, _nbdiff, "PanguEmbedded", blocks=ContextCausal, block=32,
    mask=45830, eos=45892)  # fmt: skip  # [unused0] and [unused10] of openPangu's tokenizer; no file names the mask

FIRST_FAMILIES = {
    "LLaDAModelLM": LLADA,
    "LLaDAMoEModelLM": LLADA_MOE,
    "LLaDA2MoeModelLM": LLADA2,
    "DreamModel": DREAM,
    "SDARForCausalLM": SDAR,
    "WeDLMForCausalLM": WEDLM,
    "PanguEmbeddedForCausalLM": NBDIFF,
}
