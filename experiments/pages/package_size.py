"""Lines of code of the package by folder: ``python -m experiments.pages.package_size [CHECKOUT ...]``.

A line of code holds more than blanks, a comment or a docstring. With several checkouts the table has a column for each,
so a state before a change can be compared with the one after it. Modules at the top of ``dllm/`` have a line each. The
line ``core`` adds up those that ``--core`` names: the loop, its data, its parts, and what computes.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ("denoise", "contract", "canvas", "shapes", "setting", "rows", "forward", "proposing", "scores", "samplers",
        "blocks", "cache", "eos", "models", "kernels", "runtime")  # fmt: skip
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of a Python source without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def sizes(checkout: Path) -> Counter[str]:
    """Lines of code of each folder of ``dllm/``, and of each module at its top, in a checkout."""
    found: Counter[str] = Counter()
    for file in sorted((checkout / "dllm").rglob("*.py")):
        place = file.relative_to(checkout / "dllm").parts[0]
        found[place.removesuffix(".py")] += code_lines(file.read_text(encoding="utf-8"))
    return found


def table(checkouts: Sequence[Path], core: Sequence[str]) -> str:
    """A line per folder, then the core and the whole package; a column per checkout, 0 where it has no such folder."""
    columns = [sizes(checkout) for checkout in checkouts]
    rows = {name: [column[name] for column in columns] for name in sorted(set().union(*columns))}
    rows["core"] = [sum(column[name] for name in core) for column in columns]
    rows["all"] = [column.total() for column in columns]
    heads = [checkout.resolve().name for checkout in checkouts]
    lines = [f"{'dllm/':16}" + "".join(f"{head:>12}" for head in heads)]
    return "\n".join([*lines, *(f"{name:16}" + "".join(f"{count:12}" for count in row) for name, row in rows.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="CHECKOUT", help="default: this one")
    parser.add_argument("--core", nargs="+", default=CORE, metavar="NAME", help=f"default: {' '.join(CORE)}")
    options = parser.parse_args(arguments)
    without = [str(checkout) for checkout in options.checkouts if not (checkout / "dllm").is_dir()]
    if without:
        parser.error(f"{', '.join(without)}: there is no folder dllm/ here. Name the root of a checkout.")
    print(table(options.checkouts, options.core))
    return 0


if __name__ == "__main__":
    sys.exit(main())
