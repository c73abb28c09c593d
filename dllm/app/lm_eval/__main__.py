"""``python -m dllm.app.lm_eval ...``: lm-evaluation-harness's own command line, which then knows ``--model dllm``.

lm-eval 0.4.13 finds no models outside its own source. Later releases read the entry point group ``lm_eval.models``,
in which this package is registered, and do not need this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from dllm.common.errors import UserError
from dllm.common.installing import not_installed
from dllm.common.terminal import complain, excepthook


def main(command: Callable[[], None] | None = None) -> None:
    """Exit code 2, with one sentence, for an error that the user can put right; else lm-eval's own. command: what to
    do (None: hand over to lm-eval)."""
    sys.excepthook = excepthook
    try:
        (command or evaluate)()
    except UserError as error:
        complain("Error:", " ".join(str(error).split()))
        raise SystemExit(2) from None


def evaluate() -> None:
    """Register the model and hand over to lm-eval. Raises UserError when lm-eval is not installed."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:
        raise not_installed("this command", "lm-evaluation-harness", "eval") from None
    import dllm.app.lm_eval.lm  # noqa: F401  registers the model

    cli_evaluate()


if __name__ == "__main__":
    main()
