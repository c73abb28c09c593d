"""The rotary keys of a ``config.json``, whichever way they are spelt.

Older files give ``rope_theta`` and ``partial_rotary_factor`` at the top. transformers 5 writes them into
``rope_parameters``, flat or by kind of layer (``{"full_attention": {...}}``), and drops them at the top where its class
has no such argument (``convert_rope_params_to_dict``, ``PreTrainedConfig.to_diff_dict`` of 5.23). ``rope_scaling`` is
the older name of the same object.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dllm.models.keys import REQUIRED, KeyRule, allowed, boolean, integer, printed, read_keys, real, shown, wrong_value

THETA, FACTOR = real(1, 1e12), real(1e-3, 1)
_OBJECTS = ("rope_parameters", "rope_scaling")
_MOVED = {"rope_theta": THETA, "partial_rotary_factor": FACTOR}
# What an unscaled rotary embedding may have beside them. The length of pretraining matters to scaled ones alone.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"rope_type": ("default",), "type": ("default",), "factor": (1,)}
_IGNORED = ("original_max_position_embeddings", "max_position_embeddings")
_FACTOR = real(1e-3, 1e4, REQUIRED)
# The keys of a YaRN embedding, as Ministral3 reads them.
_YARN: dict[str, KeyRule] = {
    "rope_type": allowed("yarn", default=REQUIRED), "type": allowed("yarn"), "factor": _FACTOR,
    "original_max_position_embeddings": integer(1, 2**24, REQUIRED), "beta_fast": real(1e-3, 1e4, 32.0),
    "beta_slow": real(1e-3, 1e4, 1.0), "mscale": _FACTOR, "mscale_all_dim": _FACTOR,
    "llama_4_scaling_beta": real(0, 10, REQUIRED), "attention_factor": allowed(1, 1.0), "truncate": boolean(True),
    **_MOVED, "max_position_embeddings": integer(1, 2**24),
}  # fmt: skip


def theta(default: Any) -> KeyRule:
    """The base of rotary embeddings."""
    return KeyRule(THETA.rule, THETA.fits, default)


class Angles(NamedTuple):
    """What rotates the rows of a forward: cosine and sine [B, n, 1, dim] as ``rotated`` takes them. query_scale
    [B, n, 1, 1]: by which queries are multiplied (None: 1)."""

    cos: Tensor
    sin: Tensor
    query_scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Yarn:
    """Scaled rotary embeddings (YaRN, arXiv 2309.00071), and the scale of queries beyond the original length (Llama 4,
    Ministral 3)."""

    factor: float  # by which positions are stretched
    original: int  # positions of pretraining
    beta_fast: float  # rotations from which a frequency stays as it is
    beta_slow: float  # rotations up to which it is stretched whole
    query_beta: float  # 0.1 makes queries 1.07 times as long from ``original`` on; 0: they stay
    truncate: bool = True  # the ramp begins and ends at whole features

    def frequencies(self, plain: Tensor, theta: float) -> Tensor:
        """The frequencies [d / 2] of ``plain`` ones, theta^(-2j/d): divided by the factor where they are slow, kept
        where they are fast, and between the two by a ramp."""
        half = len(plain)

        def turns(beta: float) -> float:  # the feature that turns beta times over the original length
            return 2 * half * math.log(self.original / (2 * math.pi * beta)) / (2 * math.log(theta))

        low, high = turns(self.beta_fast), turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * half - 1)
        width = high - low if high != low else 0.001  # as transformers has it, so as not to divide by zero
        slow = ((torch.arange(half, dtype=plain.dtype, device=plain.device) - low) / width).clamp(0, 1)
        return plain / self.factor * slow + plain * (1 - slow)

    def query_scale(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """What the queries [B, n, 1, 1] at ``positions`` [B, n] are multiplied by. The logarithm is taken in float32
        whatever the dtype, as in the published code, which divides integers: float64 would be off by 1e-7."""
        far = (positions // self.original).float()
        return (1 + self.query_beta * far.log1p()).to(dtype)[:, :, None, None]


def yarn_of(published: Mapping[str, Any], file: str) -> Yarn:
    """The scaled embedding of a file of a family that has one. Raises UserError where it has none, or another."""
    found = [(place, inner) for name in _OBJECTS for place, inner in _flat_objects(name, published.get(name), file)
             if inner]  # fmt: skip
    if not found:
        raise wrong_value(file, "neither rope_parameters nor rope_scaling, and this architecture needs one")
    (place, inner), *others = found
    for other, more in others:
        if inner != more:
            raise wrong_value(file, f"{place}={shown(inner)}, {other}={shown(more)}: they contradict each other")
    if unknown := [key for key, value in inner.items() if key not in _YARN and value is not None]:
        given = f"{place}.{printed(unknown[0])}={shown(inner[unknown[0]])}"
        raise wrong_value(file, f"{given}, which is not a key of a YaRN embedding")
    inner = {"rope_type": inner.get("type"), **inner}
    table = {f"{place}.{key}": rule for key, rule in _YARN.items()}
    values = read_keys(table, {f"{place}.{key}": value for key, value in inner.items()}, file)
    values = {key.removeprefix(f"{place}."): value for key, value in values.items()}
    if values["mscale"] != values["mscale_all_dim"]:
        given = f"{place}.mscale={values['mscale']}, mscale_all_dim={values['mscale_all_dim']}"
        raise wrong_value(file, f"{given}: they must be equal, since scaled sines are not supported")
    return Yarn(float(values["factor"]), int(values["original_max_position_embeddings"]), float(values["beta_fast"]),
                float(values["beta_slow"]), float(values["llama_4_scaling_beta"]),
                values["truncate"] is not False)  # fmt: skip


def flat(published: Mapping[str, Any], file: str, yarn: bool = False) -> dict[str, Any]:
    """The file's keys, with ``rope_theta`` and ``partial_rotary_factor`` at the top, wherever they are.

    yarn: a scaled embedding is ``yarn_of``'s to read. Otherwise raises UserError for one, and for a key of these
    objects that is not known; in any case where two places contradict each other.
    """
    found = dict(published)
    for key, rule in _MOVED.items():
        places = dict(_places(published, key, rule, file, yarn))
        if len(set(places.values())) > 1:
            given = ", ".join(f"{place}={shown(value)}" for place, value in places.items())
            raise wrong_value(file, f"{given}: they contradict each other")
        if places:
            found[key] = next(iter(places.values()))
    return found


def _places(
    published: Mapping[str, Any], key: str, rule: KeyRule, file: str, yarn: bool
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """Every place that gives ``key``, with its value."""
    if published.get(key) is not None:
        if not rule.fits(published[key]):
            raise wrong_value(file, f"{key}={shown(published[key])}, which must be {rule.rule}")
        yield key, published[key]
    for name in _OBJECTS:
        for place, parameters in _flat_objects(name, published.get(name), file):
            if not yarn:
                _check_unscaled(place, parameters, file)
            if parameters.get(key) is not None:
                yield f"{place}.{key}", parameters[key]


def _flat_objects(place: str, value: Any, file: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The object itself, or those that it holds by kind of layer, each with its place."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise wrong_value(file, f"{place}={shown(value)}, which must be null or an object")
    yield place, {key: inner for key, inner in value.items() if not isinstance(inner, Mapping)}
    yield from ((f"{place}.{printed(kind)}", inner) for kind, inner in value.items() if isinstance(inner, Mapping))


def _check_unscaled(place: str, parameters: Mapping[str, Any], file: str) -> None:
    """Raise UserError for what is more than a plain rotary embedding."""
    for key, value in parameters.items():
        if value is None or key in _IGNORED or (key in _NEUTRAL and value in _NEUTRAL[key]):
            continue
        if key in _MOVED and not _MOVED[key].fits(value):
            raise wrong_value(file, f"{place}.{key}={shown(value)}, which must be {_MOVED[key].rule}")
        if key not in _MOVED:
            given = f"{place}.{printed(key)}={shown(value)}"
            raise wrong_value(file, f"{given}: only unscaled rotary embeddings (rope_type 'default') are supported")
