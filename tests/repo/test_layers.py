"""Who may import whom: the table of CONTRIBUTING.md, read from top to bottom, and no circle between modules."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dllm"
FILES = sorted(file for file in PACKAGE.rglob("*.py") if "conf" not in file.parts)


def rows() -> list[list[str]]:
    """The names in the first column of the table, row by row."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Who may import whom")[1].split("\n## ")[0]
    cells = re.findall(r"^\| ((?:`\w+`[ ,]*)+) \|", text, re.MULTILINE)
    return [re.findall(r"`(\w+)`", cell) for cell in cells]


def place_of(module: str) -> str:
    """The folder, or the module at the top of the package, that a module belongs to; of parts, the kind."""
    top, *inner = module.split(".")
    return f"{top}.{inner[0]}" if top == "parts" and inner else top


def above(place: str) -> set[str]:
    """Names in the rows above the one that names ``place``."""
    order = rows()
    (row,) = [number for number, names in enumerate(order) if place.partition(".")[0] in names]
    return {name for names in order[:row] for name in names}


def named(file: Path) -> str:
    """A file's module, without the leading ``dllm``: ``cache.dual``; a package's ``__init__`` is the package."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {named(file): file for file in FILES}


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions and for types alone; of ``from a import b`` a.b."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def ours(names: Iterable[str]) -> set[str]:
    """Those of the imported ``names`` that are modules of this package, without the leading ``dllm``."""
    found = set()
    for name in names:
        top, _, module = name.partition(".")
        if top == "dllm":
            found.add(next(part for part in (module, module.rpartition(".")[0], "__init__") if part in MODULES))
    return found


def refused(place: str, names: Iterable[str]) -> set[str]:
    """Those of the imported ``names`` that modules of ``place`` may not import."""
    higher = above(place)
    return {module for module in ours(names) if place_of(module) != place and module.partition(".")[0] not in higher}


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Some modules that import each other in a circle, the first one again at the end; none: an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_the_table_names_every_folder_and_every_module_at_the_top_once() -> None:
    listed = [name for names in rows() for name in names]
    assert len(listed) == len(set(listed))
    assert {module.partition(".")[0] for module in MODULES} == set(listed)


def test_modules_import_from_rows_above_their_own() -> None:
    found = {module: refused(place_of(module), imports(file)) for module, file in MODULES.items()}
    assert {module: names for module, names in found.items() if names} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: ours(imports(file)) - {module} for module, file in MODULES.items()}
    assert circle(graph) == []


def test_the_package_imports_nothing_that_its_wheel_lacks() -> None:
    apart = {"experiments", "tests"}
    assert [module for module, file in MODULES.items() if apart & {n.partition(".")[0] for n in imports(file)}] == []


@pytest.mark.parametrize(
    ("place", "module", "bad"),
    [
        ("parts.samplers", "dllm.tasks.base", True),
        ("parts.samplers", "dllm.parts.blocks.fixed", True),
        ("parts.samplers", "dllm.parts.cache.base.Cache", True),
        ("parts.samplers", "dllm.Decoder", True),
        ("parts.samplers", "dllm.parts.samplers.static.Static", False),
        ("parts.samplers", "dllm.contract.canvas.Canvas", False),
        ("parts.samplers", "torch", False),
        ("kernels", "dllm.models.network.transformer", True),
        ("view", "dllm.app.runs", True),
        ("app", "dllm.view.live", False),
        ("common", "dllm.models.config", True),
    ],
)
def test_the_check_finds_what_points_upwards(place: str, module: str, bad: bool) -> None:
    assert bool(refused(place, [module])) == bad


def test_the_check_finds_a_circle_and_only_that() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_inside_functions_and_for_types_count(tmp_path: Path) -> None:
    file = tmp_path / "new.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dllm.contract.canvas\n"
        "def use():\n    from dllm.models import bundle\n"
    )
    assert ours(imports(file)) == {"contract.canvas", "models.bundle"}


PLACES = {
    "triton": {"kernels"},
    "pandas": {"record", "view"},
    "hydra": {"compose", "app", "tasks"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "prometheus_client": {"serve"},
    "matplotlib": {"view"},
}


@pytest.mark.parametrize("library", PLACES)
def test_a_library_stays_where_it_belongs(library: str) -> None:
    users = [file for file in FILES if any(name.partition(".")[0] == library for name in imports(file))]
    places = {file.relative_to(PACKAGE).parts[0] for file in users}
    assert places and places <= PLACES[library]


# Read by lm-eval alone, or by a report, task=serve once they know that the extra is installed.
OF_LM_EVAL = {"app.lm_eval.lm", "app.lm_eval.mini_lists"}
OF_AN_ENDPOINT = {"app.runs.bounded_reply"}
OF_A_REPORT = {"view.report.plots", "view.report.pooling", "view.report.differences", "view.report.front_picture"}
OF_SERVE = {"starlette", "uvicorn", "prometheus_client", "pydantic", "pydantic_core", "annotated_types"}
MODULE_NAMES = {"hydra-core": {"hydra", "omegaconf"}, "pyyaml": {"yaml"}}  # where they are not the distribution's


def at_the_top(file: Path) -> Iterator[str]:
    """Modules that importing a file imports: outside of functions, and not for types alone."""
    todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def base_modules() -> set[str]:
    """The standard library, ourselves, and what ``pip install dllm`` is told to bring along."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.match(r"[\w-]+", need)[0] for need in needs]  # type: ignore[index]
    return {module for name in names for module in MODULE_NAMES.get(name, {name})} | sys.stdlib_module_names | {"dllm"}


def test_importing_a_module_takes_no_more_than_the_base_install() -> None:
    base = base_modules()
    lacking = {}
    for module, file in MODULES.items():
        allowed = base | OF_SERVE if place_of(module) == "serve" else base
        more = {name.partition(".")[0] for name in at_the_top(file)} - allowed
        if more and module not in OF_LM_EVAL | OF_A_REPORT | OF_AN_ENDPOINT:
            lacking[module] = more
    assert lacking == {} and {"torch", "rich"} < base and not {"transformers", "triton", "pandas"} & base


def test_types_ship_with_the_package() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text()
