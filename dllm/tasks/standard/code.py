"""HumanEval and MBPP: programs that the model writes are run against the benchmark's tests, in ``sandbox``.

raw: the answer as lm-eval takes it. sanitized: the first fenced block, cut down to what the tested function needs
(as Dream and Fast-dLLM report it). For instruct models only this number is meaningful.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from dllm.common.errors import UserError, in_choices
from dllm.tasks.base import Item
from dllm.tasks.standard import sandbox
from dllm.tasks.standard.harness import Harness
from dllm.tasks.standard.json_lines import Doc

STYLES = ("base", "instruct")


class Code(Harness):
    """style: ``instruct`` asks in words and begins the answer with a code fence, ``base`` gives the code alone.
    allow_code: run what the model writes. seconds: of the CPU that each program may take. escape_until: no stop
    strings; with style base they would cut a chat model's fenced answer at its first definition."""

    needs_fields: tuple[str, ...] = ()
    apart = True

    def __init__(
        self,
        harness: str,
        style: str = "instruct",
        allow_code: bool = False,
        seconds: int = 10,
        escape_until: bool = False,
        **options: Any,
    ) -> None:
        in_choices("task.style", style, STYLES)
        if not allow_code:
            raise UserError(
                f"task={harness} runs programs that the model writes, and is off unless you say allow_code=true. They "
                "then run in a subprocess with limited time and memory and no network."
            )
        self.escape_until, self.style, self.limits = escape_until, style, sandbox.Allowance(seconds=seconds)
        self.stock = f"{harness}/{harness}{'_instruct' if style == 'instruct' else ''}.yaml"
        super().__init__(harness, self.needs_fields, "sanitized", **options)

    def item(self, name: str, task: Any, number: int, doc: Doc) -> Item:
        item = super().item(name, task, number, doc)
        return replace(item, stop=()) if self.escape_until else item

    def passed(self, program: str) -> float:
        return float(sandbox.run_program(program, self.limits).passed)


class HumanEval(Code):
    """The function's head and docstring are given; its body is asked for."""

    needs_fields = ("prompt", "test", "entry_point")

    def judge(self, item: Item, text: str) -> tuple[dict[str, float | None], dict[str, Any]]:
        doc = item.truth["doc"]
        raw = text.split("```")[0] if self.style == "instruct" else text
        clean = sanitize(f"{doc['prompt']}\n{fence_content(text)}", doc["entry_point"], doc["test"])
        tests = f"\n{doc['test']}\ncheck({doc['entry_point']})\n"
        return {"raw": self.passed(doc["prompt"] + raw + tests), "sanitized": self.passed(clean + tests)}, {}


class MBPP(Code):
    """A function is asked for in words, with three of its tests, the same that judge it."""

    needs_fields = ("text", "test_list")

    def judge(self, item: Item, text: str) -> tuple[dict[str, float | None], dict[str, Any]]:
        doc = item.truth["doc"]
        tests = "\n" + "\n".join([doc.get("test_setup_code") or "", *doc["test_list"]]) + "\n"
        raw = text.split("```")[0] if self.style == "instruct" else text
        clean = sanitize(fence_content(text), entry_of(doc["test_list"]), tests)
        return {"raw": self.passed(raw + tests), "sanitized": self.passed(clean + tests)}, {}


def entry_of(asserts: list[str]) -> str:
    """The function that the asserts call: the first name called that is not a builtin."""
    import builtins

    for node in ast.walk(ast.parse("\n".join(asserts))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
            return node.func.id
    return ""


FENCE = "```"


def fence_content(text: str) -> str:
    """The text between the first ```` ```python ```` and the next fence; without one, all up to a closing fence."""
    _, fence, rest = text.partition(f"{FENCE}python\n")
    return (rest if fence else text).split(FENCE)[0]


def sanitize(program: str, entry: str, tests: str = "") -> str:
    """Imports, assignments and definitions that ``entry`` and ``tests`` can reach, from the longest stretch that parses
    and has ``entry``.

    The program itself where nothing parses or ``entry`` is not defined: then the test fails for that reason.
    """
    tree = longest_program(program, entry)
    if tree is None:
        return program
    nodes = {name: node for node in tree.body for name in defined_names(node)}
    reachable = {entry, *read_names(tests) & nodes.keys()}  # HumanEval/50's test calls a helper of its prompt
    todo = [*reachable]
    while todo:
        for name in names_in(nodes[todo.pop()]) & nodes.keys() - reachable:
            reachable.add(name)
            todo.append(name)
    body = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) or defined_names(node) & reachable
    ]
    try:
        return ast.unparse(ast.Module(body, []))
    except RecursionError:  # it parses, but too deep to be written again
        return program


def longest_program(program: str, entry: str) -> ast.Module | None:
    """The longest run of lines that is a program and defines ``entry``: prose before and after it is left out."""
    lines, best, size = program.split("\n"), None, 0
    for start in range(len(lines)):
        stop = len(lines)
        while stop - start > size:
            try:
                tree = ast.parse("\n".join(lines[start:stop]))
            except SyntaxError as error:  # what is before the first error may still parse
                stop = min(stop - 1, start + max((error.lineno or 1) - 1, 0))
            except (ValueError, RecursionError, MemoryError):  # a null byte; brackets or operators too deep to parse
                stop -= 1
            else:
                if any(entry in defined_names(node) for node in tree.body):
                    best, size = tree, stop - start
                break
    return best


def defined_names(node: ast.stmt) -> set[str]:
    """Names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def names_in(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def read_names(program: str) -> set[str]:
    """No name where it does not parse, and so fails anyway."""
    try:
        return names_in(ast.parse(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
