"""Files of ``--config-dir``: choices and experiments of the user's own, or of somebody else.

They set what a command line may set, and are read as data: no flag of Hydra's, whose settings start programs; no
resolver (``${oc.env:NAME}``), which would put a secret of the environment into a run folder; no consent to run
programs, which the user gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource

from dllm.common.errors import UserError
from dllm.common.plain_yaml import plain_yaml

MOST_SETTINGS = 4000  # Hydra takes a millisecond for each
CONSENTS = ("allow_code", "address")  # that running programs is fine; a cluster of Ray's, whose word is unpickled
_SETTING = re.compile(r"\$\{[\w.\[\]@/-]+\}", re.ASCII)  # ${gen_length}
_OPENS = re.compile(r"(\\*)\$\{")


class OwnFiles(FileConfigSource):  # type: ignore[misc]  # Hydra's has no types
    """Where Hydra finds these files."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Raises UserError for what is not allowed."""
        file = Path(self.path) / self._normalize_file_name(config_path)
        if file.exists():
            refuse_file(file, config_path.removesuffix(".yaml"))
        return super().load_config(config_path)


def install() -> None:
    """Have Hydra read ``--config-dir`` this way."""
    Plugins.instance()
    SourcesRegistry.instance().types[OwnFiles.scheme()] = OwnFiles


def refuse_file(file: Path, name: str) -> None:
    """Raise UserError for a file that is broken, too large, or says what it may not. name: of the choice, with its
    group."""
    settings = plain_yaml(file, MOST_SETTINGS)
    if not isinstance(settings, Mapping | None):
        raise UserError(f"{file} must hold NAME: VALUE lines, and holds a {type(settings).__name__}. Write some.")
    try:
        header = ConfigSource._get_header_dict(file.read_text(encoding="utf-8")[:512])
    except ValueError as error:
        raise UserError(f"{file} begins with a broken header ({error}). Write # @package _global_.") from None
    if name == "config" or name.startswith("hydra") or "hydra" in str(header.get("package")):
        raise UserError(f"{file} would change Hydra's own settings. Keep choices and experiments in --config-dir.")
    for place, value in _leaves(settings or {}, ""):
        words = (place, *([value] if place.startswith("defaults") and isinstance(value, str) else []))
        if any(re.search(r"(^|[./@ ])hydra\b", word) for word in words):
            raise UserError(f"{file} sets {place}, which may start programs. Give it on the command line.")
        if place.rpartition(".")[2] in CONSENTS and value not in (None, False):
            raise UserError(f"{file} sets {place}={value}, which is for you to say. Give it on the command line.")
        for wrong in map(strange_interpolation, (place, value)):
            if wrong is not None:
                rule = "A file may refer to settings, as by ${gen_length}, and to nothing else"
                raise UserError(f"{file} holds {wrong} in {place}. {rule}: give it on the command line.")


def strange_interpolation(text: Any) -> str | None:
    """The first ``${...}`` in a text that does more than name a setting."""
    for opening in _OPENS.finditer(text) if isinstance(text, str) else ():
        if len(opening[1]) % 2 == 0 and not _SETTING.match(text, opening.end() - 2):
            return text[opening.end() - 2 :][:40]
    return None


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """All values of settings by their dotted places, and the places of mappings and lists."""
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    if place:
        yield place, None if isinstance(value, Mapping | list) else value
    for key, entry in entries:
        yield from _leaves(entry, f"{place}.{key}" if place else str(key))
