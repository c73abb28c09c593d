"""How many small wrong changes of the package the tests notice: ``python tests/mutants.py --count 50 --seed 7``.

Draws places of the package by a seed, spread over rooms, files and kinds of change. Makes one change at a time, in
memory, and runs the tests that execute its line, cheapest first, until one fails: first what ``make test`` runs, then
the rest. Which test executes what is recorded once (15 minutes of one core; again by ``--record``), in ``.mutants``.
Left out: what the rules below or ``tests/data/equivalent_mutants.txt`` call no change of behaviour. Prints the score of
each room, and each change that no test noticed. Exit code 1: the score is below ``--least``.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.executed import compiled_from, place_of  # noqa: E402

ROOMS = ("samplers", "blocks", "cache", "eos", "lengths", "loop", "constraints", "serve", "report", "rl", "models")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = ("min", "max"), ("any", "all"), ("amin", "amax"), ("sum", "mean"), ("argmin", "argmax"), ("floor", "ceil")
NAMES = {one: other for pair in _NAMES for one, other in (pair, pair[::-1])}
DROPPED = ("clone", "float", "double", "clamp", "masked_fill")  # methods: the value as it was
# Calls that tell people, or show them a part of a picture.
WORDS = ("set_ylim", "set_xlim", "say", "complain", "warn", "debug", "info", "warning", "error", "exception", "note")
# How long is waited, which is seen by waiting alone, and how fine a picture is.
PAUSES = re.compile(r"_?(\w+_)?(SECONDS|MOMENT|PATIENCE|DPI)|LOOK_EVERY")
# Keywords of matplotlib that say how a picture looks: people look at those.
LOOKS = (
    "alpha",
    "color",
    "figsize",
    "fontsize",
    "frameon",
    "ha",
    "handlelength",
    "labelbottom",
    "labelsize",
    "layout",
    "linestyle",
    "linewidth",
    "loc",
    "marker",
    "markeredgewidth",
    "markerfacecolor",
    "markersize",
    "ncols",
    "numticks",
    "zorder",
)
RECORD, EQUIVALENT = ROOT / ".mutants", ROOT / "tests" / "data" / "equivalent_mutants.txt"
# Tests that read what classes declare, of which no line runs in them.
DECLARED = (
    "tests/compose/test_defaults.py",
    "tests/compose/test_option_bounds.py",
    "tests/contract/test_traits.py",
    "tests/contract/test_traits_table.py",
    "tests/laws/test_stated.py",
    "tests/models/test_key_rules.py",
    "tests/serve/test_field_defaults.py",
)
UNSEEN = ("repo", "gpu", "experiments", "tasks", "kernels", "data", "support")  # tests that execute none of the rooms
WORDS_OF_PYTEST = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not program", "--continue-on-collection-errors")


@cache
def source(file: str) -> str:
    """As it was when the run began."""
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def placed(file: str, line: int) -> tuple[str, bool]:
    return place_of(source(file), line)


class Mutant(NamedTuple):
    """One change of one file."""

    file: str  # relative to the root
    line: int
    kind: str  # of the syntax that changes
    before: str
    after: str
    begin: int  # where ``before`` begins in the file, in bytes
    column: int  # and in its line, from 1

    @property
    def text(self) -> str:
        """The whole file, changed."""
        data = source(self.file).encode()
        end = self.begin + len(self.before.encode())
        return (data[: self.begin] + self.after.encode() + data[end:]).decode()

    @property
    def room(self) -> str:
        """The innermost of ``ROOMS`` that holds the file, else its folder of dllm."""
        _, top, *inner = Path(self.file).parts
        return next((part for part in reversed(inner) if part in ROOMS), top)

    @property
    def place(self) -> tuple[str, bool]:
        return placed(self.file, self.line)

    @property
    def name(self) -> str:
        """What it is called in ``EQUIVALENT``: lines above may come and go."""
        return str(self).replace(f":{self.line}:{self.column} ", " ", 1)

    def __str__(self) -> str:
        before, after = (f"{' '.join(text.split())!r:.70}" for text in (self.before, self.after))
        return f"{self.file}:{self.line}:{self.column} {self.place[0].partition('#')[0]}: {before} -> {after}"


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


def left_out(tree: ast.Module) -> set[ast.AST]:
    """Nodes that are words, types, speed, pauses or looks: what is raised or said, formatted texts, annotations,
    decorators."""
    out = set[ast.AST]()
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.Assert():
                hidden = [node]
            case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name in WORDS:
                hidden = [node]
            case ast.Module():
                hidden = [one.value for one in node.body if isinstance(one, ast.Assign) and is_union(one.value)]
            case ast.Assign(targets=[ast.Name(id=name)]) if PAUSES.fullmatch(name):
                hidden = [node]
            case ast.keyword(arg=name) if name in LOOKS:
                hidden = [node]
            case ast.keyword(arg="strict" | "daemon" | "non_blocking" | "pin_memory" | "maxsize"):
                hidden = [node]
            case ast.FunctionDef():
                hidden = [node.returns, *node.decorator_list]
            case ast.ClassDef():
                hidden = [*node.decorator_list]
            case ast.arg() | ast.AnnAssign():
                hidden = [node.annotation]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                hidden = [node]
        for one in hidden:
            out.update(ast.walk(one) if one is not None else ())
    return out


def is_union(value: ast.expr) -> bool:
    """``A | B``, of types: at the top of a module no set or flag is joined."""
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)


@cache
def mutants(file: str) -> list[Mutant]:
    """All changes of a file, in the order of its text."""
    text = source(file)
    tree, lines, found = ast.parse(text), text.encode().splitlines(keepends=True), list[Mutant]()
    ends = [0]
    for line in lines:
        ends.append(ends[-1] + len(line))
    words, data = left_out(tree), text.encode()
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
            found.append(
                Mutant(
                    file,
                    node.lineno,
                    type(node).__name__,
                    data[begin:end].decode(),
                    written,
                    begin,
                    node.col_offset + 1,
                )
            )
    return sorted(found, key=lambda one: one.line)


def folder_of(room: str) -> Path:
    """The folder of dllm that has this name, wherever it is."""
    return next(path for path in (ROOT / "dllm").rglob(room) if path.is_dir() and any(path.glob("*.py")))


def drawn(count: int, seed: int, rooms: Sequence[str], since: str | None) -> list[Mutant]:
    """``count`` changes: rooms in turn, files of a room in turn, those that changed since a commit first."""
    draw, newest = Random(seed), set[str]()
    if since is not None:
        newest = set(git("diff", "--name-only", since).splitlines())
    queues = list[list[Mutant]]()
    for room in rooms:
        files = sorted(str(path.relative_to(ROOT)) for path in folder_of(room).rglob("*.py"))
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


class Recorded(NamedTuple):
    """What one test executed."""

    test: str
    seconds: float
    places: dict[str, int]  # the bit of each place
    bits: int

    def executes(self, place: str) -> bool:
        return place in self.places and bool(self.bits >> self.places[place] & 1)


@cache
def recorded() -> tuple[Recorded, ...]:
    """The last record of each test."""
    out = dict[str, Recorded]()
    for path in sorted(RECORD.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        places = dict[str, int]()
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            for place in line.get("places", ()):
                places[place] = len(places)
            if "test" in line:
                out[line["test"]] = Recorded(line["test"], line["seconds"], places, int(line["bits"], 16))
    return tuple(out.values())


@cache
def places() -> frozenset[str]:
    """All that were recorded; tests of one process share a table."""
    return frozenset().union(*{id(one.places): one.places for one in recorded()}.values())


def executing(mutant: Mutant) -> list[Recorded]:
    """Tests that execute the line; of a line outside functions, tests that execute what reads its constant, and any of
    its class or file."""
    place, inside = mutant.place
    exact = f"{mutant.file}:{place}"
    if inside and (found := [one for one in recorded() if one.executes(exact)]):
        return found
    known = places()
    if inside and exact in known:
        return []
    # outside functions, or the record is of an older file
    alike = re.compile(rf"(?:{re.escape(mutant.file)}|.*):{re.escape(place.partition('#')[0])}[.#].*")
    near = _executing_any({name for name in known if alike.fullmatch(name)})
    near = near or _executing_any({name for name in known if name.startswith(f"{mutant.file}:")})
    users = () if inside else tuple(f"{one}#" for one in users_of(mutant))
    readers = _executing_any({name for name in known if name.startswith(users)}) if users else []
    return [one for one in readers if one in near] or readers or near


def _executing_any(names: set[str]) -> list[Recorded]:
    return [one for one in recorded() if any(one.executes(name) for name in names)]


def users_of(mutant: Mutant) -> list[str]:
    """Functions that read the constant which the line assigns, FILE:FUNCTION: of a module's constant those of its file,
    of a class's those of the package that name it behind a dot."""
    tree = ast.parse(source(mutant.file))
    module, attributes = set[str](), set[str]()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for body, names in [(tree.body, module), *((one.body, attributes) for one in classes)]:
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= mutant.line <= (node.end_lineno or 0):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    readers = [(mutant.file, one.lineno) for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id in module]
    readers += [place for name in attributes for place in attribute_readers().get(name, ())]
    places = [(file, *placed(file, line)) for file, line in readers]
    return sorted({f"{file}:{place.partition('#')[0]}" for file, place, inside in places if inside})


