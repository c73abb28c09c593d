"""Which code every golden file was recorded with: ``python -m experiments.pages.golden_sources``.

What it says comes from the files' own headers: ``source`` names the repositories, commits and functions, ``notes`` what
was patched and what an implementation must share.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.support import markdown

GOLDENS = Path(__file__).parents[2] / "tests" / "data" / "goldens"
CODE = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{7}")
INDEPENDENT = {  # recorded with an implementation from what is named
    "elastic": "the paper and yxu-dev/Elastic-Cache@46c0bc3",
    "entropy": "the paper's abstract and a figure",
    "ete": "the paper's abstract, with gaps filled",
    "flash": "the paper and VILA-Lab/Flash-dLLM@7437a55",
}
OTHERS = {
    "constrained": "no decoder: every filling of tiny canvases was tried",
    "diffusion_gemma": "transformers 5.24.0, class and loop",
    "diffusion_gemma_other": "transformers 5.23.0, class and loop",
    "localleap": "a copy of friedrichor/LocalLeap, whose commit is not known",
} | {name: f"an independent implementation from {words}" for name, words in INDEPENDENT.items()}


def repositories(source: str) -> str:
    """Of the decoder and, after them, of the model: each at its commit, as a file's header has them."""
    parts = re.split("model code", source, maxsplit=1, flags=re.IGNORECASE)
    decoder, model = (list(dict.fromkeys(CODE.findall(part))) for part in (parts + [""])[:2])
    beside = [one for one in model if one not in decoder]
    return ", ".join(decoder) + f"; models of {', '.join(beside)}" * bool(beside)


def cases(data: Mapping[str, Any]) -> int:
    return sum(len(found) for name, found in data.items() if isinstance(found, list) and name != "batches")


def table() -> str:
    found = sorted([*GOLDENS.glob("*.json"), *GOLDENS.glob("sharp/*.json")])
    files = {str(file.relative_to(GOLDENS).with_suffix("")): json.loads(file.read_text()) for file in found}
    rows = [
        (f"`{name}`", OTHERS.get(name.removeprefix("sharp/")) or repositories(data["source"]), str(cases(data)))
        for name, data in files.items()
    ]
    return markdown.table(("golden file", "recorded with", "cases"), rows, words=2)


def main(arguments: Sequence[str] | None = None) -> int:
    print(f"## Which code was compared\n\n{table()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
