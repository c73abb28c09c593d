"""How many small wrong changes of the package the tests notice: ``python tests/mutants.py --count 50 --seed 7``.

Draws places of the package by a seed, spread over rooms, files and kinds of change. Makes one change at a time in a
copy of the tracked files, and runs the test files that name the module and its classes most. Prints the score of each
room, and each change that no test noticed. Exit code 1: the score is below ``--least``.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROOMS = ("samplers", "blocks", "cache", "eos", "lengths", "loop", "constraints", "serve", "report", "rl", "models")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = ("min", "max"), ("any", "all"), ("amin", "amax"), ("sum", "mean"), ("argmin", "argmax"), ("floor", "ceil")
NAMES = {one: other for pair in _NAMES for one, other in (pair, pair[::-1])}
DROPPED = ("clone", "float", "double", "clamp", "masked_fill", "detach", "contiguous")  # methods: the value as it was
SECONDS = 120  # for the tests of one change; what takes longer is noticed


class Mutant(NamedTuple):
    """One change of one file."""

    file: str  # relative to the root
    line: int
    kind: str  # of the syntax that changes
    before: str
    after: str
    begin: int  # where ``before`` begins in the file, in bytes

    @property
    def text(self) -> str:
        """The whole file, changed."""
        data = (ROOT / self.file).read_bytes()
        end = self.begin + len(self.before.encode())
        return (data[: self.begin] + self.after.encode() + data[end:]).decode()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {' '.join(self.before.split())!r:.70} -> {' '.join(self.after.split())!r:.70}"


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What one node becomes."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in COMPARISONS:
            yield ast.Compare(node.left, [COMPARISONS[type(one)]()], node.comparators)
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1 if isinstance(value, int) else 2 * value or 1.0)
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, one, other]):
            yield ast.Call(node.func, [condition, other, one], node.keywords)
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in DROPPED:
            yield value
        case ast.Call(func=ast.Attribute(attr=name) as func) if name in NAMES:
            yield ast.Call(ast.Attribute(func.value, NAMES[name]), node.args, node.keywords)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name]), node.args, node.keywords)
        case ast.If(orelse=[], body=[ast.Raise() | ast.Return() | ast.Continue()]):
            yield ast.If(ast.Constant(False), node.body, [])
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def told(tree: ast.Module) -> set[ast.AST]:
    """Nodes that are words or types: what is raised, formatted texts, annotations, decorators, matters of import."""
    out = set[ast.AST]()
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.Assert():
                hidden = [node]
            case ast.FunctionDef():
                hidden = [node.returns, *node.decorator_list]
            case ast.arg() | ast.AnnAssign():
                hidden = [node.annotation]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                hidden = [node]
        for one in hidden:
            out.update(ast.walk(one) if one is not None else ())
    return out


def mutants(file: str) -> list[Mutant]:
    """All changes of a file, in the order of its text."""
    text = (ROOT / file).read_text(encoding="utf-8")
    tree, lines, found = ast.parse(text), text.encode().splitlines(keepends=True), list[Mutant]()
    ends = [0]
    for line in lines:
        ends.append(ends[-1] + len(line))
    words, data = told(tree), text.encode()
    for node in ast.walk(tree):
        if node in words or not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None:
            continue
        begin, end = ends[node.lineno - 1] + node.col_offset, ends[node.end_lineno - 1] + (node.end_col_offset or 0)
        for other in changed(deepcopy(node)):
            written = ast.unparse(ast.fix_missing_locations(other))
            if isinstance(node, ast.expr):
                written = f"({written})"
            else:
                written = written.replace("\n", "\n" + " " * node.col_offset)
            found.append(Mutant(file, node.lineno, type(node).__name__, data[begin:end].decode(), written, begin))
    return sorted(found, key=lambda one: one.line)


def drawn(count: int, seed: int, rooms: Sequence[str], since: str | None) -> list[Mutant]:
    """``count`` changes: rooms in turn, files of a room in turn, those that changed since a commit first."""
    draw, newest = Random(seed), set[str]()
    if since is not None:
        newest = set(git("diff", "--name-only", since).splitlines())
    queues = list[list[Mutant]]()
    for room in rooms:
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "dllm" / room).rglob("*.py"))
        draw.shuffle(files)
        files.sort(key=lambda file: file not in newest)  # stable
        queues.append(in_turn([by_kind(mutants(file), draw) for file in files]))
    return in_turn(queues)[:count]


def by_kind(found: Sequence[Mutant], draw: Random) -> list[Mutant]:
    """The changes of a file in a drawn order in which kinds take turns."""
    kinds = defaultdict[str, list[Mutant]](list)
    for one in draw.sample(found, len(found)):
        kinds[one.kind].append(one)
    return in_turn(list(kinds.values()))


def in_turn(queues: Sequence[Sequence[Mutant]]) -> list[Mutant]:
    """The first of each queue, the second of each, and so on."""
    most = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(most) for queue in queues if turn < len(queue)]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@cache
def sources() -> dict[str, str]:
    """The text of each test file that a change may be tried on."""
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if path.parts[-2] not in ("repo", "gpu"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(files)}


@cache
def tests_of(file: str, most: int) -> tuple[str, ...]:
    """The test files that name a module, its classes and its functions most."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    module = re.compile(rf"{re.escape(file.removesuffix('.py').replace('/', '.'))}\b")
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = re.compile("|".join(rf"\b{one.name}\b" for one in tree.body if isinstance(one, kinds)) or r"(?!)")
    room, name, count = f"tests/{Path(file).parts[1]}/", Path(file).stem.strip("_"), Counter[str]()
    for test, text in sources().items():
        count[test] = 10 * len(module.findall(text)) + len(names.findall(text)) * test.startswith(room)
        count[test] += 1000 * (Path(test).stem == f"test_{name}") + test.startswith(room)
    return tuple(test for test, times in count.most_common(most) if times)


