"""The table of docs/evaluation.md, which the site makes: what every result holds, from the comments of its fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from dllm.record.results import NOT_STORED, Result
from experiments.support.markdown import table

FIELD = re.compile(r"^    (?:# (?P<above>.+)\n    )?(?P<name>\w+): [^#\n]+?(?:  # (?P<behind>.+))?$", re.MULTILINE)


def rows() -> Iterator[tuple[str, str]]:
    """Each field that a line of results.jsonl has, and its comment."""
    fields = inspect.getsource(Result).partition("    @property")[0]
    for found in FIELD.finditer(fields):
        if found["name"] not in NOT_STORED:
            yield f"`{found['name']}`", (found["behind"] or found["above"]).replace("``", "`")


def section() -> str:
    return table(("key", "meaning"), rows(), 2) + "\n"
