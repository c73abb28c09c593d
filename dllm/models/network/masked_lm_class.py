"""What is known of a masked language model of transformers (BERT, ModernBERT and kin) before its weights are read.

Its class is found by the name in config.json, among those of the installed transformers: no code of a checkpoint is
ever executed. ``dllm.models.network.masked_lm`` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dllm.common.errors import UserError, first_line
from dllm.common.installing import not_installed
from dllm.models.agreement import FILE
from dllm.models.families import Family, Fields
from dllm.models.formats.prequantized import refuse_quantised
from dllm.models.network.attention_order import AttentionKind

MASKED_LM_FAMILY, SUFFIX = "masked_lm", "ForMaskedLM"
NEEDED_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
# Model types that count positions from after the id of padding, as RoBERTa does.
BEHIND_PADDING = ("roberta", "camembert", "data2vec-text", "esm", "ibert")


@dataclass(frozen=True)
class TransformersKind(AttentionKind):
    """Full attention that only the model's own class computes: nothing of its layers is seen here."""

    name = "own-class"
    is_called = "run through its own class, whose keys and values are out of reach"
    advice = "cache=none alone, since the class computes whole canvases"
    form = "full, both ways, computed by transformers' own class; blocks of any length"
    sealed = True


def is_masked_lm(architecture: str) -> bool:
    """Whether an architecture's name is that of a masked language model of transformers."""
    return architecture.endswith(SUFFIX)


@dataclass(frozen=True, eq=False)
class MaskedLMFamily(Family):
    """Any masked language model of transformers, with the defaults of its own class."""

    def fields(self, published: Mapping[str, Any], architecture: str) -> Fields:
        """Raises UserError, too, where transformers is not installed or has no such class."""
        refuse_quantised(published, FILE)
        kind = transformers_class(architecture).config_class
        try:
            config = kind.from_dict(dict(published))
        except Exception as error:  # validation of any kind
            raise UserError(f"{FILE} is refused by transformers' {kind.__name__}: {first_line(error)}.") from error
        return _fields(config)

    def unread(self, published: Mapping[str, Any]) -> tuple[str, ...]:
        return ()  # its class reads them


MASKED_LM = MaskedLMFamily(MASKED_LM_FAMILY, {}, mask_tokens=("[MASK]",))


def _fields(config: Any) -> Fields:
    """FLOPs count three products in an MLP, as a gated one has; BERT's has two."""
    sizes = {name: getattr(config, name, None) for name in NEEDED_SIZES}
    missing = [name for name, value in sizes.items() if not isinstance(value, int)]
    if missing or getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False):
        why = f"has no {missing[0]}" if missing else "is not a plain encoder"
        raise UserError(
            f"{FILE}: a {type(config).__name__} {why}, so its class cannot be decoded with. Use a masked "
            "language model such as BertForMaskedLM or ModernBertForMaskedLM."
        )
    width, heads = config.hidden_size, config.num_attention_heads
    return {
        "family": MASKED_LM_FAMILY,
        "width": width,
        "layers": config.num_hidden_layers,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "mlp_width": getattr(config, "intermediate_size", None) or 4 * width,
        "vocab": config.vocab_size,
        "max_length": config.max_position_embeddings - _offset(config),
        "eps": 1e-12,
        "theta": 0.0,
        "mask_id": getattr(config, "mask_token_id", None),
        "eos_id": getattr(config, "eos_token_id", None),
        "pad_id": config.pad_token_id,
        "attention": TransformersKind(),
    }


def _offset(config: Any) -> int:
    """Positions that no token has."""
    behind = any(name in config.model_type for name in BEHIND_PADDING)
    return config.pad_token_id + 1 if behind and config.pad_token_id is not None else 0


def transformers_class(architecture: str) -> Any:
    """transformers' own class of that name. Raises UserError if it has none."""
    try:
        import transformers
    except ImportError as error:
        raise not_installed(f"a checkpoint of {architecture}", "transformers", "transformers") from error
    try:
        return getattr(transformers, architecture)
    except AttributeError as error:
        raise UserError(
            f"{FILE} names architectures=[{architecture!r}], which the installed transformers "
            f"{transformers.__version__} does not have natively, and code of a checkpoint is never run. Use "
            "BertForMaskedLM, ModernBertForMaskedLM or another of its masked language models."
        ) from error
