"""``python -m dllm.app.lm_eval ...``: lm-evaluation-harness's own command line, which then knows ``--model dllm``.

lm-eval 0.4.13 finds no models outside its own source. Later releases read the entry point group ``lm_eval.models``,
in which this package has registered itself, and need no detour.
"""

from __future__ import annotations

import sys

from dllm.errors import UserError

INSTALL = "which is not installed. Install it with: pip install 'dllm[eval]'"


def main() -> None:
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        print(f"Error: this command needs lm-evaluation-harness, {INSTALL} ({error})", file=sys.stderr)
        raise SystemExit(2) from None
    import dllm.app.lm_eval.lm  # noqa: F401  registers the model

    try:
        cli_evaluate()
    except UserError as error:
        print("Error:", " ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
