"""What a DiffusionGemma's ``config.json`` says: layers of two kinds, experts beside a dense MLP, towers for images.

Only text is read. Defaults are those of transformers 5.24 (``configuration_diffusion_gemma.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dllm.common.errors import UserError
from dllm.models.agreement import FILE, Values, agree, agree_multiple, agree_within, check_experts, check_layer_types
from dllm.models.families import Family, Fields, special_id
from dllm.models.formats.prequantized import QUANTISED_KEYS, STORED_KEY
from dllm.models.keys import (
    AN_OBJECT,
    LAYERS,
    MAX_SIZE,
    NEUTRAL_KEYS,
    REQUIRED,
    KeyRules,
    allowed,
    epsilon,
    experts,
    integer,
    list_of,
    quote,
    read_keys,
    real,
    size,
    token_ids,
    unread_keys,
    wrong_value,
)
from dllm.models.network.moe import MoEConfig
from dllm.models.network.rope import theta
from dllm.models.network.visibility import DenoisedBlock
from dllm.models.weights.name_tables import GEMMA_NAMES

DIFFUSION_GEMMA = "DiffusionGemmaForBlockDiffusion"
SLIDING, GLOBAL = "sliding_attention", "full_attention"
GLOBAL_EVERY, GLOBAL_HEAD_DIM = 6, 512  # of a file that names neither kinds of layers nor the head size of global ones
_ROPE: dict[str, Any] = {  # of a file that names none
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    GLOBAL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
_TURNS = {  # of a file that names some: a share that is left out is the whole
    name: {
        "rope_type": allowed(*kinds, default="default"),
        "rope_theta": theta(REQUIRED),
        "partial_rotary_factor": share,
    }
    for name, kinds, share in (
        (SLIDING, ("default",), allowed(1, 1.0, default=1.0)),
        (GLOBAL, ("proportional", "default"), real(1e-3, 1, 1.0)),
    )
}
_TOP: KeyRules = {
    "text_config": replace(AN_OBJECT, default=REQUIRED),
    "canvas_length": integer(1, MAX_SIZE, 256),
    "tie_word_embeddings": allowed(True),
}
_TEXT: KeyRules = {
    "hidden_size": size(),
    "num_hidden_layers": LAYERS,
    "num_attention_heads": size(),
    "num_key_value_heads": size(4),
    "head_dim": size(256),
    "per_layer_config": replace(AN_OBJECT, null={}),
    "global_head_dim": integer(1, MAX_SIZE),
    "num_global_key_value_heads": integer(1, MAX_SIZE),
    "layer_types": list_of(f"a list of {SLIDING!r} and {GLOBAL!r}", lambda value: value in (SLIDING, GLOBAL)),
    "sliding_window": integer(1, MAX_SIZE, 512),
    "rope_parameters": AN_OBJECT,
    "intermediate_size": size(),
    "moe_intermediate_size": size(),
    "num_experts": experts(),
    "top_k_experts": experts(),
    "rms_norm_eps": epsilon(1e-6),
    "hidden_activation": allowed("gelu_pytorch_tanh"),
    "vocab_size": size(262144),
    "max_position_embeddings": integer(1, MAX_SIZE, 131072),
    "use_bidirectional_attention": allowed("vision"),
    "attention_bias": allowed(False),
    "final_logit_softcapping": real(1e-3, 1e6, 30.0),
    "tie_word_embeddings": allowed(True),
    "pad_token_id": integer(0, MAX_SIZE, 0),
    "eos_token_id": token_ids(MAX_SIZE),
}
# Of the towers, and of what else concerns images and sound.
TOWER_KEYS = frozenset({"vision_config", "audio_config", "boi_token_id", "eoi_token_id", "image_token_id",
                        "boa_token_id", "eoa_token_id", "audio_token_id", "video_token_id",
                        "vision_soft_tokens_per_image"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerKind:
    """The attention of a layer."""

    head_dim: int  # h, of one head
    kv_heads: int  # K, of keys and values
    sliding: bool  # keys are in a window, and values have a projection of their own
    theta: float  # base of the rotary embeddings
    pairs: int  # pairs of features of a head that rotate; the others stay


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """What DiffusionGemma's layers have beside the sizes that all families share."""

    layers: tuple[LayerKind, ...]  # the attention of each
    softcap: float  # logits z become c tanh(z / c)


def _kinds(values: Values) -> Iterator[LayerKind]:
    """The attention of each layer."""
    layers, names = values["num_hidden_layers"], values["layer_types"]
    names = names or [GLOBAL if (index + 1) % GLOBAL_EVERY == 0 else SLIDING for index in range(layers)]
    check_layer_types({**values, "layer_types": names})
    names = [*names[:-1], GLOBAL]  # the class makes the last layer one, whatever the file says
    rope = {name: _rope(name, values["rope_parameters"] or _ROPE) for name in dict.fromkeys(names)}
    overrides = _overrides(values, names)
    for index, name in enumerate(names):
        override, (theta, share) = overrides.get(index, {}), rope[name]
        heads = override.get("num_key_value_heads") or values["num_key_value_heads"]
        size = override.get("head_dim") or values["head_dim"]
        layer_values = {**values, "num_key_value_heads": heads, "head_dim": size}
        agree_multiple(layer_values, "num_attention_heads", "num_key_value_heads")
        agree(size % 2 == 0, layer_values, "a head's features rotate in pairs", "head_dim")
        yield LayerKind(size, heads, name == SLIDING, theta, int(share * size / 2))


