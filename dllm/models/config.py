"""The sizes and conventions of a transformer, read from a published ``config.json``.

One dataclass covers LLaDA, Dream, LLaDA-MoE, LLaDA2, SDAR, WeDLM and NBDiff. Every size comes from the checkpoint's own
file. The only constants here are ids that the published files leave out (the mask tokens of LLaDA-MoE, SDAR, WeDLM and
NBDiff). ``dllm.models.tables`` lists the keys of each family, with type and range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dllm.errors import UserError
from dllm.models import agreement, common_keys, rope, tables
from dllm.models.agreement import FILE, Values, agree
from dllm.models.foreign import refuse_foreign
from dllm.models.keys import printed, read_keys, shown
from dllm.models.order import FULL, AttentionKind, BlockCausal, CausalByRank, ContextCausal
from dllm.models.prequantized import QUANTISED_KEYS, refuse_quantised


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Routed experts in place of a layer's MLP.

    router: ``softmax`` (LLaDA-MoE, weights as they are) or ``sigmoid`` (LLaDA2: a choice limited to groups, with a
    bias, and weights renormalised). sparse_layers: the layers that have experts. The others keep a dense MLP.
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
    """Sizes and conventions of one model. width D, heads H, head_dim h, kv_heads H_kv, vocab V (the logit columns).

    max_length: prompt and answer together. prediction_shift: position i is read from row i - shift. attention: who sees
    whom. usual_block: the file names no attention block, and files of its family were trained with several.
    usual_mask_id: where neither file nor tokenizer names the mask. published: the file as it is.
    """

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
    output_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    qk_norm: bool = False
    logit_scale: float = 1.0
    embed_scale: float = 1.0
    prediction_shift: int = 0
    attention: AttentionKind = FULL
    usual_block: bool = False
    usual_mask_id: int | None = None
    moe: MoEConfig | None = None
    published: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def from_published(published: Mapping[str, Any]) -> ModelConfig:
        """Build from the parsed ``config.json``.

        Raises UserError when the architecture is unknown, a key has a wrong type, lies outside its range, contradicts
        another or asks for something no published checkpoint uses.
        """
        name = architecture_of(published)
        if name not in FAMILIES:
            raise UserError(
                f"{FILE} names architectures={shown(published.get('architectures'))} and "
                f"model_type={shown(published.get('model_type'))}; known architectures are "
                f"{', '.join(sorted(FAMILIES))}. Use a checkpoint of one of these families."
            )
        refuse_foreign(name, published, FILE)
        refuse_quantised(published, FILE)
        table, build = FAMILIES[name]
        values = read_keys({**common_keys.NEUTRAL_KEYS, **table}, rope.flat(published, FILE), FILE)
        return replace(build(values), published=dict(published))

    @property
    def architecture(self) -> str:
        """The architecture that the file names."""
        return architecture_of(self.published)

    @property
    def unread(self) -> tuple[str, ...]:
        """The keys of the file that nothing here knows."""
        table = FAMILIES.get(self.architecture, ({},))[0]
        return common_keys.unread({*table, *QUANTISED_KEYS}, self.published)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences about what the file leaves open, and what of it is not read."""
        found = []
        if self.unread:
            names = ", ".join(map(printed, self.unread))
            found.append(f"{FILE} has keys that are not known here, and so are not read: {names}.")
        if self.usual_block:
            found.append(
                f"{FILE} names no block_size: attention goes by blocks of {self.attention.block}, as is usual in this "
                f"family. For a checkpoint that was trained with others, add block_size to {FILE}."
            )
        return tuple(found)

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def sizes(self) -> dict[str, int]:
        """Rows and columns that some stored tensor must have, by the keys of config.json that imply them."""
        table = FAMILIES.get(self.architecture, ({},))[0]
        found = {key: self.published[key] for key, one in table.items() if one.size and self.published.get(key)}
        if self.moe is not None and len(self.moe.sparse_layers) < self.layers:
            found["dense_intermediate_size" if self.family == "llada_moe" else "intermediate_size"] = self.mlp_width
        if self.moe is not None and self.moe.shared_width:
            found["num_shared_experts x moe_intermediate_size"] = self.moe.shared_width
        return {**found, "attention heads x head_dim": self.heads * self.head_dim}

    @property
    def least_tensors(self) -> int:
        """The least number of tensors in a checkpoint: six per layer, three per expert."""
        routed = 0 if self.moe is None else 3 * self.moe.experts * len(self.moe.sparse_layers)
        return 6 * self.layers + routed


