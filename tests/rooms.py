"""What each room of the package weighs: ``python tests/rooms.py [CHECKOUT ...]``, this checkout by default.

A room is a folder of dllm or a module at its top. Columns: lines and files of Python, ``raise`` statements, functions
called check..., and arrows: other rooms that a room imports. Then the functions that are called most, with their lines.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MOST_CALLED = 13


@dataclass
class Room:
    """What one room adds up to."""

    lines: int = 0
    files: int = 0
    raises: int = 0
    checks: int = 0
    imports: set[str] = field(default_factory=set)  # other rooms


def imported(node: ast.AST) -> list[str]:
    """The modules of dllm that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.partition(".")[0] == "dllm"]
    if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "dllm":
        return []
    return [node.module or ""] if node.module != "dllm" else [f"dllm.{alias.name}" for alias in node.names]


def _length(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def measured(package: Path) -> tuple[dict[str, Room], Counter[str], dict[str, int]]:
    """The rooms, how often each name is called, and the lines of each function at the top of a module."""
    rooms, calls, lengths = dict[str, Room](), Counter[str](), dict[str, int]()
    tops = {path.name.removesuffix(".py") for path in package.iterdir()}
    for file in sorted(package.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(package).parts[0].removesuffix(".py")
        room = rooms.setdefault(name, Room())
        room.lines += text.count("\n")
        room.files += 1
        tree = ast.parse(text)
        lengths |= {one.name: _length(one) for one in tree.body if isinstance(one, ast.FunctionDef)}
        for node in ast.walk(tree):
            room.raises += isinstance(node, ast.Raise)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                room.checks += node.name.startswith("check")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                calls[node.func.id] += 1
            for module in imported(node):
                other = (module.split(".") + ["__init__"])[1]
                room.imports |= {other if other in tops else "__init__"} - {name}
    return rooms, calls, lengths


def main(checkouts: list[Path]) -> None:
    """Print a table for each checkout."""
    for checkout in checkouts:
        rooms, calls, lengths = measured(checkout / "dllm")
        print(f"{checkout}\n{'room':12} {'lines':>7} {'files':>6} {'raises':>7} {'checks':>7} {'arrows':>7}")
        for name, room in sorted(rooms.items(), key=lambda pair: -pair[1].lines):
            print(f"{name:12} {room.lines:7} {room.files:6} {room.raises:7} {room.checks:7} {len(room.imports):7}")
        whole = [sum(getattr(room, key) for room in rooms.values()) for key in ("lines", "files", "raises", "checks")]
        arrows = sum(len(room.imports) for room in rooms.values())
        print(f"{f'{len(rooms)} rooms':12} {whole[0]:7} {whole[1]:6} {whole[2]:7} {whole[3]:7} {arrows:7}")
        ours = [(name, count) for name, count in calls.most_common() if name in lengths][:MOST_CALLED]
        print("most called: " + ", ".join(f"{name} {count} times, {lengths[name]} lines" for name, count in ours))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or [Path(__file__).parents[1]])
