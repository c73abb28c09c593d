"""The rotary keys of a ``config.json``, whichever way they are spelt.

Older files give ``rope_theta`` and ``partial_rotary_factor`` at the top. transformers 5 writes them into
``rope_parameters``, flat or by kind of layer (``{"full_attention": {...}}``), and drops them at the top where its class
has no such argument (``convert_rope_params_to_dict``, ``PreTrainedConfig.to_diff_dict`` of 5.23). ``rope_scaling`` is
the older name of the same object. Kinds of scaling and their keys are those of modeling_rope_utils.py of 4.57 and
5.23, which agree; 4.46, which the code beside Dream's weights was written for, reads YaRN otherwise (``differs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from dllm.models.keys import (
    MAX_SIZE,
    REQUIRED,
    KeyRule,
    KeyRules,
    allowed,
    boolean,
    integer,
    list_of,
    printed,
    quote,
    read_keys,
    real,
    wrong_value,
)
from dllm.models.network.rope_scaling import (
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Scaling,
    Yarn,
    longrope_attention,
    yarn_attention,
)

THETA, SHARE = real(1, 1e12), real(1e-3, 1)
_OBJECTS = ("rope_parameters", "rope_scaling")
_MOVED = {"rope_theta": THETA, "partial_rotary_factor": SHARE}
_ORIGINAL = "original_max_position_embeddings"
# Keys that every kind may have, beside those of its own.
_ANY: dict[str, KeyRule] = {
    "rope_type": KeyRule("a name", lambda value: isinstance(value, str)),
    **_MOVED,
    "type": KeyRule("a name", lambda value: isinstance(value, str)),
    _ORIGINAL: integer(1, MAX_SIZE),
    "max_position_embeddings": integer(1, MAX_SIZE),
}
_FACTOR, _TURNS, _GROWTH = real(1, 1e4, REQUIRED), real(0, 1e4), real(1e-3, 1e4)
_LIST = list_of("a list of numbers from 0.001 to 10000", real(1e-3, 1e4).fits, REQUIRED)
_YARN: dict[str, KeyRule] = {
    "factor": real(1, 1e4),
    "beta_fast": _TURNS,
    "beta_slow": _TURNS,
    "mscale": real(0, 1e4),
    "mscale_all_dim": real(0, 1e4),
    "attention_factor": _GROWTH,
    "truncate": boolean(True),
}
# The keys of each kind. An embedding without a kind is the default one, which is not scaled.
ROPE_KINDS: Mapping[str, KeyRules] = {
    "default": {"factor": allowed(1, 1.0)},
    "linear": {"factor": _FACTOR},
    "dynamic": {"factor": _FACTOR},
    "llama3": {
        "factor": _FACTOR,
        "low_freq_factor": real(1e-3, 1e4, REQUIRED),
        "high_freq_factor": real(1e-3, 1e4, REQUIRED),
    },
    "yarn": _YARN,
    "longrope": {"factor": real(1, 1e4), "short_factor": _LIST, "long_factor": _LIST, "attention_factor": _GROWTH},
}
UNSCALED: Mapping[str, KeyRules] = {"default": ROPE_KINDS["default"]}  # of families whose class reads no scaling
# Ministral 3's body is always scaled, and grows its queries.
MINISTRAL: Mapping[str, KeyRules] = {"yarn": {**_YARN, "llama_4_scaling_beta": real(0, 10, REQUIRED)}}
_OLDER_NAMES = {"su": "longrope"}


def theta(default: Any) -> KeyRule:
    """The base of rotary embeddings."""
    return KeyRule(THETA.rule, THETA.fits, default)


class Angles(NamedTuple):
    """What rotates the rows of a forward: cosine and sine [B, n, 1, dim] as ``rotated`` takes them. query_scale
    [B, n, 1, 1]: by which queries are multiplied (None: 1)."""

    cos: Tensor
    sin: Tensor
    query_scale: Tensor | None = None


def flat(published: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The file's keys, with ``rope_theta`` and ``partial_rotary_factor`` at the top, wherever they are. Raises
    UserError where two places contradict each other."""
    keys = dict(published)
    for key, rule in _MOVED.items():
        places = dict(_places(published, key, rule, file))
        if len(set(places.values())) > 1:
            conflict = ", ".join(f"{place}={quote(value)}" for place, value in places.items())
            raise wrong_value(file, f"{conflict}: they contradict each other")
        if places:
            keys[key] = next(iter(places.values()))
    return keys


def _places(published: Mapping[str, Any], key: str, rule: KeyRule, file: str) -> Iterator[tuple[str, Any]]:
    """Every place that gives ``key``, with its value."""
    nested = ((f"{place}.{key}", inner.get(key)) for place, inner in _objects(published, file))
    for place, value in ((key, published.get(key)), *nested):
        if value is None:
            continue
        if not rule.fits(value):
            raise wrong_value(file, f"{place}={quote(value)}, which must be {rule.rule}")
        yield place, value


