"""Measure token frequencies for sampler=pc: ``python -m experiments.token_frequencies corpus.txt --model mini-llada``.

Writes a JSON object of token id to relative frequency; then: sampler=pc sampler.frequencies=frequencies.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from dllm import UserError
from dllm.models.bundle import describe


def frequencies(text: str, model: str) -> dict[int, float]:
    """Relative frequency of every token of ``text``."""
    tokenizer = describe(model)[2]
    if tokenizer is None:
        raise UserError(f"model={model!r} has no tokenizer, and text cannot be counted without one.")
    counts = Counter(tokenizer.encode(text))
    if not counts:
        raise UserError("the corpus is empty: name a file with some text.")
    return {token: count / counts.total() for token, count in sorted(counts.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a text file")
    parser.add_argument("--model", default="mini-llada", help="whose tokenizer")
    parser.add_argument("--out", type=Path, default=Path("frequencies.json"))
    given = parser.parse_args()
    try:
        table = frequencies(given.corpus.read_text(), given.model)
    except (UserError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    given.out.write_text(json.dumps(table))
    print(f"{given.out}: {len(table)} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
