"""A student and what its loss is made of: ``python -m experiments.distill.ablations recipe=mini-llada-distilled``.

Options are those of ``experiments.distill``; ``out`` gets a folder for each of three students: as published, without
the entropy term, and with entropy penalised where the model is wrong, too. They share the teacher's answers. Prints a
Markdown table of the teacher and the students at ``threshold``. ``--only NAME...`` makes some of them, and the same
command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dllm.errors import UserError
from experiments.distill import __main__ as distill
from experiments.distill.recipe import parse
from experiments.support import markdown
from experiments.support.scripts import refusing

STUDENTS: dict[str, tuple[str, ...]] = {
    "student": (), "no-entropy": ("beta=0",), "entropy-everywhere": ("certain=all",),
}  # fmt: skip
CALLED = {
    "teacher": "teacher", "student": "student", "no-entropy": "no entropy term (`beta=0`)",
    "entropy-everywhere": "entropy on wrong ones, too (`certain=all`)",
}  # fmt: skip
HEAD = markdown.head(("model", "NFE", "score", "first entropy, nats", "as the teacher"))


def share_answers(out: Path, name: str) -> None:
    """Give a student what another had decoded with the teacher: whole files, which a kill leaves whole or absent."""
    for part in ("teacher", "before"):
        found = next((out / other / part for other in STUDENTS if (out / other / distill.REPORT).is_file()), None)
        if found is not None and not (out / name / part).exists():
            shutil.copytree(found, out / name / part)


def make(options: Sequence[str], out: Path, names: Sequence[str]) -> int:
    """Train and measure the students that are not there yet; the exit code of the first that fails, else 0."""
    for name in names:
        share_answers(out, name)
        code = distill.main([*options, *STUDENTS[name], f"out={out / name}"])
        if code:
            return code
    return 0


def row(name: str, found: Mapping[str, Sequence[float]]) -> str:
    """A line of the table: means and half-widths of 95 % intervals."""
    cells = [CALLED[name], f"{found['forwards'][0]:.1f} ±{found['forwards'][1]:.1f}"]
    for key, digits, scale in (("score", 0, 100), ("entropy", 2, 1), ("equal", 0, 100)):
        mean, half = found.get(key, (float("nan"), float("nan")))
        cells.append(f"{scale * mean:.{digits}f} ±{scale * half:.{digits}f}")
    return markdown.line(cells)


def table(out: Path) -> str:
    """The teacher's row, and one for each student that is finished. Raises UserError where none is."""
    reports: dict[str, dict[str, Any]] = {
        name: json.loads((out / name / distill.REPORT).read_text())
        for name in STUDENTS if (out / name / distill.REPORT).is_file()
    }  # fmt: skip
    if not reports:
        raise UserError(f"out={str(out)!r} holds no student that is finished. Give the same command again.")
    before = next(iter(reports.values()))["before"]
    return "\n".join([HEAD, row("teacher", before), *(row(name, one["after"]) for name, one in reports.items())])


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("options", nargs="+", metavar="NAME=VALUE")
    parser.add_argument("--only", nargs="+", choices=list(STUDENTS), default=list(STUDENTS), metavar="NAME")
    given = parser.parse_intermixed_args(arguments)
    out = Path(parse(given.options)[1].out)
    options = [option for option in given.options if not option.startswith(("out=", "--out="))]
    code = make(options, out, given.only)
    if code:
        return code
    print(table(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