def passes(copy: Path, files: Sequence[str], part: str) -> bool:
    """Whether all tests of the files pass in a copy."""
    place = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--part", part, "-m", "not program", *files]
    try:
        done = subprocess.run([sys.executable, *words], cwd=copy, env=place, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)  # 5: this part has no case


def copied(folder: Path) -> Path:
    """The tracked files in a folder."""
    folder.mkdir()
    packed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    archive = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=packed, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


def noticed(mutant: Mutant, copy: Path, files: Sequence[str]) -> str:
    """The part whose tests fail under a change; "": none."""
    path = copy / mutant.file
    sound = path.read_text(encoding="utf-8")
    try:
        for part in ("sample", "rest"):
            path.write_text(sound, encoding="utf-8")
            if not passes(copy, files, part):
                raise RuntimeError(f"{', '.join(files)} fail without a change")
            path.write_text(mutant.text, encoding="utf-8")
            if not passes(copy, files, part):
                return part
        return ""
    finally:
        path.write_text(sound, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="changes to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of dllm")
    parser.add_argument("--since", help="a commit: files that changed since come first")
    parser.add_argument("--files", type=int, default=4, help="test files for each change")
    parser.add_argument("--least", type=float, default=95, help="the score in per cent below which the exit code is 1")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    tried = drawn(given.count, given.seed, given.rooms, given.since)
    by_room, survivors = defaultdict[str, Counter[str]](Counter), list[Mutant]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.processes) as pool:
        copies = SimpleQueue[Path]()
        for number in range(given.processes):
            copies.put(copied(Path(folder) / str(number)))

        def judge(mutant: Mutant) -> tuple[Mutant, str]:
            copy = copies.get()
            try:
                return mutant, noticed(mutant, copy, tests_of(mutant.file, given.files))
            finally:
                copies.put(copy)

        for mutant, part in pool.map(judge, tried):
            by_room[Path(mutant.file).parts[1]][part] += 1
            survivors += [] if part else [mutant]
            print(f"{part or 'SURVIVED':9}{mutant}", flush=True)
    print("\n| room | changes | noticed by make test | by make test-rest alone | by none |\n|---|---:|---:|---:|---:|")
    total = Counter[str]()
    for room, found in sorted(by_room.items()):
        print(f"| {room} | {found.total()} | {found['sample']} | {found['rest']} | {found['']} |")
        total += found
    score = 100 * (total["sample"] + total["rest"]) / max(1, total.total())
    print(f"\n{len(tried) - len(survivors)} of {len(tried)} changes noticed, {score:.0f} %")
    return int(score < given.least)


if __name__ == "__main__":
    sys.exit(main())