def architecture_of(published: Mapping[str, Any]) -> str:
    """The key of ``FAMILIES``: ``architectures[0]``, because LLaDA and LLaDA-MoE share one ``model_type``. An empty
    string where the file names no architecture that we know."""
    values = read_keys(tables.ARCHITECTURE, published, FILE)
    names = values["architectures"]
    if names and names[0] in FAMILIES:
        return str(names[0])
    return MODEL_TYPES.get(str(values["model_type"]), "") if not names else ""


def _special(values: Values, key: str, usual: int | None = None) -> int | None:
    """The file's id, the first where it lists several. Without one: the family's usual id, if the vocabulary has it."""
    if values[key] is None:
        return usual if usual is not None and usual < values["vocab_size"] else None
    return next(iter(values[key]), None) if isinstance(values[key], list) else int(values[key])


def _llada(values: Values) -> ModelConfig:
    width, vocab = values["d_model"], values["embedding_size"] or values["vocab_size"]
    agree(vocab >= values["vocab_size"], values, "the first must not be smaller", "embedding_size", "vocab_size")
    features = agreement.head_dim(values, "d_model", "n_heads")
    return ModelConfig(
        family="llada", width=width, layers=values["n_layers"], heads=values["n_heads"],
        kv_heads=agreement.kv_heads(values, "n_heads", "n_kv_heads"), head_dim=features,
        rotary_dim=agreement.rotary_dim(values, features),
        mlp_width=values["mlp_hidden_size"] or int(values["mlp_ratio"] * width),
        vocab=vocab, max_length=values["max_sequence_length"], eps=values["rms_norm_eps"],
        theta=float(values["rope_theta"]), mask_id=values["mask_token_id"],
        eos_id=_special(values, "eos_token_id"), pad_id=values["pad_token_id"],
        rope_float32=values["rope_full_precision"], qkv_bias=values["include_bias"] or values["include_qkv_bias"],
        output_bias=values["include_bias"], mlp_bias=values["include_bias"], tied=values["weight_tying"],
        logit_scale=width**-0.5 if values["scale_logits"] else 1.0,
        embed_scale=width**0.5 if values["input_emb_norm"] else 1.0,
    )  # fmt: skip


def _common(
    values: Values, family: str, mlp: str = "intermediate_size", mask: int | None = None, eos: int | None = None,
    **more: Any,
) -> ModelConfig:  # fmt: skip
    """The keys that all families but LLaDA share with Hugging Face's Qwen classes. mlp: the key of the dense
    layers' width. mask, eos: the family's usual ids."""
    features = agreement.head_dim(values, "hidden_size", "num_attention_heads")
    agreement.check_layer_types(values)
    return ModelConfig(
        family=family, width=values["hidden_size"], layers=values["num_hidden_layers"],
        heads=values["num_attention_heads"], head_dim=features, rotary_dim=agreement.rotary_dim(values, features),
        kv_heads=agreement.kv_heads(values, "num_attention_heads", "num_key_value_heads"), mlp_width=values[mlp] or 0,
        vocab=values["vocab_size"], max_length=values["max_position_embeddings"], eps=values["rms_norm_eps"],
        theta=float(values["rope_theta"]), tied=values["tie_word_embeddings"],
        mask_id=_special(values, "mask_token_id", mask),
        eos_id=_special(values, "eos_token_id", eos), pad_id=values["pad_token_id"], **more,
    )  # fmt: skip


