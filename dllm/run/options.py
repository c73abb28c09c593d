"""The settings of a run beside its parts, checked for their kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from dllm.errors import UserError
from dllm.scores import Sampling

GEN_LENGTH = 32  # where neither the user nor a task says how long an answer is
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list", NoneType: "null"}


@dataclass(frozen=True)
class Options:
    """config.yaml's own keys, as they are commented there."""

    gen_length: int
    batch_size: int
    samples: int
    seed: int
    stop: list[str]
    prompt: str | None
    prompts: str | None
    chat: bool | None
    compare: bool
    trace: bool | str
    live: bool | None
    animate: bool
    output: str
    name: str | None
    resume: str | None

    @staticmethod
    def of(config: Mapping[str, Any]) -> Options:
        """Raises UserError for a value of the wrong kind, or one that no run can have."""
        values = {entry.name: config[entry.name] for entry in fields(Options)}
        if values["gen_length"] is None:
            values["gen_length"] = GEN_LENGTH
        if isinstance(values["stop"], str):
            values["stop"] = [values["stop"]]
        hints = get_type_hints(Options)
        for name, value in values.items():
            values[name] = of_kind(name, value, kinds_of(hints[name]))
        options = Options(**values)
        options.check()
        return options

    def check(self) -> None:
        """Refuse numbers out of range, and settings that contradict each other."""
        for name in ("gen_length", "batch_size", "samples"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1.")
        if not 0 <= self.seed < 2**62:
            raise UserError(f"seed={self.seed} must be between 0 and 2**62.")
        if isinstance(self.trace, str):
            raise UserError(f"trace={self.trace!r} must be true or false, or, with task=replay, the file to check.")
        if not all(self.stop):
            raise UserError(f"stop={self.stop} holds an empty string, which would end every answer at once. Drop it.")
        if self.prompt is not None and self.prompts is not None:
            raise UserError(f"prompt and prompts={self.prompts!r} exclude each other. Drop one of them.")
        if self.chat and (self.prompts is not None or self.compare or self.samples > 1):
            raise UserError("chat=true is one conversation: drop prompts, compare and samples.")


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The classes that a type hint allows."""
    if hint == list[str]:
        return (list,)
    return tuple(get_args(hint)) or (hint,)


def of_kind(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """``value``, as one of ``kinds``: whole numbers count as numbers, anything that is no mapping as text."""
    if type(value) in kinds:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) in (int, float) and str in kinds:
        return str(value)
    raise UserError(f"{name}={value!r} must be {' or '.join(KINDS[kind] for kind in kinds)}.")


def sampling_of(config: Mapping[str, Any]) -> Sampling:
    """How tokens are proposed. Raises UserError for values out of range."""
    number, switch = (float,), (bool,)
    kinds: dict[str, tuple[type, ...]] = {
        "temperature": number, "top_p": (float, NoneType), "top_k": (int, NoneType), "guidance": number,
        "suppress_mask": switch, "forbid_eos": switch, "eos_last": switch,
    }  # fmt: skip
    values = {key: of_kind(f"sampling.{key}", value, kinds[key]) for key, value in config.items()}
    return Sampling(**values)
