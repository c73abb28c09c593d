"""The first hour of CONTRIBUTING.md: how much there is to read for one decode, counted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dllm import Decoder, load
from dllm.loop import denoise

ROOT = Path(__file__).parents[2]
FILES, LINES, NAMES = 10, 1_310, 40  # of the first table at most; the names that its files take from elsewhere


def listed() -> list[Path]:
    """The files of the first table."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## The first hour")[2].partition("\n## ")[0]
    table = section.split("\n\n")[2]
    return [ROOT / name for name in re.findall(r"^\| `(dllm/[\w/]+\.py)`", table, re.MULTILINE)]


def defined(tree: ast.Module) -> set[str]:
    """Names of the classes, functions and constants of a module."""
    kinds = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    values = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return kinds | {name.id for target in values for name in ast.walk(target) if isinstance(name, ast.Name)}


def taken(tree: ast.Module) -> set[str]:
    """Names of dllm that a module imports."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in found if str(node.module).startswith("dllm") for alias in node.names}


def test_the_first_hour_is_an_hour() -> None:
    files = listed()
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    elsewhere = set().union(*map(taken, trees)) - set().union(*map(defined, trees))
    assert len(files) <= FILES
    assert sum(len(file.read_text().splitlines()) for file in files) <= LINES
    assert len(elsewhere) <= NAMES, sorted(elsewhere)
    assert len(elsewhere) > 20 and "Canvas" in elsewhere, "the count counts"


def test_the_page_says_how_many_lines_these_are() -> None:
    count = sum(len(file.read_text().splitlines()) for file in listed())
    (said,) = re.findall(r"about ([\d,]+) lines", (ROOT / "CONTRIBUTING.md").read_text().partition("## Where do I")[0])
    assert abs(int(said.replace(",", "")) - count) < 0.05 * count, count


def test_the_steps_of_the_guide_are_those_of_the_loop() -> None:
    """docs/diffusion.md against the functions of stages.py that ``settle`` calls, in their order."""
    tree = ast.parse((ROOT / "dllm" / "loop" / "denoise.py").read_text())
    imported = next(
        node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "dllm.loop.stages"
    )
    stages = {alias.name for alias in imported.names}
    (settle,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "settle"]
    calls = [
        node.func.id for node in ast.walk(settle) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    turn = (ROOT / "docs" / "diffusion.md").read_text().partition("## A turn")[2].partition("## The words")[0]
    said = [word.lower() for word in re.findall(r"^\d\. \*\*(\w+)\*\*", turn, re.MULTILINE)]
    assert said == [name.partition("_")[0] for name in calls if name in stages] and len(said) == len(stages) == 6
    assert "six functions" in turn


def test_a_plain_decode_passes_every_file_of_the_list() -> None:
    """And no other file of the loop but those of the second table: with usual parts, by the frames that run."""
    import sys
    from types import FrameType

    seen: set[str] = set()

    def note(frame: FrameType, *_: object) -> None:
        seen.add(frame.f_code.co_filename)

    decoder = Decoder(load("mini-llada"), "confidence", "fixed", "none", "none", gen_length=8)
    sys.setprofile(note)
    try:
        decoder('Copy the list:\n["Kai"]')
    finally:
        sys.setprofile(None)
    own = Path(denoise.__file__).parents[1]
    ran = {Path(file) for file in seen if file.startswith(str(own))}
    assert [file for file in listed() if own / file.relative_to(ROOT / "dllm") not in ran] == []
    extras = {file.stem for file in ran if file.parent.name == "extras"}
    assert extras <= {"base", "chosen", "row_facts"}, "a plain decode runs one extra, which finds that no row waits"