def _dream(values: Values) -> ModelConfig:
    usual = 151666  # of the published class, which a tokenizer of another vocabulary goes before
    return _common(
        values, "dream", qkv_bias=True, prediction_shift=1,
        usual_mask_id=usual if usual < values["vocab_size"] else None,
    )  # fmt: skip


def _llada_moe(values: Values) -> ModelConfig:
    layers, frequency = values["num_hidden_layers"], values["moe_layer_freq"]
    agree(len(frequency) == layers, values, "there must be one number per layer", "moe_layer_freq", "num_hidden_layers")
    moe = MoEConfig(
        experts=values["num_experts"], top_k=values["num_experts_per_tok"], width=values["expert_intermediate_size"],
        router="softmax", sparse_layers=tuple(i for i, sparse in enumerate(frequency) if sparse),
    )  # fmt: skip
    agreement.check_routing(values, moe.sparse_layers, "dense_intermediate_size")
    return _common(
        values, "llada_moe", qk_norm=values["qk_layernorm"], moe=moe, mlp="dense_intermediate_size",
        mask=156895, eos=156892,  # 156895 is not in the published config; it is the Ling tokenizer's <|mask|>
    )  # fmt: skip


def _llada2(values: Values) -> ModelConfig:
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
    return _common(
        values, "llada2", moe=moe, qk_norm=True, qkv_bias=values["use_qkv_bias"], output_bias=values["use_bias"],
        attention=BlockCausal(agreement.attention_block(values, 32)), mask=156895, eos=156892,
    )  # fmt: skip


def _sdar(values: Values) -> ModelConfig:
    return _common(
        values, "sdar", qk_norm=True, attention=BlockCausal(agreement.attention_block(values, 4)),
        usual_block=values["block_size"] is None and values["block_length"] is None,
        mask=151669,  # published inference configs may lack the id; this is the tokenizer's <|MASK|>
    )  # fmt: skip


def _wedlm(values: Values) -> ModelConfig:
    norms, usual = values["qk_norm"], 151665  # of the published fine-tuning code
    return _common(
        values, "wedlm", qkv_bias=values["attention_bias"], attention=CausalByRank(),
        qk_norm=not values["attention_bias"] if norms is None else norms,  # the published engine asks the bias alone
        usual_mask_id=usual if usual < values["vocab_size"] else None,
    )  # fmt: skip


def _nbdiff(values: Values) -> ModelConfig:
    return _common(
        values, "nbdiff", prediction_shift=1, qkv_bias=values["bias"], output_bias=values["bias"],
        attention=ContextCausal(agreement.attention_block(values, 32)),
        mask=45830, eos=45892,  # [unused0] and [unused10] of openPangu's tokenizer; no published file names the mask
    )  # fmt: skip


FAMILIES: dict[str, tuple[tables.Table, Callable[[Values], ModelConfig]]] = {
    "LLaDAModelLM": (tables.LLADA, _llada),
    "LLaDAMoEModelLM": (tables.LLADA_MOE, _llada_moe),
    "LLaDA2MoeModelLM": (tables.LLADA2, _llada2),
    "DreamModel": (tables.DREAM, _dream),
    "SDARForCausalLM": (tables.SDAR, _sdar),
    "WeDLMForCausalLM": (tables.WEDLM, _wedlm),
    "PanguEmbeddedForCausalLM": (tables.NBDIFF, _nbdiff),
}

# For repackaged checkpoints without ``architectures``.
MODEL_TYPES = {
    "Dream": "DreamModel", "llada2_moe": "LLaDA2MoeModelLM", "sdar": "SDARForCausalLM", "wedlm": "WeDLMForCausalLM",
    "PanguEmbedded": "PanguEmbeddedForCausalLM",
}  # fmt: skip
