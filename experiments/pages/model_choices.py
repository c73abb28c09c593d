"""The first table of docs/models.md, which the site makes: each choice, its published class, what predicts a token."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from dllm.compose.choice_files import choice_summary
from dllm.compose.config_choices import choice_text, choices
from dllm.models.config import FAMILIES
from experiments.support.markdown import table

HEADS = ("`model=`", "what it is", "`architectures[0]`", "position i is read from")
SHIFTS = {(0, None): "i", (1, None): "i - 1", (0, 1): "i; a block's first column: i - 1"}


def expected(name: str) -> str | None:
    """The class that a choice's file expects, or the file that it builds on."""
    values = yaml.safe_load(choice_text("model", name))
    if "expects" in values:
        return str(values["expects"])
    bases = [base for base in values.get("defaults", ()) if base != "_self_"]
    return expected(bases[0]) if bases else None


def rows() -> Iterator[tuple[str, str, str, str]]:
    """The published choices, in the order of the classes."""
    published = {name: expected(name) for name in choices("model") if not name.startswith("mini-")}
    for architecture, family in FAMILIES.items():
        shift = SHIFTS[family.fixed.get("prediction_shift", 0), family.fixed.get("seed_shift")]
        for name in (name for name, found in published.items() if found == architecture):
            yield f"`{name}`", choice_summary("model", name), f"`{architecture}`", shift


def section() -> str:
    return table(HEADS, rows(), len(HEADS)) + "\n"
