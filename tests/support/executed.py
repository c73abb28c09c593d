"""Which statements of the package a test executes: ``pytest -p tests.support.executed``, one line of JSON for a test.

Each run of simple statements in a function sets its byte when it begins, in the code that is compiled: an assignment of
20 ns, in every thread, where a tracer would make a test 2 to 5 times slower. A place is called by its function and its
number there, so that a record outlives changes elsewhere in the file. What a test starts as a program is not seen.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

MOST = 1 << 17  # places; all rooms have about 15,000
PLACES: list[str] = []  # the name of each byte


class Run(NamedTuple):
    """Statements that are executed one after the other."""

    statements: list[ast.stmt]  # the block they are part of
    index: int  # of the first of them there
    place: str  # FUNCTION#NUMBER
    line: int


def runs(tree: ast.Module) -> Iterator[Run]:
    """All runs inside functions, in the order of the text."""
    number = Counter[str]()

    def within(block: list[ast.stmt], name: str, inside: bool) -> Iterator[Run]:
        begins = inside
        for index, one in enumerate(block):
            text = index == 0 and isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            if begins and not text:
                yield Run(block, index, f"{name}#{number[name]}", one.lineno)
                number[name] += 1
                begins = False
            named = isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = f"{name}.{one.name}".lstrip(".") if named else name
            deeper = not isinstance(one, ast.ClassDef) and (inside or named)
            for part in (one, *getattr(one, "handlers", ()), *getattr(one, "cases", ())):
                for field in ("body", "orelse", "finalbody"):
                    if statements := getattr(part, field, None):
                        yield from within(statements, inner, deeper)
                        begins = inside and not named

    return within(tree.body, "", False)


def place_of(text: str, line: int) -> tuple[str, bool]:
    """The place of a line, and whether it is in a function; else the class around it ("": none)."""
    tree, around, function = ast.parse(text), "", False
    scopes = [(tree, "")]
    while scopes:
        node, name = scopes.pop()
        for one in ast.iter_child_nodes(node):
            inner = name
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if not one.lineno <= line <= (one.end_lineno or 0):
                    continue
                inner = f"{name}.{one.name}".lstrip(".")
                around, function = inner, not isinstance(one, ast.ClassDef)
            scopes.append((one, inner))
    if not function:
        return around, False
    found = [one for one in runs(tree) if one.place.rpartition("#")[0] == around]
    holding = [
        (statement.lineno, number)
        for number, one in enumerate(found)
        for statement in one.statements[one.index :]
        if statement.lineno <= line <= (statement.end_lineno or 0)
    ]
    if not found:  # a docstring alone
        return around, False
    return found[max(holding)[1] if holding else 0].place, True


def probed(file: str, text: str) -> ast.Module:
    """The tree of a file in which every run first sets its byte."""
    tree = ast.parse(text)
    for one in reversed(list(runs(tree))):
        write = ast.parse(f"__executed__[{len(PLACES)}] = 1").body[0]
        PLACES.append(f"{file}:{one.place}")
        for node in ast.walk(write):
            ast.copy_location(node, one.statements[one.index])
        one.statements.insert(one.index, write)
    return tree


def compiled_from(folder: Path, change: Callable[[str, str], str | ast.Module | None]) -> None:
    """From now on modules below ``folder`` are compiled from what ``change(file, text)`` gives; None: as they are."""
    usual = SourceFileLoader.get_code

    def code(self: SourceFileLoader, name: str) -> CodeType | None:
        path = Path(self.path)
        if path.is_relative_to(folder):
            other = change(str(path.relative_to(folder.parent)), path.read_text(encoding="utf-8"))
            if other is not None:
                return compile(other, self.path, "exec", dont_inherit=True)
        return usual(self, name)

    SourceFileLoader.get_code = code  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    seen, begin = builtins.__executed__, time.process_time()  # type: ignore[attr-defined]
    seen[:] = bytes(MOST)
    item.stash[FAILED] = False
    yield
    bits = int(seen[: len(PLACES)].hex()[1::2][::-1] or "0", 2)
    out = {"test": item.nodeid, "seconds": round(time.process_time() - begin, 3), "bits": f"{bits:x}"}
    path = Path(os.environ["EXECUTED"]) / f"{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        if len(PLACES) > item.config.stash.get(WRITTEN, 0):
            file.write(json.dumps({"places": PLACES[item.config.stash.get(WRITTEN, 0) :]}) + "\n")
            item.config.stash[WRITTEN] = len(PLACES)
        if not item.stash[FAILED]:
            file.write(json.dumps(out) + "\n")
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[FAILED] |= report.outcome != "passed"
    return report


FAILED, WRITTEN = pytest.StashKey[bool](), pytest.StashKey[int]()

if "EXECUTED" in os.environ:  # here, since a conftest.py imports the package before pytest calls any plugin
    builtins.__executed__ = bytearray(MOST)  # type: ignore[attr-defined]
    compiled_from(Path(__file__).parents[2] / "dllm", probed)
