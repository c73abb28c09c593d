"""What the program is called in what it says to its user."""

from __future__ import annotations

import sys
from pathlib import Path


def program() -> str:
    """``dllm``, ``dllm serve`` and such, or ``python run.py``, as it was called."""
    script, *words = sys.argv or [""]
    if Path(script).name not in ("dllm", "dllm.exe"):
        return "python run.py"
    return f"dllm {words[0]}" if words[:1] and words[0] in ("run", "chat", "serve", "check", "sweep") else "dllm"


def command(words: str) -> str:
    """A command of the program, as it was called: ``dllm report FOLDER``, or with ``python run.py``."""
    return f"{'dllm' if program().startswith('dllm') else program()} {words}"


def see_help() -> str:
    return f"{program()} --help lists all."
