"""The contract's glossary, made from the comments at its fields: ``python -m dllm.analysis.glossary``.

A field is explained by the comment behind it, or by those right above it. ``; papers:`` parts what it means from what
papers call it; a class's docstring says the latter after ``In papers:``.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from dllm.common.terminal import say
from dllm.errors import UserError

CODE_ROOT = Path(__file__).parents[1]
PAGE = CODE_ROOT.parent / "docs" / "terms.md"
BEGIN, END = "<!-- glossary: begin -->", "<!-- glossary: end -->"
SECTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "What the loop hands out": {
        "contract/canvas.py": ("Request", "Canvas"),
        "loop/rows.py": ("Rows", "HostReport"),
        "contract/types.py": ("Ledger", "Turn"),
    },
    "What a part asks for and gets": {
        "contract/types.py": ("Need", "Scores", "View", "Step"),
        "contract/attention.py": ("AttentionNeed", "AttentionWeights"),
        "contract/logits.py": ("Logits", "Lookup"),
    },
    "Blocks": {"contract/types.py": ("BlockState",), "contract/shapes.py": ("Bounded", "HostView")},
    "A forward": {
        "contract/types.py": ("ForwardPlan", "ForwardCost"),
        "contract/beside.py": ("Beside",),
        "cache/passes.py": ("ForwardPass", "Call", "CandidateBuffers", "CandidatePacking"),
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
            raise UserError(f"{name} has no comment that says what it is. Write one behind it or above it.")
        yield name, *meaning_and_papers(text, "; papers: ")


def meaning_and_papers(text: str, mark: str) -> tuple[str, str]:
    """The meaning, and the papers' word (a dash: none)."""
    meaning, _, papers = re.sub(mark, "\0", text.replace("``", "`").replace("|", r"\|")).partition("\0")
    return meaning.rstrip("."), papers.rstrip(".") or "-"


def glossary() -> str:
    """The tables in Markdown, a section for each stage of a turn."""
    out: list[str] = []
    for section, files in SECTIONS.items():
        out += [f"### {section}", "", "| term | what it is | papers call it |", "|---|---|---|"]
        for file, kinds in files.items():
            source = (CODE_ROOT / file).read_text(encoding="utf-8")
            for kind in kinds:
                out += [f"| `{name}` | {text} | {papers} |" for name, text, papers in explained(source, kind)]
        out.append("")
    return "\n".join(out)


def with_glossary(page: str) -> str:
    """The page with the tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{glossary()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if PAGE.exists() and "--write" in sys.argv:
        PAGE.write_text(with_glossary(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        say(glossary())
