"""What the commands of this folder share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from dllm.common.errors import UserError
from dllm.common.terminal import complain

P = ParamSpec("P")


def counted(text: str) -> int:
    """A whole number from 1 on, as an option of a command."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 on")
    return int(text)


def refusing(main: Callable[P, int]) -> Callable[P, int]:
    """A command that says in one sentence what the user can put right, and then has the exit code 2."""

    @wraps(main)
    def command(*given: P.args, **named: P.kwargs) -> int:
        try:
            return main(*given, **named)
        except UserError as error:
            said = " ".join(str(error).split())
        except OSError as error:  # as on the command line of dllm
            place = error.filename or "the system"
            said = f"{place}: {error.strerror or error}. Put that right, or name another place."
        complain("error:", said)
        return 2

    return command
