"""What a model is called on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

DATA_FILES = ("*.json", "*.txt", "*.jinja")


@dataclass(frozen=True)
class HubName:
    """A repository of the hub, or a GGUF file in it."""

    repo: str  # owner/name
    revision: str | None = None  # a branch, a tag or a commit; None: the main branch
    file: str = ""  # the GGUF file; empty: the folder

    @staticmethod
    def of(text: str) -> HubName | None:
        """owner/name or owner/name/FILE.gguf, either at a revision (``@REVISION``); None for another text."""
        name, at, revision = text.partition("@")
        match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf))?", name)
        if match is None or (at and not revision):
            return None
        return HubName(match[1], revision or None, match[2] or "")

    def patterns(self, weights: bool = True) -> list[str]:
        """Patterns of the files that are fetched: data files only, never code. weights: those of a folder, too."""
        if self.file:
            return [re.sub(r"-\d{5}-of-", "-*-of-", self.file)]  # all parts, where there are several
        return [*DATA_FILES, *["*.safetensors"] * weights]
