"""Where what is computed once for a user is kept."""

from __future__ import annotations

import os
from pathlib import Path

from dllm.common.errors import UserError


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/dllm``, or ``~/.cache/dllm``. Raises UserError where the system knows no home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dllm"
    except RuntimeError:  # no HOME, and a user who is in no list: containers that run as a bare number
        # not the folder of temporary files: libraries are loaded from here, and others may write there
        raise UserError("this user has no home folder for caches. Set HOME or XDG_CACHE_HOME to a folder.") from None
