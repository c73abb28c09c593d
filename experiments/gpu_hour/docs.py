"""The section of docs/measured/speed.md that holds the results, between two markers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError
from experiments.gpu_hour.report import body
from experiments.support.marked import write_marked

NOTHING = "**No GPU has measured this version yet.**\n"
PICTURES = ("gpu_steps.svg", "gpu_kernels.svg")


def section(found: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, str]) -> str:
    """The text between the markers. Headings lie below the page's section. OUT/report.md alone has the counts of tests,
    and the kernels' times if they are drawn."""
    if not found:
        return NOTHING
    chunks = body(found, pictures)
    for heading in ("## Tests on the device\n", *["## Kernels\n"] * ("gpu_kernels.svg" in pictures)):
        if heading in chunks:
            at = chunks.index(heading)
            del chunks[at : at + 2]
    return "\n".join(chunks).replace("\n### ", "\n#### ").replace("\n## ", "\n### ")


def write_section(found: Mapping[str, Mapping[str, Any]], out: Path, docs: Path) -> str:
    """Write the section, and copy its pictures. Returns what was done. Raises UserError for a dry run's results, and
    where the page has no markers."""
    if any(part["identity"]["dry"] for part in found.values()):
        raise UserError(f"OUT={out} holds a dry run, whose times mean nothing. Name the folder of a run on a GPU.")
    page = docs / "measured" / "speed.md"
    there = [name for name in PICTURES if (out / name).exists()] if found else []
    for name in there:
        shutil.copyfile(out / name, docs / "pictures" / name)
    text = section(found, {name: f"../pictures/{name}" for name in there})
    write_marked(page, "gpu_hour", text)
    return f"{page}: {'the results of ' + str(out) if found else 'nothing was measured yet'}."
