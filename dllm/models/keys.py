"""Rules for the keys of a checkpoint's JSON files: type and range, checked before anything is built from them.

Of the keys that no family's table reads, the lists here say which change nothing, and which may only have the value
that changes nothing. Whatever is in neither list is reported (``ModelConfig.unread``).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from dllm.common.coerce import is_whole
from dllm.common.errors import UserError, either

REQUIRED: Any = object()  # the default of a key without default
AS_ABSENT: Any = object()  # what null means unless a rule says otherwise
MAX_SIZE = 2**24  # rows or columns of a matrix, and positions; up to here float32 counts exactly
MAX_LAYERS, MAX_EXPERTS = 10_000, 100_000
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule of one key of config.json."""

    rule: str  # continues "must be" in an error
    fits: Callable[[Any], bool]  # whether a value is allowed
    default: Any = None  # what absence means
    size: bool = False  # the key counts rows or columns of stored tensors, so their headers bound it
    null: Any = AS_ABSENT  # what null means

    def value_in(self, content: Mapping[str, Any], key: str) -> Any:
        """The value of ``key`` in ``content``, which may be REQUIRED: it lacks one."""
        value = content.get(key)
        if value is not None:
            return value
        return self.null if key in content and self.null is not AS_ABSENT else self.default


KeyRules = Mapping[str, KeyRule]  # the rule of each key of a file


def quote(value: Any) -> str:
    """A value of a file, as an error message prints it: quoted, control characters escaped, cut where long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _SHORT.repr(value)


def printed(name: str) -> str:
    """A name as a file gives it, shortened and escaped where it is long or holds control characters."""
    return name if name.isprintable() and len(name) <= 120 else quote(name)


def integer(low: int, high: int, default: Any = None, size: bool = False, null: Any = AS_ABSENT) -> KeyRule:
    """An integer in [low, high]. Floats, strings and booleans are refused."""
    rule = f"an integer from {low} to {high}"
    return KeyRule(rule, lambda value: is_whole(value) and low <= value <= high, default, size, null)


def real(low: float, high: float, default: Any = None) -> KeyRule:
    """A finite number in [low, high]."""

    def fits(value: Any) -> bool:
        number = is_whole(value) or (isinstance(value, float) and isfinite(value))
        return number and low <= value <= high

    return KeyRule(f"a number from {low:g} to {high:g}", fits, default)


def boolean(default: Any = False) -> KeyRule:
    """true or false. Python, and so the published classes, take null for false."""
    null = False if isinstance(default, bool) else AS_ABSENT
    return KeyRule("true or false", lambda value: isinstance(value, bool), default, null=null)


def allowed(*values: Any, default: Any = None) -> KeyRule:
    """One of the values that published checkpoints of the family use. Without values: null alone. default: REQUIRED
    where the published class takes another value for a key that the file lacks."""
    rule = only(*values, default=default)
    return replace(rule, rule=f"{rule.rule}, as in every published checkpoint of this family")


def only(*values: Any, default: Any = None, any_case: bool = False) -> KeyRule:
    """One of some values. any_case: in small letters or capitals."""

    def fits(value: Any) -> bool:
        text = value.lower() if any_case and isinstance(value, str) else value
        return any(type(text) is type(choice) and text == choice for choice in values)

    return KeyRule(either([quote(value) for value in values or (None,)]), fits, default)


def token_ids(high: int) -> KeyRule:
    """A token id in [0, high], or a list of them."""

    def fits(value: Any) -> bool:
        return all(
            is_whole(number) and 0 <= number <= high for number in (value if isinstance(value, list) else [value])
        )

    return KeyRule(f"a token id from 0 to {high} or a list of them", fits)


# The bounds of sizes are loose: they keep small what is derived from the sizes. The headers of the weights bound the
# sizes tightly (``fit.check_sizes``), before a module is built.
def size(default: Any = REQUIRED, null: Any = AS_ABSENT) -> KeyRule:
    """A number of rows or columns of stored tensors."""
    return integer(1, MAX_SIZE, default, size=True, null=null)


def experts(default: Any = REQUIRED) -> KeyRule:
    """A number of experts."""
    return integer(1, MAX_EXPERTS, default)


def epsilon(default: float) -> KeyRule:
    """The eps of RMSNorm. At 1e-12 a row of zeros is scaled by 1e6 only. Above 0.1 it would dominate small rows."""
    return real(1e-12, 0.1, default)


def list_of(rule: str, fits: Callable[[Any], bool], default: Any = None) -> KeyRule:
    """A list whose every entry ``fits``."""
    return KeyRule(rule, lambda value: isinstance(value, list) and all(map(fits, value)), default)


LAYERS = integer(1, MAX_LAYERS, REQUIRED)
AN_OBJECT = KeyRule("an object", lambda value: isinstance(value, dict))


def wrong_value(file: str, content: str) -> UserError:
    """The error for a JSON file whose content cannot be right. content: its keys, values and the rule they break."""
    return UserError(f"{file} has {content}. Copy the checkpoint's own {file.partition(':')[0]} again.")


def read_keys(
    table: KeyRules, content: Mapping[str, Any], file: str, wrong: Callable[[str, Any, str], UserError] | None = None
) -> dict[str, Any]:
    """The keys of ``table`` with their values in ``content``, or their defaults. wrong: the error for a key, its value
    and its rule, and for one that is missing (None: that of a ``file`` of a checkpoint).

    Raises UserError that names file, key, value and rule.
    """
    values = {key: rule.value_in(content, key) for key, rule in table.items()}
    missing = [key for key, value in values.items() if value is REQUIRED]
    if missing and wrong is None:
        raise UserError(f"{file} lacks {', '.join(missing)}, which this architecture needs to be built.")
    for key, rule in table.items():
        value = content.get(key)
        if key in missing or (value is not None and not rule.fits(value)):
            raise (
                wrong(key, value, rule.rule)
                if wrong
                else wrong_value(file, f"{key}={quote(value)}, which must be {rule.rule}")
            )
    return values


ALL_FULL = list_of(
    "a list of 'full_attention' alone (sliding windows are not supported)", lambda value: value == "full_attention"
)
# Keys of transformers' classes that would change what is computed, by the values that change nothing.
_NEUTRAL = {
    allowed(False): """
        attention_bias mlp_bias bias use_bias use_qkv_bias qkv_bias qk_norm use_qk_norm qk_layernorm norm_head
        parallel_attn use_parallel_residual post_norm sandwich_norm rope_interleave rope_interleaved alibi use_alibi
        use_sliding_window attention_sink add_cross_attention multi_query_attention use_mrope is_encoder_decoder
    """,
    allowed(): """
        layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon rotary_base rotary_emb_base rope_local_base_freq
        mrope_section no_rope_layer_interval sliding_window_pattern attention_chunk_size clip_qkv q_lora_rank
        kv_lora_rank attention_multiplier scale_depth query_pre_attn_scalar final_logit_softcapping
        attn_logit_softcapping logit_softcapping scoring_func score_function expert_capacity vision_config audio_config
        transformers_weights
    """,
    allowed(1, 1.0): """
        rotary_pct rotary_percent rope_ratio embedding_multiplier residual_multiplier logits_scaling logit_scale
        scale_emb
    """,
    allowed(0): """
        num_experts num_local_experts n_routed_experts n_shared_experts num_shared_experts num_nextn_predict_layers
        num_mtp_layers
    """,
    allowed([]): "no_rope_layers mlp_only_layers",
    allowed(1): "decoder_sparse_step",
    allowed("silu"): "hidden_activation activation_function act_fn",
    allowed(True): "use_rmsnorm",
    allowed("rope", "rotary"): "position_embedding_type",
    ALL_FULL: "layer_types",
}
NEUTRAL_KEYS: dict[str, KeyRule] = {key: rule for rule, keys in _NEUTRAL.items() for key in keys.split()}

# Keys without effect on what is computed here: of transformers' base class; of its models, their training, and windows,
# which count only beside ``use_sliding_window``; of LLaDA's and SDAR's own classes; of how later families
# were trained, or decode by default; of generation.
_HARMLESS = """
architectures auto_map dtype finetuning_task id2label label2id model_type name_or_path problem_type task_specific_params
tokenizer_class torch_dtype transformers_version

