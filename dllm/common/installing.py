"""What installs the libraries that an option needs, and the refusal where one is missing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dllm.common.errors import Refusal

CHECKOUT = Path(__file__).parents[2]  # or where wheels are installed


def install_command(extra: str) -> str:
    """What installs an extra of dllm; an empty one: what dllm itself needs. It never asks an index for dllm, whose name
    has no owner there."""
    if (CHECKOUT / "pyproject.toml").is_file():
        place = "." if Path.cwd() == CHECKOUT else CHECKOUT
        return f"pip install -e '{place}[{extra}]'" if extra else f"pip install -e {shlex.quote(str(place))}"
    return "pip install " + " ".join(f"'{name}'" for name in requirements().get(extra, []))


def requirements() -> dict[str, list[str]]:
    """What each extra needs, and under the empty name dllm itself: ``torch>=2.9``."""
    if (file := CHECKOUT / "pyproject.toml").is_file():  # what is installed of a checkout may be older than its files
        import tomllib

        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    from importlib.metadata import requires

    needed: dict[str, list[str]] = {}
    for line in requires("dllm") or ():
        name, _, rule = line.partition(";")
        extra = re.search(r"extra *== *['\"]([\w-]+)['\"]", rule)
        needed.setdefault(extra[1] if extra else "", []).append(name.strip())
    return needed


def not_installed(what: str, library: str, extra: str, instead: str = "") -> Refusal:
    """The error for a missing library. what: the option that needs it, as ``Refusal`` has it; extra: what of dllm
    installs it."""
    way_out = f"Install it with: {install_command(extra)}{f', or {instead}' if instead else ''}."
    return Refusal(f"{what} needs {library}, which is not installed.", note=way_out)