@cache
def attribute_readers() -> dict[str, list[tuple[str, int]]]:
    """Where the package reads each attribute: file and line."""
    out = defaultdict[str, list[tuple[str, int]]](list)
    for path in sorted((ROOT / "dllm").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(source(file))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                out[node.attr].append((file, node.lineno))
    return out


def function(test: str) -> str:
    return test.partition("[")[0]


def file_of(test: str) -> str:
    return test.partition("::")[0]


@cache
def slow() -> tuple[str, ...]:
    return tuple((ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True)
class Trial:
    """A change and the tests for it."""

    mutant: Mutant
    sample: tuple[str, ...]  # tests of ``make test`` that execute the line: the room's first, cheap ones first
    rest: frozenset[str]  # functions whose other cases may execute it, as cases with the module's name may

    @classmethod
    def of(cls, mutant: Mutant, seconds: float) -> Trial:
        room, total, sample = f"tests/{mutant.room}/", 0.0, list[str]()
        found = executing(mutant)
        for one in sorted(found, key=lambda one: one.seconds / (4 if one.test.startswith(room) else 1)):
            if total < seconds:
                total += one.seconds
                sample.append(one.test)
        stem = Path(mutant.file).stem
        other = {function(one.test) for one in found} | {one for one in slow() if one.startswith(room) or stem in one}
        return cls(mutant, tuple(sample), frozenset(other))

    def chosen(self, items: Sequence[pytest.Item]) -> dict[str, list[pytest.Item]]:
        """The tests in the order in which they are tried, by part."""
        by_name, stem = {one.nodeid: one for one in items}, re.compile(rf"\b{Path(self.mutant.file).stem}\b")
        sample = [by_name[name] for name in self.sample if name in by_name]
        other = [one for one in items if one.nodeid not in self.sample]
        named = [one for one in other if stem.search(one.nodeid.partition("[")[2])]
        others = [one for one in other if function(one.nodeid) in self.rest]
        group, cases = self.mutant.room.removesuffix("s"), {one: one.nodeid.partition("[")[2].lower() for one in other}
        read = [one for one in other if file_of(one.nodeid) in DECLARED and (not cases[one] or group in cases[one])]
        return {"sample": sample, "rest": list(dict.fromkeys([*read, *named, *others]))}  # tables cost little


def bodies(code: CodeType) -> Iterator[CodeType]:
    """All code inside a code object, in the order of its constants."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from bodies(one)


def swapped(mutant: Mutant, functions: Sequence[FunctionType]) -> bool:
    """Give the living functions of a file their changed code. False: what changes ran when the file was imported."""
    path = str(ROOT / mutant.file)
    sound, wrong = (compile(text, path, "exec", dont_inherit=True) for text in (source(mutant.file), mutant.text))
    pairs = list(zip((sound, *bodies(sound)), (wrong, *bodies(wrong)), strict=False))
    if [one.co_qualname for one, _ in pairs] != [one.co_qualname for one in (wrong, *bodies(wrong))]:
        return False
    if any(alone(one) != alone(other) and not one.co_flags & inspect.CO_OPTIMIZED for one, other in pairs):
        return False
    changed = [(one, other) for one, other in pairs if whole(one) != whole(other)]
    places = {(one.co_qualname, one.co_firstlineno): other for one, other in changed}
    lives = [one for one in functions if (one.__code__.co_qualname, one.__code__.co_firstlineno) in places]
    if len(places) < len(changed) or not lives:
        return False
    try:
        for one in lives:
            one.__code__ = places[one.__code__.co_qualname, one.__code__.co_firstlineno]
    except ValueError:  # other free variables
        return False
    return True


def alone(code: CodeType) -> tuple[object, ...]:
    """What code does by itself, without the functions inside it."""
    return code.co_code, code.co_names, repr([one for one in code.co_consts if not isinstance(one, CodeType)])


def whole(code: CodeType) -> list[tuple[object, ...]]:
    return [alone(one) for one in (code, *bodies(code))]


class Host:
    """A pytest plugin: in place of a run over the tests, a fork for each trial, in which the living functions get their
    changed code. So the package and the tests are imported once."""

    def __init__(self, trials: Sequence[Trial], seconds: float, told: Callable[..., None]) -> None:
        self.trials, self.seconds, self.told = trials, seconds, told
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = report.nodeid if report.failed else self.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.collect()
        living = defaultdict[str, list[FunctionType]](list)
        for one in gc.get_objects():
            if type(one) is FunctionType:  # isinstance asks lazy objects, which warn
                living[one.__code__.co_filename].append(one)
        gc.freeze()  # pages that forks share
        killers = dict[str, pytest.Item]()
        for trial in self.trials:
            functions = living[str(ROOT / trial.mutant.file)]
            for part, items in (*trial.chosen(session.items).items(), ("", [])):
                test = self.forked(items, trial.mutant, functions) if items else ""
                if test or not part:
                    killers |= {one.nodeid: one for one in items if one.nodeid == test}
                    self.told(trial.mutant, part, test)
                    break
        if killers and (test := self.forked([*killers.values()], None, ())):
            raise SystemExit(f"{test} fails without a change as well")
        return True

    def forked(self, items: Sequence[pytest.Item], mutant: Mutant | None, functions: Sequence[FunctionType]) -> str:
        """Which of the tests fails; "": none; "import": the package cannot be imported; "time": they do not end."""
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.setsid()
                quiet(self.seconds)
                if mutant is not None and not swapped(mutant, functions):
                    os.write(writing, trial_alone(mutant, items, self.seconds).encode())
                else:
                    os.write(writing, self.tried(items).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        code = os.waitpid(child, 0)[1]
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return text or ("time" if code else "")

    def tried(self, items: Sequence[pytest.Item]) -> str:
        end = time.process_time() + self.seconds
        for one, following in zip(items, [*items[1:], None], strict=True):
            one.config.hook.pytest_runtest_protocol(item=one, nextitem=following)
            if self.failed or time.process_time() > end:
                break
        return self.failed


def quiet(seconds: float) -> None:
    """No output, and an end by the system for what turns in circles."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit := int(4 * seconds + 60), limit))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)


class Some:
    """A pytest plugin: these tests alone, in this order, until the time is up."""

    def __init__(self, tests: Sequence[str], seconds: float) -> None:
        self.order, self.seconds, self.end, self.failed = {one: at for at, one in enumerate(tests)}, seconds, 0.0, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self.order), key=lambda one: self.order[one.nodeid])
        self.end = time.process_time() + self.seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = report.nodeid if report.failed else self.failed

    def pytest_runtest_logfinish(self) -> None:
        if time.process_time() > self.end and not self.failed:
            pytest.exit("the time is up", returncode=0)