attn_implementation chunk_size_feed_forward cross_attention_hidden_size fuse_cross_entropy gradient_checkpointing
initializer_range is_decoder output_attentions output_hidden_states output_router_logits pretraining_tp prefix
pruned_heads return_dict tf_legacy_loss tie_encoder_decoder torchscript use_bfloat16 use_cache
attention_dropout attn_pdrop embd_pdrop embedding_dropout hidden_dropout output_dropout resid_pdrop residual_dropout
router_aux_loss_coef aux_loss_alpha moe_router_bias_update_rate
max_window_layers sliding_window original_max_position_embeddings
bos_token_id cls_token_id decoder_start_token_id sep_token_id

alibi_bias_max attention_layer_norm_with_affine flash_attention flash_attn_varlen init_cutoff_factor init_device init_fn
init_std precision train_max_sequence_length
debug ep_size micro_forward skip_checkpoint use_deepep

adaptive_mask_rate ar_loss_weight conplemenrary_mask diff_loss_weight dlm_loss_weight dp_varying_mask_ratio enforce_mask
intl_mask moe_backend multi_sampling num_diffusion_steps prefix_ratio random_length_prob tok_mask_half_life_ratio

bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values
repetition_penalty return_dict_in_generate suppress_tokens temperature top_k top_p typical_p
"""
HARMLESS = frozenset(_HARMLESS.split())


def unread_keys(names: set[str], content: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a file that no rule and no list knows, null ones aside. A leading ``_`` marks transformers' own."""
    return tuple(
        key
        for key, value in content.items()
        if value is not None
        and key not in names
        and key not in NEUTRAL_KEYS
        and key not in HARMLESS
        and not key.startswith("_")
    )
