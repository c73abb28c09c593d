"""What exists here, by name: classes with their members, modules, settings with their choices, files, make targets.

Read from the source text, without importing anything: a name in a document is compared with these.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONF = ROOT / "dllm" / "conf"
# What an object is called in running text, and its class.
OBJECTS = {
    "view": "View",
    "canvas": "Canvas",
    "result": "Result",
    "decoder": "Decoder",
    "trace": "Trace",
    "step": "Step",
    "blocks": "BlockState",
}
TOOL_NAMES = re.compile(r"\b(?:def|class) \w+|\"[\w.-]+\"|^[A-Z_]+\b", re.MULTILINE)  # of experiments and tests


@dataclass
class Kind:
    """A class as its source shows it."""

    node: ast.ClassDef
    bases: list[str]
    members: dict[str, ast.expr | None] = field(default_factory=dict)  # name -> its annotation


def _statements(parent: ast.AST) -> list[ast.AST]:
    """The statements inside another, those of its branches included."""
    parts = ("body", "orelse", "handlers", "finalbody", "cases")
    return [node for part in parts if isinstance(inner := getattr(parent, part, None), list) for node in inner]


@dataclass
class Callable:
    """A function, the class whose method it is, and its parameters."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: Kind | None
    parameters: list[str]


class Source:
    """The definitions of a package, from its syntax trees."""

    def __init__(self, texts: dict[str, str]) -> None:
        """``texts``: module -> source."""
        self.kinds: dict[str, Kind] = {}
        self.callables: list[Callable] = []
        self.modules: dict[str, set[str]] = {}
        self.words_of: dict[str, set[str]] = {}  # module -> names that it defines, at any depth, or quotes
        for module, text in texts.items():
            tree = ast.parse(text)
            self.modules[module] = set()
            self._words = self.words_of[module] = set(module.split("."))
            self._read(tree, None, self.modules[module])
            # names of results' keys, routes, columns, ...: texts of the code that are a name, or a row of names
            for quoted in re.findall(r'"([A-Za-z_][\w,/ ]*)"', text):
                self._words.update(re.split(r"[,/ ]+", quoted))

    def _read(self, parent: ast.AST, owner: Kind | None, top: set[str] | None) -> None:
        for node in _statements(parent):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(node, owner)
                self._name(node.name, owner, top, node.returns)
                self._read(node, owner, None)
            elif isinstance(node, ast.ClassDef):
                kind = Kind(node, [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases])
                self.kinds.setdefault(node.name, kind)
                self._name(node.name, owner, top, None)
                self._read(node, kind, None)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self._assignment(node, owner, top, in_class=isinstance(parent, ast.ClassDef))
            elif isinstance(node, ast.ImportFrom | ast.Import):
                if top is not None:
                    top.update(entry.asname or entry.name for entry in node.names)
            else:
                self._read(node, owner, top)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: Kind | None) -> None:
        every = node.args
        given = (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg)
        parameters = [entry.arg for entry in given if entry]
        self._words.update(parameters)
        self.callables.append(Callable(node, owner, parameters))

    def _assignment(
        self, node: ast.Assign | ast.AnnAssign, owner: Kind | None, top: set[str] | None, in_class: bool
    ) -> None:
        said = node.annotation if isinstance(node, ast.AnnAssign) else None
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for found in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(found, ast.Name) and (in_class or top is not None):
                    self._name(found.id, owner if in_class else None, top, said)
                elif (
                    isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name) and found.value.id == "self"
                ):
                    self._name(found.attr, owner, None, said)

    def _name(self, name: str, owner: Kind | None, top: set[str] | None, said: ast.expr | None) -> None:
        self._words.add(name)
        if owner is not None:
            owner.members.setdefault(name, said)
        if top is not None:
            top.add(name)

    def lineage(self, name: str) -> Iterator[Kind]:
        """A class and its bases of this package."""
        if name in self.kinds:
            yield self.kinds[name]
            for base in self.kinds[name].bases:
                if base != name:
                    yield from self.lineage(base)

    def lacks(self, kind: str, path: list[str]) -> str | None:
        """What is wrong with ``kind.path``, followed through annotations as far as they name a class of ours."""
        for name in path:
            line = list(self.lineage(kind))
            if not line:
                return None
            said = [entry.members[name] for entry in line if name in entry.members]
            if not said:
                others = {base for entry in line for base in entry.bases} - self.kinds.keys()
                strange = others - {"Protocol", "NamedTuple", "Generic", "ABC", "Exception"}
                return None if strange else f"{kind} has no {name}"
            kind = ast.unparse(said[0]).partition("|")[0].strip(" '") if said[0] else ""
        return None


def sources(room: str) -> dict[str, str]:
    """Module -> source of every file of a folder."""
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file.read_text("utf-8")
        for file in sorted((ROOT / room).rglob("*.py"))
    }


class Names:
    """Everything that a document may name."""

    def __init__(self) -> None:
        self.source = Source(sources("dllm"))
        self.tools = {module: text for room in ("experiments", "tests") for module, text in sources(room).items()}
        self.options: dict[str, set[str]] = defaultdict(set)  # group -> options of any choice
        self.choices: dict[str, set[str]] = defaultdict(set)  # group -> choices
        for file in sorted(CONF.rglob("*.yaml")):
            keys = re.findall(r"^\s*(?:- )?(\w+):", file.read_text("utf-8"), re.MULTILINE)
            group, *rest = file.relative_to(CONF).with_suffix("").parts
            self.options[group if rest else ""].update(keys)
            self.choices[group].add("/".join(rest))
        self.settings = set(re.findall(r"^ {0,2}(\w+):", (CONF / "config.yaml").read_text("utf-8"), re.MULTILINE))
        self.targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        rooms = ("dllm", "experiments", "tests", "docs", "deploy")
        self.paths = [path for room in rooms for path in (ROOT / room).rglob("*")] + list(ROOT.iterdir())
        self.files = {path.name for path in self.paths}
        self.words = (
            set().union(*self.source.words_of.values())
            | self.files
            | {path.stem for path in self.paths}
            | self.settings
        )
        self.words.update(*self.options.values(), *self.choices.values())
        for text in self.tools.values():
            self.words.update(re.findall(r"[\w.]+", " ".join(TOOL_NAMES.findall(text))))
        for file in (ROOT / "tests/data/goldens").glob("*.yaml"):  # the published programs' parameters
            self.words.update(re.findall(r"\w+", file.read_text()))

    def module(self, name: str) -> str | None:
        """The longest beginning of a dotted name that is a module or a folder of modules."""
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            path = ROOT.joinpath(*parts[:count])
            if path.is_dir() or path.with_suffix(".py").is_file():
                return ".".join(parts[:count])
        return None
