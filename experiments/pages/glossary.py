"""The contract's glossary, made from the comments at its fields: ``python -m experiments.pages.glossary``.

A field is explained by the comment after it, or by those right above it. ``; papers:`` parts what it means from what
papers call it; a class's docstring says the latter after ``In papers:``. The page has the classes.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from dllm.errors import UserError
from experiments.support.markdown import table
from experiments.support.marked import write_marked
from experiments.support.scripts import refusing

PACKAGE = Path(__file__).parents[2] / "dllm"
PAGE, MARK = PACKAGE.parent / "docs" / "terms.md", "glossary"
HEADS = ("term", "what it is", "papers call it")
SECTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "What the loop hands out": {
        "contract/canvas.py": ("Request", "Canvas"),
        "contract/turn.py": ("Ledger", "Turn"),
    },
    "What a part asks for and gets": {
        "contract/needs.py": ("Need",),
        "contract/types.py": ("Scores", "View"),
        "contract/step.py": ("Step",),
        "contract/readouts.py": (
            "Statistic",
            "AllLogits",
            "LogitLookup",
            "HiddenState",
            "Probe",
            "Shadow",
            "AttentionMap",
            "AttentionWeights",
            "ByColumn",
            "Lookup",
        ),
    },
    "What a part says of itself": {
        "contract/traits.py": ("SamplerTraits", "BlocksTraits", "CacheTraits", "EosTraits"),
        "compose/fitted.py": ("Parts",),
    },
    "Blocks": {"contract/types.py": ("BlockState",)},
    "A forward": {
        "contract/types.py": ("ForwardPlan", "ForwardCost"),
        "contract/beside.py": ("Beside",),
    },
}


def comment_lines(source: str) -> dict[int, str]:
    """The comment of each line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string[1:].strip() for token in tokens if token.type == tokenize.COMMENT}


def explained(source: str, kind: str) -> Iterator[tuple[str, str, str]]:
    """Name, meaning and papers' word of a class and its fields. Raises UserError for a field without a comment."""
    said, lines = comment_lines(source), source.splitlines()
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == kind]
    yield (
        kind,
        *meaning_and_papers(" ".join((ast.get_docstring(found) or "").split("\n\n")[0].split()), r" ?In papers: "),
    )
    for field in found.body:
        if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
            continue
        name, text = f"{kind}.{ast.unparse(field.target)}", said.get(field.end_lineno or 0, "")
        text = re.sub(r"^type: ignore\S*(\s+# )?", "", text)
        if not text:
            first = field.lineno - 1
            while lines[first - 1].strip().startswith("#"):
                first -= 1
            text = " ".join(said[line] for line in range(first + 1, field.lineno))
        if not text:
            raise UserError(f"{name} has no comment that says what it is. Write one after it or above it.")
        yield name, *meaning_and_papers(text, "; papers: ")


def meaning_and_papers(text: str, mark: str) -> tuple[str, str]:
    """The meaning in a sentence, and the papers' word (a dash: none)."""
    meaning, _, papers = re.sub(mark, "\0", text.replace("``", "`").replace("|", r"\|")).partition("\0")
    return re.split(r"[.;] ", meaning)[0].rstrip("."), papers.rstrip(".") or "-"


def rows(files: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str, str]]:
    """The lines of a section: the classes of its files."""
    for file, kinds in files.items():
        source = (PACKAGE / file).read_text(encoding="utf-8")
        for kind in kinds:
            found = explained(source, kind)
            yield from ((f"`{name}`", text, papers) for name, text, papers in found if name == kind)


def section() -> str:
    """The tables, one for each stage of a turn."""
    return "\n".join(f"### {name}\n\n{table(HEADS, rows(files), len(HEADS))}\n" for name, files in SECTIONS.items())


@refusing
def main() -> int:
    write_marked(PAGE, MARK, section())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
