"""The parts of a recorded case, by the mapping that lies beside its golden file: ``tests/data/goldens/METHOD.yaml``.

A mapping names each part's class (of ``dllm.parts``, or an accident or stand-in of the tests) and where its arguments
come from: a list of them, or their names. Of an argument: ``threshold`` is the case's parameter of that name, ``=word``
the word itself, a number or null itself. ``{by: NAME, VALUE: ..., else: ...}`` chooses by the value of a parameter
(null where the case has none), ``{or: [NAME, DEFAULT]}`` is a parameter that a case may lack. ``COMPUTED`` has what
follows from several parameters. ``unused`` is read by ``replay_params``; a file may hold it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accidents import ACCIDENTS, STAND_INS
from replay_params import FOLDER, mapping_of
from replay_parts import CACHES, Case, CaseParts, steps_of_a_block

from dllm import parts
from dllm.parts import Sampling

COMPUTED: dict[str, Callable[[Case], Any]] = {
    "steps_of_a_block": steps_of_a_block,
    "published_cache": lambda params: CACHES[params["cache"]](),
}


def class_called(name: str) -> Callable[..., Any]:
    entered = {kind.__name__: kind for kind in STAND_INS} | {word: kind for word, (kind, _) in ACCIDENTS.items()}
    kind: Callable[..., Any] = entered.get(name) or getattr(parts, name)
    return kind


def made(of: Any, params: Case) -> Any:
    """What one entry of a mapping is for a case."""
    if isinstance(of, str):
        return of[1:] if of.startswith("=") else COMPUTED[of](params) if of in COMPUTED else params[of]
    if isinstance(of, list):
        return [made(one, params) for one in of]
    if not isinstance(of, dict):
        return of
    if "by" in of:
        value = params.get(of["by"])
        return made(of[value] if value in of else of["else"], params)
    if "or" in of:
        name, default = of["or"]
        return params.get(name, default)
    ((name, given),) = of.items()
    kind = class_called(name)
    return kind(*made(given, params)) if isinstance(given, list) else kind(**options(given, params))


def options(of: dict[str, Any], params: Case) -> dict[str, Any]:
    return {name: made(one, params) for name, one in of.items()}


def parts_by(mapping: dict[str, Any], params: Case) -> CaseParts:
    """What a case decodes with. A mapping that is chosen as a whole begins with ``by``."""
    if "by" in mapping:
        value = params.get(mapping["by"])
        return parts_by(mapping[value] if value in mapping else mapping["else"], params)
    sampling = Sampling(**({"suppress_mask": False} | options(mapping.get("sampling", {}), params)))
    rest = options({name: of for name, of in mapping.items() if name not in ("sampling", "unused")}, params)
    return CaseParts(sampling=sampling, **rest)


def replayed_by(method: str) -> Callable[[Case], CaseParts]:
    return lambda params: parts_by(mapping_of(method), params)


METHODS = {
    file.stem: replayed_by(file.stem)
    for file in sorted(FOLDER.glob("*.yaml"))
    if mapping_of(file.stem).keys() - {"unused"}
}
