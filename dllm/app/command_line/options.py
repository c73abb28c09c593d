"""The settings of a run beside its parts, checked for their kinds and ranges."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dllm.app.command_line.contents import with_contents
from dllm.app.command_line.endpoint_settings import checked_endpoint, is_endpoint
from dllm.common.coerce import coerce
from dllm.common.errors import UserError, in_range, nearest
from dllm.compose.auto_length import with_auto_length
from dllm.compose.comparisons import group_and_choice

if TYPE_CHECKING:
    from dllm.contract.setting import Sampling

MAX_NAME_BYTES = 200  # bytes of a folder's name; most disks take 255, and a number may follow
DEFAULT_GEN_LENGTH = 32  # where neither the user nor a task sets the length of an answer
# Other settings that every task reads, with their kinds.
SETTING_KINDS = {
    "runtime": "str", "lag": "int | None", "kernels": "str", "model.path": "str", "model.device": "str",
    "model.dtype": "str", "model.mask_id": "int | None", "model.quantize": "str | None", "model.prompt": "str | None",
    "model.adapter": "str | None", "model.attention_block": "int | None", "model.expects": "str | None",
    "model.draft_adapter": "str | None", "model.chat_template_kwargs": "Mapping[str, Any] | None",
    "model.calibration": "str | None", "model.quantize_head": "str | None", "model.activations": "str | None",
    "model.memory_gib": "float | None", "model.rope": "Mapping[str, Any] | None", "model.family": "str | None",
    "model.tp": "int", "model.ep": "bool", "model.tp_timeout": "float",
}  # fmt: skip
IN_OLD_FILES = {
    "model.tp": 1,
    "model.ep": False,
    "model.tp_timeout": 60.0,
}  # what holds where a file lacks it; else null
_TEXTS = ("prompt", "stop", "constraint")  # in which ~ is a letter
SAMPLING_KINDS = {
    "temperature": "float",
    "top_p": "float | None",
    "top_k": "int | None",
    "guidance": "float",
    "guidance_against": "str",
    "guidance_ratio": "float",
    "suppress_mask": "bool",
    "forbid_eos": "bool",
    "min_tokens": "int",
    "eos_last": "bool",
    "tempered": "bool",
    "thinking_budget": "int | None",
    "end_of_thought": "str | None",
}


@dataclass(frozen=True)
class Options:
    """config.yaml's own keys, which are explained there."""

    gen_length: int  # masks after the prompt
    batch_size: int  # requests decoded together
    samples: int  # answers per prompt, each with its own seed
    seed: int  # of every draw
    stop: list[str]  # texts at which an answer ends
    prompt: str | None  # a text
    prompts: str | None  # a file of prompts
    chat: bool | None  # true: a conversation in the terminal; false: never apply the chat template
    compare: bool | list[str]  # decode once more with one token per step; names: with these samplers or choices
    trace: bool | str  # keep every turn of every sample; of task=replay: the file to check
    live: bool | None  # show the canvas denoising; None: when the output is a terminal
    animate: bool  # pause at every turn of the live view
    output: str  # folder of runs
    name: str | None  # folder of this run inside output; None: its time
    resume: str | None  # folder of a run to finish
    again: str | None  # folder of a run to decode once more

    @staticmethod
    def of(config: Mapping[str, Any]) -> Options:
        """Raises UserError for a value of the wrong kind, or one that no run can have."""
        values = {entry.name: config[entry.name] for entry in fields(Options)}
        if values["gen_length"] is None:
            values["gen_length"] = DEFAULT_GEN_LENGTH
        for name in ("stop", "compare"):
            if isinstance(values[name], str):
                values[name] = [values[name]]
        for entry in fields(Options):
            values[entry.name] = coerce(entry.name, values[entry.name], entry.type)
        options = Options(**values)
        options.check()
        return options

    def check(self) -> None:
        """Raise UserError for a number out of range, and for settings that contradict each other."""
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
        if self.name is not None:
            check_name(self.name)
        for entry in [] if isinstance(self.compare, bool) else self.compare:
            group_and_choice(entry)
        if self.chat and (self.prompts is not None or self.compare or self.samples > 1):
            raise UserError("chat=true is one conversation: drop prompts, compare and samples.")


def check_name(name: str) -> None:
    """Raise UserError for a name that is not one folder's, or that is too long for a disk."""
    if not name.strip(". ") or set(name) & set("/\\\0"):
        raise UserError(f"name={name!r} must be the name of one folder. Choose its place by output=FOLDER.")
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise UserError(f"name={name[:20] + '...'!r} has more than {MAX_NAME_BYTES} bytes. Shorten it.")


def checked_sampling(config: Mapping[str, Any]) -> Sampling:
    """How tokens are proposed. Raises UserError for values out of range, and for what is not a setting of it."""
    from dllm.contract.setting import (
        Sampling,  # here, since it imports torch, which takes longer than refusing a misspelt name
    )

    if unknown := [key for key in config if key not in SAMPLING_KINDS]:
        raise UserError(f"sampling.{unknown[0]} does not exist.{nearest(unknown[0], SAMPLING_KINDS)}")
    return Sampling(**{key: coerce(f"sampling.{key}", value, SAMPLING_KINDS[key]) for key, value in config.items()})


def _at_home(value: Any) -> Any:
    """A configuration in which every path that begins with ``~`` does so in the home folder."""
    if isinstance(value, Mapping):
        return {key: _at_home(entry) for key, entry in value.items()}
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~") else value  # noqa: PTH111


def checked_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with text where a number stands for text (a folder named 2026), and what a constraint's files hold.

    Raises UserError for a value of the wrong kind in the settings that every task reads.
    """
    config = with_auto_length(config)
    config = {key: value if key in _TEXTS else _at_home(value) for key, value in config.items()}
    if not isinstance(config["sampling"], Mapping):
        names = ", ".join(f"sampling.{name}=VALUE" for name in SAMPLING_KINDS)
        value = "null" if config["sampling"] is None else config["sampling"]
        raise UserError(f"sampling={value} must be set one by one: {names}.")
    Options.of({**config, "trace": bool(config["trace"])})  # a file's name for task=replay
    checked_sampling(config["sampling"])
    for group, part in config.items():
        target = part.get("_target_", "a.b") if isinstance(part, Mapping) else "a.b"
        if not isinstance(target, str) or "." not in target:
            raise UserError(f"{group}._target_={target!r} must be MODULE.CLASS. Choose one of ours by {group}=NAME.")
    out = {**config, "model": dict(config["model"]), "constraint": with_contents(config["constraint"])}
    if is_endpoint(config):
        return {**out, "model": checked_endpoint(config["model"])}
    for name, kind in SETTING_KINDS.items():
        group, _, key = name.rpartition(".")
        section = out[group] if group else out
        section[key] = coerce(name, section.get(key, IN_OLD_FILES.get(name)), kind)
    in_range("model.tp", out["model"]["tp"], 1)
    return out
