"""Instruction following, scored by the harness's own checks."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from dllm.common.terminal import complain
from dllm.tasks.standard.harness import Harness


class IFEval(Harness):
    """``inst_level`` is the share of all instructions that were followed. Counting sentences needs NLTK's
    punkt_tab, which NLTK downloads; where it cannot, the answers that need it have no score."""

    def config(self, place: Path | str) -> dict[str, Any]:
        """The harness's checks try to download NLTK's data when they are imported, and report success either way."""
        with redirect_stdout(StringIO()):
            config = super().config(place)
        import nltk

        try:
            nltk.data.find("tokenizers/punkt_tab")
        except LookupError:
            complain("NLTK's punkt_tab is missing: answers whose sentences must be counted get no score.")
        return config
