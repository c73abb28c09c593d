"""Write the tables of docs/methods.md from the heads of ``dllm/conf/``: ``python -m experiments.pages.methods``.

Every part says on top of its YAML file what its idea is, in which paper it stands, and what it was compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dllm.compose.choice_files import part_facts
from dllm.compose.parts import choices, wrappers
from experiments.support.markdown import table
from experiments.support.marked import write_marked
from experiments.support.scripts import refusing

PAGE, MARK = Path(__file__).parents[2] / "docs" / "methods.md", "methods"
PAGES = {"sampler": "samplers/{}.md", "blocks": "blocks.md", "cache": "caches.md", "eos": "eos.md"}
HEADS = ("name", "idea", "paper", "checked against")


def lines(group: str) -> Iterator[tuple[str, ...]]:
    """A line for each part of a group."""
    around = wrappers() if group == "sampler" else ()
    for name in choices(group):
        facts = part_facts(group, name)
        idea = f"{facts.idea} (wrapper)" if name in around else facts.idea
        papers = " ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in facts.papers)
        yield f"[`{name}`]({PAGES[group].format(name)})", idea, papers or "-", facts.checked or "-"


def section() -> str:
    """The tables, one for each kind of part."""
    return "\n".join(f"## `{group}=`\n\n{table(HEADS, lines(group), len(HEADS))}\n" for group in PAGES)


@refusing
def main() -> int:
    write_marked(PAGE, MARK, section())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
