"""Rules between the keys of one ``config.json``: values that are each valid, but together describe no transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm.models.keys import quote, wrong_value
from dllm.models.network.moe import MoEConfig

FILE = "config.json"
BLOCK_KEYS = ("block_size", "block_length", "bd_size")  # spellings of the length of an attention block
Values = Mapping[str, Any]


def agree(holds: bool, values: Values, rule: str, *keys: str) -> None:
    """Raise UserError unless the rule holds. It names those of ``keys`` that the family has, with their values."""
    if not holds:
        pairs = ", ".join(f"{key}={quote(values[key])}" for key in keys if key in values)
        raise wrong_value(FILE, f"{pairs}: {rule}")


def agree_multiple(values: Values, first: str, second: str) -> None:
    """The same of two sizes, of which the second divides the first."""
    agree(values[first] % values[second] == 0, values, "the first must be a multiple of the second", first, second)


def agree_within(values: Values, first: str, second: str) -> None:
    """The same of two sizes, of which the first is not larger."""
    agree(values[first] <= values[second], values, "the first must not be larger", first, second)


def head_dim(values: Values, width: str, heads: str) -> int:
    """The head size that the file gives, or else the width divided by the heads."""
    if values.get("head_dim") is not None:
        return int(values["head_dim"])
    agree_multiple(values, width, heads)
    return int(values[width] // values[heads])


def kv_heads(values: Values, heads: str, key: str) -> int:
    """Key-value heads. Where the file leaves them out, as many as heads. They must divide the heads."""
    if values[key] is None:
        return 1 if values.get("multi_query_attention") else int(values[heads])
    agree_multiple(values, heads, key)
    single = values.get("multi_query_attention")  # LLaDA's older key for a single key-value head
    agree(single is None or single == (values[key] == 1), values, "they contradict", key, "multi_query_attention")
    return int(values[key])


def rotary_dim(values: Values, features: int) -> int:
    """Features of a head that rotate, an even number: the share that partial_rotary_factor gives. rotary_dim says it
    once more; the published classes do not read it, so it must agree."""
    rotated = int(features * values["partial_rotary_factor"]) if values["partial_rotary_factor"] else features
    keys = "d_model", "n_heads", "hidden_size", "num_attention_heads", "head_dim", "partial_rotary_factor"
    rule = f"{rotated} of a head's {features} features would rotate, which must be an even number, at least 2"
    agree(rotated > 0 and rotated % 2 == 0, values, rule, *keys)
    share = ("partial_rotary_factor",) if values["partial_rotary_factor"] else ()
    rule = f"they contradict each other, since {rotated} of a head's {features} features rotate"
    agree(values["rotary_dim"] in (None, rotated), values, rule, "rotary_dim", *share, "head_dim")
    return rotated


def check_experts(values: Values, used: str) -> None:
    """The experts that a token uses, a number under the key ``used``, must exist."""
    keys = used, "num_experts"
    agree(values[used] <= values[keys[1]], values, "a token cannot use more experts than there are", *keys)


def routed(
    values: Values,
    sparse: tuple[int, ...],
    width: str = "moe_intermediate_size",
    dense: str = "intermediate_size",
    **more: Any,
) -> MoEConfig:
    """The experts of the ``sparse`` layers, which must exist. width, dense: the keys of the width of an expert and of
    dense layers, which must have one. more: other fields."""
    check_experts(values, "num_experts_per_tok")
    has_dense = len(sparse) < values["num_hidden_layers"]
    agree(not has_dense or values[dense] is not None, values, "layers without experts need a width", dense)
    experts, used = values["num_experts"], values["num_experts_per_tok"]
    return MoEConfig(experts, used, values[width], sparse_layers=sparse, **more)


def check_groups(values: Values) -> None:
    """Groups of experts must be of equal size, and the groups that are kept must hold a token's experts."""
    experts, groups, top_groups = values["num_experts"], values["n_group"], values["topk_group"]
    agree(experts % groups == 0, values, "the first must divide the second", "n_group", "num_experts")
    agree_within(values, "topk_group", "n_group")
    keys = "num_experts_per_tok", "topk_group", "n_group", "num_experts"
    most = experts // groups * top_groups
    agree(values[keys[0]] <= most, values, "the groups kept hold too few experts", *keys)


def check_layer_types(values: Values) -> None:
    """A list of kinds of layers must name one for each layer."""
    kinds, keys = values.get("layer_types"), ("layer_types", "num_hidden_layers")
    agree(kinds is None or len(kinds) == values[keys[1]], values, "there must be one kind per layer", *keys)


def attention_block(values: Values, usual: int, spellings: tuple[str, ...]) -> int:
    """The length of an attention block, which must not be longer than the longest canvas. usual: the family's, where
    the file names none. spellings: the keys that say it."""
    lengths = {key: values[key] for key in spellings if values[key] is not None}
    agree(len(set(lengths.values())) < 2, values, "they contradict each other", *spellings)
    block = next(iter(lengths.values()), usual)
    key = next(iter(lengths), spellings[0])
    agree_within({**values, key: block}, key, "max_position_embeddings")
    return int(block)
