"""Extracts from an answer the code that a test needs."""

from __future__ import annotations

import ast

FENCE = "```"


def fenced(text: str) -> str:
    """The text between the first ```` ```python ```` and the next fence; without one, all up to a closing fence."""
    _, opened, rest = text.partition(f"{FENCE}python\n")
    return (rest if opened else text).split(FENCE)[0]


def sanitized(program: str, entry: str) -> str:
    """Imports, assignments and definitions that ``entry`` can reach, from the longest stretch that parses and has it.

    The program itself where nothing parses or ``entry`` is not defined: then the test fails for that reason.
    """
    tree = longest_program(program, entry)
    if tree is None:
        return program
    needed, known = {entry}, {name: node for node in tree.body for name in defined(node)}
    todo = [entry]
    while todo:
        for name in names_in(known[todo.pop()]) & known.keys() - needed:
            needed.add(name)
            todo.append(name)
    kept = [node for node in tree.body if is_import(node) or defined(node) & needed]
    try:
        return ast.unparse(ast.Module(kept, []))
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
                if any(entry in defined(node) for node in tree.body):
                    best, size = tree, stop - start
                break
    return best


def defined(node: ast.stmt) -> set[str]:
    """Names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def names_in(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)
