"""``python -m dllm``, ``dllm`` and ``python run.py``: what an installation lacks is said before an import fails."""

import sys

from dllm.common.terminal import complain  # of the standard library alone

OLDEST = (3, 11)
BY_DOCTOR = "python -m dllm doctor says what is wrong here"


def main() -> None:
    """Exit codes: those of ``dllm.app.command_line.main``; 2 as well for an installation that lacks what it needs."""
    if sys.version_info < OLDEST:  # before files are read whose grammar an older one lacks
        here, least = (".".join(map(str, numbers)) for numbers in (sys.version_info[:2], OLDEST))
        _stop(f"this is Python {here}, and dllm needs {least} or newer. Install it in an environment of a newer one.")
    if sys.argv[1:2] == ["doctor"]:
        from dllm.app.commands.doctor import run_doctor

        run_doctor(sys.argv[2:])
        return
    try:
        from dllm.app.command_line.main import main as start

        start()
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library == "dllm":
            raise
        if isinstance(error, ModuleNotFoundError):
            _stop(f"this Python lacks {library}. Activate the environment: . .venv/bin/activate ({BY_DOCTOR}).")
        reason = (str(error).splitlines() or ["it says no reason"])[0].rstrip(".")
        _stop(f"a library cannot be imported ({reason}). {BY_DOCTOR}.")


def _stop(sentence: str) -> None:
    complain("Error:", sentence)
    sys.exit(2)


if __name__ == "__main__":
    main()
