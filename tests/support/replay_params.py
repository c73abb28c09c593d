"""The parameters of a recorded case: which of them a mapping reads, and which mean nothing.

A parameter that is not read is a failure: else a mapping could leave one out and nobody would see. ``unused`` of
METHOD.yaml names those that the published code does not use, or not in the recorded cases, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "data" / "goldens"
# Values under which a parameter does nothing, in every method.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0.0, None), "cfg_scale": (0.0,), "remasking": ("low_confidence", "none"), "alg_temp": (None, 0.0),
    "mask_id": (60,), "eos_id": (61,), "eos_token_id": (61,), "token_per_step": (1,), "eager_acceptance": (False,),
    "verify": (True,), "slide_window": (True,), "top_p": (None, 1.0), "top_k": (None,), "eos_penalty": (0.0,),
    "mask_bias": (0.0,),
}  # fmt: skip
# Numbers that are no parameter of a rule: tokens, what was drawn, how long the answer is.
CANVAS = frozenset({
    "gen_length", "max_new_tokens", "max_tokens", "max_token", "final_tokens", "temperature", "mask_id",
    "mask_token_id",
    "eos_id", "eos_token_id", "stop_token_ids", "delimiter_ids", "denoising_order", "marker", "insert",
    "end_think_token_id", "suppress_tokens", "order", "seed", "torch_seed", "new",
})  # fmt: skip


@cache
def mapping_of(method: str) -> dict[str, Any]:
    """What METHOD.yaml beside the golden file says, nothing where there is none."""
    file = FOLDER / f"{method}.yaml"
    mapping: dict[str, Any] = yaml.safe_load(file.read_text()) if file.is_file() else {}
    return mapping


def unused(method: str) -> Mapping[str, str]:
    """Parameters that the published code of a method does not use, and why."""
    named: dict[str, str] = mapping_of(method).get("unused", {})
    return named


class Params(dict[str, Any]):
    """A case's parameters, which remember who was read."""

    def __init__(self, values: Mapping[str, Any], read: set[str] | None = None) -> None:
        super().__init__(values)
        self.read = set[str]() if read is None else read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def more(self, **values: Any) -> Params:
        """The same with other values beside, which note in the same place."""
        return Params({**self, **values}, self.read)

    def unread(self) -> Iterator[str]:
        return (name for name in self if name not in self.read)


def left_out(method: str, params: Params) -> str | None:
    """A sentence about parameters that the mapping of a method neither reads nor may leave out."""
    known = unused(method)
    wrong = [
        name
        for name in params.unread()
        if name not in known and dict.__getitem__(params, name) not in NEUTRAL.get(name, ())
    ]
    values = ", ".join(f"{name}={dict.__getitem__(params, name)}" for name in wrong)
    return f"{values} would be left out: the mapping of {method} does not read it" if wrong else None