def trial_alone(mutant: Mutant, items: Sequence[pytest.Item], seconds: float) -> str:
    """As ``Host.forked``, in a new process that imports the changed file."""
    files = list(dict.fromkeys(file_of(one.nodeid) for one in items))[:8]  # imports cost more than tests
    tests = [one.nodeid for one in items if file_of(one.nodeid) in DECLARED]
    tests += [one.nodeid for one in items if file_of(one.nodeid) in files]
    given = json.dumps({"file": mutant.file, "text": mutant.text, "tests": tests, "seconds": seconds})
    done = subprocess.run(
        [sys.executable, __file__, "--alone"],
        cwd=ROOT,
        input=given,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.stdout.strip().rpartition("\n")[2].removeprefix("failed: ") if done.returncode else ""


def by_itself() -> int:
    """Tests from the standard input, with a text of one file of the package from there."""
    given = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (limit := int(4 * given["seconds"] + 60), limit))
    compiled_from(ROOT / "dllm", lambda name, sound: given["text"] if name == given["file"] else None)
    chosen = Some(given["tests"], given["seconds"])
    code = pytest.main([*WORDS_OF_PYTEST, *dict.fromkeys(map(file_of, given["tests"]))], plugins=[chosen])
    print(f"\nfailed: {chosen.failed or 'import'}")
    return int(code not in (0, 5))


