"""Measure token frequencies for sampler=pc: ``experiments.mini.token_frequencies corpus.txt --model mini-llada``.

Writes a table in PC-Sampler's published format, {"num_token": N, "p_baseline_dict": {id: count}}; then: sampler=pc
sampler.frequencies=frequencies.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dllm.common.errors import UserError, first_line
from dllm.models.bundle import describe
from experiments.support.scripts import refusing


def counts(text: str, model: str) -> Counter[int]:
    """How often every token of ``text`` occurs."""
    tokenizer = describe(model)[2]
    if tokenizer is None:
        raise UserError(f"model={model!r} has no tokenizer, and text cannot be counted without one.")
    found = Counter(tokenizer.encode(text))
    if not found:
        raise UserError("the corpus is empty: name a file with some text.")
    return found


def text_of(file: Path) -> str:
    """Raises UserError for a file that is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"corpus={str(file)!r} is not UTF-8: {first_line(error)}. Name a text file.") from error


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a text file")
    parser.add_argument("--model", default="mini-llada", help="whose tokenizer")
    parser.add_argument("--out", type=Path, default=Path("frequencies.json"))
    given = parser.parse_args(arguments)
    found = counts(text_of(given.corpus), given.model)
    given.out.write_text(json.dumps({"num_token": found.total(), "p_baseline_dict": dict(sorted(found.items()))}))
    print(f"{given.out}: {len(found)} different tokens of {found.total()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