def _objects(published: Mapping[str, Any], file: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects, or those that they hold by kind of layer, each with its place."""
    for name in _OBJECTS:
        value = published.get(name)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise wrong_value(file, f"{name}={quote(value)}, which must be null or an object")
        yield name, {key: inner for key, inner in value.items() if not isinstance(inner, Mapping)}
        for kind, inner in value.items():
            if isinstance(inner, Mapping):
                yield f"{name}.{printed(kind)}", inner


def scaling_of(
    published: Mapping[str, Any],
    file: str,
    theta: float,
    dim: int,
    length: int,
    kinds: Mapping[str, KeyRules] = ROPE_KINDS,
) -> Scaling | None:
    """How the rotary embeddings of a file are scaled (None: not at all).

    theta: their base. dim: features of a head that rotate. length: the file's ``max_position_embeddings``. kinds: those
    that the family's class reads. Raises UserError for another kind, for a key that the kind does not have, and where
    two places contradict each other.
    """
    settings = [
        (place, kind_of(place, inner, file, kinds))
        for place, inner in _objects(published, file)
        if inner.keys() - _MOVED.keys()
    ]
    if not settings:
        if "default" in kinds:
            return None
        raise wrong_value(file, "neither rope_parameters nor rope_scaling, and this architecture needs one")
    (place, (kind, values)), *rest = settings
    for other, setting in rest:
        if setting != (kind, values):
            conflict = (f"{at}={quote(inner)}" for at, inner in _objects(published, file) if at in (place, other))
            raise wrong_value(file, f"{', '.join(conflict)}: they contradict each other")
    trained = published.get(_ORIGINAL) or values.get(_ORIGINAL) or length  # the top wins
    try:
        return _rope(kind, values, theta, dim, length, trained)
    except ValueError as error:
        raise wrong_value(file, f"{place}: {error}") from None


def kind_of(
    place: str, inner: Mapping[str, Any], file: str, kinds: Mapping[str, KeyRules]
) -> tuple[str, dict[str, Any]]:
    """The kind of the embedding at a place, and its checked keys but those that are read at the top. Raises UserError
    for what the kind does not have."""
    name = next((key for key in ("rope_type", "type") if inner.get(key) is not None), "rope_type")
    kind = inner.get(name, "default")
    kind = _OLDER_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in kinds:
        supported = f"{', '.join(map(repr, kinds))} {'is' if len(kinds) == 1 else 'are'}"
        if kinds is UNSCALED:
            supported = "only unscaled rotary embeddings (rope_type 'default') are"
        raise wrong_value(file, f"{place}.{name}={quote(kind)}: {supported} supported")
    table = {**_ANY, **kinds[kind]}
    for key, value in inner.items():
        if key not in table and value is not None:
            entry = f"{place}.{printed(key)}={quote(value)}"
            raise wrong_value(file, f"{entry}, which is not a key of a rotary embedding of rope_type {kind!r}")
    values = read_keys(
        {f"{place}.{key}": rule for key, rule in table.items()},
        {f"{place}.{key}": value for key, value in inner.items()},
        file,
    )
    values = {key.removeprefix(f"{place}."): value for key, value in values.items()}
    return kind, {key: value for key, value in values.items() if key not in ("rope_type", "type", *_MOVED)}


def _rope(kind: str, values: Mapping[str, Any], theta: float, dim: int, length: int, trained: int) -> Scaling | None:
    """The embedding of a kind by its checked ``values``. Raises ValueError where they do not fit each other or the
    head."""
    factor = values.get("factor")
    if kind == "default":
        return None
    if kind == "linear":
        return Linear(float(factor or 1), length)
    if kind == "dynamic":
        _must(dim >= 4, f"{dim} features of a head rotate, and rope_type 'dynamic' needs 4")
        return Dynamic(float(factor or 1), length)
    if kind == "llama3":
        low, high = float(values["low_freq_factor"]), float(values["high_freq_factor"])
        _must(low < high, f"low_freq_factor={low:g} must be below high_freq_factor={high:g}")
        return Llama3(float(factor or 1), trained, low=low, high=high)
    _must(factor is not None or trained != length, "neither factor nor a shorter original_max_position_embeddings")
    factor = float(factor or length / trained)
    _must(factor >= 1, f"max_position_embeddings / {_ORIGINAL} = {factor:g} must not be below 1")
    return (_yarn if kind == "yarn" else _longrope)(values, factor, trained, theta, dim)


def _yarn(values: Mapping[str, Any], factor: float, trained: int, theta: float, dim: int) -> Yarn:
    fast, slow = float(values["beta_fast"] or 32), float(values["beta_slow"] or 1)
    _must(fast >= slow, f"beta_fast={fast:g} must not be below beta_slow={slow:g}")
    _must(theta > 1, "a YaRN embedding needs a rope_theta above 1")
    attention = yarn_attention(factor, values["mscale"], values["mscale_all_dim"])
    return Yarn(
        factor,
        trained,
        float(values["attention_factor"] or attention),
        fast,
        slow,
        values["truncate"] is not False,
        float(values.get("llama_4_scaling_beta") or 0),
    )


def _longrope(values: Mapping[str, Any], factor: float, trained: int, theta: float, dim: int) -> LongRope:
    short, long = (tuple(map(float, values[key])) for key in ("short_factor", "long_factor"))
    for key, factors in (("short_factor", short), ("long_factor", long)):
        _must(len(factors) == dim // 2, f"{key} has {len(factors)} numbers, and {dim // 2} frequencies rotate")
    attention = float(values["attention_factor"] or longrope_attention(factor, trained))
    return LongRope(factor, trained, attention, short, long)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def differs(scaling: Scaling | None, length: int) -> str:
    """A sentence about a file whose published code computes something else; empty: none. length: the file's
    ``max_position_embeddings``."""
    if not isinstance(scaling, Yarn) or scaling.trained == length:
        return ""
    return (
        f"its YaRN embedding is computed with {_ORIGINAL}={scaling.trained}, as transformers 4.57 and 5 do; 4.46, "
        f"which the code beside Dream's weights was written for, takes {length}."
    )
