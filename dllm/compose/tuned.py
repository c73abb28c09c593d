"""``tuned.yaml``: a setting that was chosen, what it was chosen by, and for which model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dllm.common.errors import UserError, warn_once
from dllm.common.plain_yaml import plain_yaml
from dllm.compose.config_choices import choices

MOST_SETTINGS_OF_A_FILE = 400  # entries of a file
TUNED_FILES: list[tuple[str, dict[str, Any]]] = []  # files that this command line names, with their origins
TUNED_NAME = re.compile(r"(sampler|blocks|cache|eos|length|runtime|kernels)([./@]\w+)*")


def tuned_text(settings: Sequence[str], origin: Mapping[str, Any]) -> str:
    """settings: TUNED_NAME=VALUE words. origin: model, fingerprint, items, alpha and the like."""
    head = "# A setting that dllm tune chose. Take it by experiment=FILE, or in Python by dllm.tuned(FILE).\n"
    text: str = yaml.safe_dump({"settings": list(settings), "tuned": dict(origin)}, sort_keys=False, allow_unicode=True)
    return head + text


def read_tuned(file: Path) -> tuple[list[str], dict[str, Any]]:
    """The settings, and what they were chosen by. Raises UserError for a file that is none, or sets anything beside
    parts of a decode: it may be somebody else's."""
    try:
        content = plain_yaml(file, MOST_SETTINGS_OF_A_FILE)
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror or error}). Name a file that dllm tune wrote."
        ) from None
    settings = content.get("settings") if isinstance(content, dict) else None
    origin = content.get("tuned", {}) if isinstance(content, dict) else None
    words = settings if isinstance(settings, list) and all(isinstance(word, str) for word in settings) else None
    if words is None or not isinstance(origin, dict):
        raise UserError(f"{file} holds no settings that dllm tune wrote. Name its tuned.yaml.")
    for word in words:
        name, equals, value = word.partition("=")
        # a choice by its name alone: MODULE.CLASS of somebody else's file would be imported
        is_choice = "." not in name and name not in ("runtime", "kernels")
        strange = "_target_" in word or "${" in value or (is_choice and not re.fullmatch(r"[\w-]+", value))
        if not equals or not TUNED_NAME.fullmatch(name) or strange:
            raise UserError(f"{file} sets {word}, which is no part of a decode. Give it on the command line.")
    return words, origin


def with_tuned(words: Sequence[str]) -> list[str]:
    """A command line in which ``experiment=FILE.yaml`` is replaced by the settings of that file, which the user's own
    override."""
    TUNED_FILES.clear()
    files = [word for word in words if re.fullmatch(r"experiment=.*\.ya?ml['\"]?", word)]
    if not files:
        return list(words)
    settings, origin = read_tuned(Path(files[-1].partition("=")[2].strip("'\"")).expanduser())
    rest = [word for word in words if word not in files]
    if not any(re.match(r"model(\.path)?=", word) for word in rest) and isinstance(origin.get("words"), list):
        models = [f"model={name}" for name in choices("model")]
        settings = [*(word for word in origin["words"] if word in models), *settings]
    TUNED_FILES.append((files[-1], origin))
    return [*settings, *rest]


def warn_of_another_model(checkpoint: str) -> None:
    """Warn where the settings were chosen for another model. checkpoint: the fingerprint of the one at hand."""
    for word, origin in TUNED_FILES:
        warn_unless_same(word.partition("=")[2], origin, checkpoint)


def warn_unless_same(file: str, origin: Mapping[str, Any], checkpoint: str) -> None:
    """Warn where ``file`` was chosen for another checkpoint. origin: what it was chosen by."""
    if origin.get("checkpoint") != checkpoint:
        warn_once(
            f"{file} was chosen for {origin.get('model')} ({origin.get('checkpoint')}), and this is another checkpoint "
            f"({checkpoint}): its promise does not hold here. Tune again."
        )