def record(tests: Sequence[str]) -> None:
    """Runs tests (none: all that execute the rooms) once, a folder at a time, and keeps what each executes."""
    RECORD.mkdir(exist_ok=True)
    place = {**os.environ, "OMP_NUM_THREADS": "1", "EXECUTED": str(RECORD)}
    words = ["-m", "pytest", "-q", "-p", "tests.support.executed", "-m", "not program", "--part", "sample"]
    for test in tests or places_of_tests():
        subprocess.run([sys.executable, *words, test], cwd=ROOT, env=place, check=False)


def places_of_tests() -> list[str]:
    """Folders and files of tests that execute the rooms."""
    found = [path for path in sorted((ROOT / "tests").iterdir()) if path.stem not in UNSEEN]
    return [str(one) for one in found if (one.is_dir() and any(one.glob("**/test_*.py"))) or one.match("test_*.py")]


def listed(file: Path) -> list[Mutant]:
    """Changes that an earlier run printed, wherever their lines are now; without those whose text is gone."""
    out = list[Mutant]()
    pattern = re.compile(r"(dllm/\S+\.py):(\d+)(?::(\d+))? (.*?)(?:  \[.*)?$", re.MULTILINE)
    for path, line, column, name in pattern.findall(file.read_text(encoding="utf-8")):
        known = mutants(path) if (ROOT / path).exists() else ()
        alike = [one for one in known if one.name == f"{path} {name}"]
        out += sorted(alike, key=lambda one: (abs(one.line - int(line)), one.column != int(column or 0)))[:1]
    return out


