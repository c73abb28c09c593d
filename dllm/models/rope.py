"""The rotary keys of a ``config.json``, whichever way they are spelt.

Older files give ``rope_theta`` and ``partial_rotary_factor`` at the top. transformers 5 writes them into
``rope_parameters``, flat or by kind of layer (``{"full_attention": {...}}``), and drops them at the top where its class
has no such argument (``convert_rope_params_to_dict``, ``PreTrainedConfig.to_diff_dict`` of 5.23). ``rope_scaling`` is
the older name of the same object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dllm.models.keys import KeyRule, printed, real, shown, wrong_value

THETA, FACTOR = real(1, 1e12), real(1e-3, 1)
_OBJECTS = ("rope_parameters", "rope_scaling")
_MOVED = {"rope_theta": THETA, "partial_rotary_factor": FACTOR}
# What an unscaled rotary embedding may have beside them. The length of pretraining matters to scaled ones alone.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"rope_type": ("default",), "type": ("default",), "factor": (1,)}
_IGNORED = ("original_max_position_embeddings", "max_position_embeddings")


def flat(published: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The file's keys, with ``rope_theta`` and ``partial_rotary_factor`` at the top, wherever they stand.

    Raises UserError for a scaled embedding, for a key of these objects that is not known, and where two places
    contradict each other.
    """
    found = dict(published)
    for key, rule in _MOVED.items():
        places = dict(_places(published, key, rule, file))
        if len(set(places.values())) > 1:
            given = ", ".join(f"{place}={shown(value)}" for place, value in places.items())
            raise wrong_value(file, f"{given}: they contradict each other")
        if places:
            found[key] = next(iter(places.values()))
    return found


def _places(published: Mapping[str, Any], key: str, rule: KeyRule, file: str) -> Iterator[tuple[str, Any]]:
    """Every place that gives ``key``, with its value."""
    if published.get(key) is not None:
        if not rule.fits(published[key]):
            raise wrong_value(file, f"{key}={shown(published[key])}, which must be {rule.rule}")
        yield key, published[key]
    for name in _OBJECTS:
        for place, parameters in _flat_objects(name, published.get(name), file):
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
