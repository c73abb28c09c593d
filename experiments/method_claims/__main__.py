"""The claims that methods' papers stand on, on both demo models: ``python -m experiments.method_claims``.

Parts: ``prophet`` (answers that stand early, and what an exit saves), ``eotp`` (the predicted end of a text on long
canvases), ``ete`` (rounds against bits), ``credit`` (credit over a threshold under caches). Prints the tables of
docs/measured/methods.md. ``--only ete`` runs one part, ``--count 2`` takes fewer items of each task.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch

from dllm import Model, load
from experiments.method_claims import bits, credit, early_end, prophet
from experiments.support.scripts import counted, refusing

# The tables of a model with this many items of each task, and how many the page has.
PARTS: dict[str, tuple[Callable[[Model, int], str], int]] = {
    "prophet": (prophet.tables, prophet.COUNT), "eotp": (early_end.tables, early_end.COUNT),
    "ete": (bits.tables, bits.COUNT), "credit": (credit.tables, credit.COUNT),
}  # fmt: skip


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="method_claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["mini-llada", "mini-dream"], help="names or folders")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--count", type=counted, help="items per task; each part has its own number")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    models = [load(name) for name in given.models]
    for name in given.only:
        tables, count = PARTS[name]
        for model in models:
            print(tables(model, given.count or count), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