def equivalent() -> set[str]:
    """Names of changes that change nothing, as somebody found by reading."""
    return {line.partition("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="changes to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of dllm")
    parser.add_argument("--since", help="a commit: files that changed since come first")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="changes that an earlier run printed, not drawn ones"
    )
    parser.add_argument("--record", nargs="*", metavar="TESTS", help="see what these tests (default: all) execute")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each change and part")
    parser.add_argument("--least", type=float, default=95, help="the score in per cent below which the exit code is 1")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.alone:
        return by_itself()
    if given.record is not None or not any(RECORD.glob("*.jsonl")):
        record(given.record or ())
    found = listed(given.again) if given.again else drawn(given.count, given.seed, given.rooms, given.since)
    tried = [one for one in found if one.name not in equivalent()]
    by_room, survivors = defaultdict[str, Counter[str]](Counter), list[Mutant]()

    def told(mutant: Mutant, part: str, test: str) -> None:
        by_room[mutant.room][part] += 1
        survivors.extend(() if part else (mutant,))
        print(f"{part or 'SURVIVED':9}{mutant}" + f"  [{test}]" * bool(test), flush=True)

    trials = [Trial.of(one, given.seconds) for one in tried]
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    pytest.main([*WORDS_OF_PYTEST, "-s", *places_of_tests()], plugins=[Host(trials, given.seconds, told)])
    print("\n| room | changes | noticed by make test | by make test-rest alone | by none |\n|---|---:|---:|---:|---:|")
    total = Counter[str]()
    for room, count in sorted(by_room.items()):
        print(f"| {room} | {count.total()} | {count['sample']} | {count['rest']} | {count['']} |")
        total += count
    score = 100 * (total["sample"] + total["rest"]) / max(1, total.total())
    print("\n".join(["\nSurvivors:", *map(str, survivors)]) if survivors else "")
    print(f"{len(found) - len(tried)} of {len(found)} changes change nothing.")
    print(f"{len(tried) - len(survivors)} of {len(tried)} noticed, {score:.0f} %")
    sys.stdout.flush()
    return int(score < given.least)


if __name__ == "__main__":
    os._exit(main())  # libraries that were imported for nothing but forks have nothing to put away