def _overrides(values: Values, names: list[str]) -> Mapping[int, Mapping[str, int]]:
    """Head size and key-value heads of the layers that have their own, by number."""
    settings = values["per_layer_config"]
    if settings is None:
        override = {"head_dim": values["global_head_dim"] or GLOBAL_HEAD_DIM}
        if values["num_global_key_value_heads"] is not None:
            override["num_key_value_heads"] = values["num_global_key_value_heads"]
        return {index: override for index, name in enumerate(names) if name == GLOBAL}
    rules = {"head_dim": size(None), "num_key_value_heads": size(None)}
    overrides = dict[int, Mapping[str, int]]()
    for key, override in settings.items():
        place = f"text_config.per_layer_config.{quote(key)}"
        is_valid = isinstance(override, dict) and override.keys() <= rules.keys()
        if not (str(key).isdecimal() and int(key) < len(names) and is_valid):
            rule = f"which must be a layer's number from 0 to {len(names) - 1} with {' and '.join(rules)}"
            raise wrong_value(FILE, f"{place}={quote(override)}, {rule}")
        overrides[int(key)] = read_keys(rules, override, f"{FILE}: {place}")
    return overrides


def _rope(name: str, parameters: Mapping[str, Any]) -> tuple[float, float]:
    """Base, and the share of a head that rotates, of layers of one kind."""
    entry, rules, place = parameters.get(name), _TURNS[name], f"text_config.rope_parameters.{name}"
    if not isinstance(entry, dict) or not entry.keys() <= rules.keys():
        raise wrong_value(FILE, f"{place}={quote(entry)}, which must be an object of {', '.join(_ROPE[name])}")
    keys = read_keys(rules, entry, f"{FILE}: {place}")
    share = float(keys["partial_rotary_factor"])
    usual = _ROPE[name]["rope_type"]
    agree(
        keys["rope_type"] == usual or share == 1,
        {"rope_parameters": entry},
        f"a head that rotates in part must have rope_type={usual!r}",
        "rope_parameters",
    )
    return float(keys["rope_theta"]), share


@dataclass(frozen=True, eq=False)
class GemmaFamily(Family):
    """DiffusionGemma, whose file describes towers beside the text model."""

    def fields(self, published: Mapping[str, Any], architecture: str) -> Fields:
        if published.get("text_config") is None:
            raise UserError(f"{FILE} has no text_config, so it describes towers alone. Take the whole checkpoint.")
        top = read_keys(_TOP, published, FILE)
        values = read_keys({**NEUTRAL_KEYS, **_TEXT}, top["text_config"], f"{FILE}: text_config")
        check_experts(values, "top_k_experts")
        agree_within({**values, **top}, "canvas_length", "max_position_embeddings")
        kinds, layers = tuple(_kinds(values)), values["num_hidden_layers"]
        moe = MoEConfig(
            values["num_experts"],
            values["top_k_experts"],
            values["moe_intermediate_size"],
            "softmax",
            sparse_layers=tuple(range(layers)),
            renormalised=True,
        )
        return Fields(
            family=self.name, width=values["hidden_size"], layers=layers, heads=values["num_attention_heads"],
            kv_heads=values["num_key_value_heads"], head_dim=values["head_dim"], mlp_width=values["intermediate_size"],
            vocab=values["vocab_size"], max_length=values["max_position_embeddings"], eps=values["rms_norm_eps"],
            theta=kinds[0].theta, mask_id=None, eos_id=special_id(values, "eos_token_id", 1), tied=True,
            pad_id=values["pad_token_id"], qk_norm=True, moe=moe, embed_scale=values["hidden_size"] ** 0.5,
            process="uniform", attention=DenoisedBlock(top["canvas_length"]), window=values["sliding_window"],
            gemma=GemmaConfig(kinds, float(values["final_logit_softcapping"])),
        )  # fmt: skip

    def unread(self, published: Mapping[str, Any]) -> tuple[str, ...]:
        text = published.get("text_config") or {}
        inner = (f"text_config.{key}" for key in unread_keys({*_TEXT}, text))
        return (*unread_keys({*_TOP, *TOWER_KEYS, *QUANTISED_KEYS, STORED_KEY}, published), *inner)

    def sizes(self, published: Mapping[str, Any]) -> dict[str, int]:
        text = published["text_config"]
        return {
            f"text_config.{key}": text[key]
            for key, rule in _TEXT.items()
            if rule.size and text.get(key) and key not in ("num_attention_heads", "num_key_value_heads", "head_dim")
        }

    def warnings(self, published: Mapping[str, Any]) -> Iterator[str]:
        kinds = published["text_config"].get("layer_types")
        if kinds and kinds[-1] != GLOBAL:
            yield (
                f"{FILE} has {kinds[-1]!r} as the last of layer_types, which its class makes {GLOBAL!r}, as is done "
                "here."
            )
        if any(published.get(key) is not None for key in ("vision_config", "audio_config")):
            yield "The towers for images are left out: only text is read."


GEMMA = GemmaFamily(
    "diffusion_gemma",
    _TEXT,
    model_type="diffusion_gemma",
    names=GEMMA_NAMES,
    towers=("model.encoder.vision_tower.", "model.encoder.embed_vision."),
    tied=("model.decoder.", "model.encoder.language_model."),
)
