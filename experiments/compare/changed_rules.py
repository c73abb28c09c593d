"""Rules that their authors' code replaced, before and now: ``python -m experiments.compare.changed_rules``.

Each setting decodes the same held-out items, 8 of each of the 13 tasks with short answers, with the package as it is
and with that of the commit BEFORE, whose column is kept in ``changed_rules.jsonl``. Prints a Markdown table per model,
with 95 % intervals; the difference's is Bonett and Price's, of paired scores. To make the kept column again:

    git worktree add --detach FOLDER c6e5e15
    python -m experiments.compare.changed_rules --before FOLDER

Answers have 32 tokens. Published lengths of blocks and numbers of steps are taken as shares of the answer, and the
blocks of dus, whose levels are columns, as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import track

from dllm import Model, UserError, load
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.compare.defaults import Bench, Scores
from experiments.report.paired import paired_difference
from experiments.support import markdown
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

BEFORE, KEPT = "c6e5e15", Path(__file__).with_suffix(".jsonl")
MODELS = ("mini-llada", "mini-dream")
SEED, COUNT = 2, 8  # the defaults were chosen on the items of seeds 0 and 1
TABLE = "TABLE"  # on the command line of a cell: the file of token frequencies
HEADS = ("settings", "before", "NFE", "now", "NFE", "difference")
WHOLE = "blocks=whole eos=none"


@dataclass(frozen=True)
class Cell:
    """Words of the command line now, and at BEFORE where they were others. model: None is both."""

    now: str
    before: str | None = None
    model: str | None = None


CELLS = (
    Cell("sampler=wino", model="mini-llada"),
    Cell("sampler=wino sampler.threshold=0.6 blocks.block_length=16 eos=none", model="mini-llada"),  # GSM8K
    Cell("sampler=wino sampler.threshold=0.8 blocks.block_length=16 eos=none", model="mini-llada"),  # MBPP
    Cell("sampler=saber"),
    Cell(f"sampler=saber {WHOLE}"),
    Cell(f"sampler=saber sampler.form=dream {WHOLE}", f"sampler=saber {WHOLE}"),
    Cell("sampler=klass"),
    Cell("sampler=klass sampler.threshold=0.6 sampler.kl=0.015 blocks.block_length=8 eos=none"),  # GSM8K
    Cell("sampler=klass sampler.threshold=0.9 sampler.kl=0.001 eos=none"),  # Dream
    Cell("sampler=rcr"),
    Cell(
        "sampler=rcr sampler.steps=8 blocks=growing blocks.block_length=8 eos=none",
        "sampler=rcr sampler.per_step=4 blocks.block_length=8 eos=none",
    ),
    Cell(
        "sampler=rcr sampler.steps=16 blocks=growing blocks.block_length=8 eos=none",
        "sampler=rcr sampler.per_step=2 blocks.block_length=8 eos=none",
    ),
    Cell("sampler=remdm"),  # nothing is published
    Cell("sampler=dus"),
    Cell("sampler=dus sampler.levels=dilated sampler.threshold=0.3 eos=none", "sampler=dus eos=none"),  # its README
    Cell("sampler=dus blocks.block_length=8 eos=none"),
    Cell("sampler=pc"),
    Cell(f"sampler=pc sampler.frequencies={TABLE} {WHOLE}"),
    Cell(f"sampler=pc sampler.frequencies={TABLE} sampler.decay=0.0 {WHOLE}"),  # Sudoku
    Cell(f"sampler=prior {WHOLE}"),
    Cell(f"sampler=prior sampler/inner=factor sampler.over_thresholds=true {WHOLE}"),
    Cell(
        f"sampler=groups sampler.steps=32 sampler.full_steps=12 cache=recap cache.targets=announced {WHOLE}",
        f"sampler=static cache=recap {WHOLE}",
    ),
    Cell(
        f"sampler=groups sampler.steps=16 sampler.full_steps=8 cache=recap cache.targets=announced {WHOLE}",
        f"sampler=static sampler.steps=16 cache=recap {WHOLE}",
    ),
)


class Counting(Bench):
    """A bench whose settings may name a file of token frequencies: those of the tasks' own texts."""

    def __init__(self, model: Model, kept: Path | None, folder: Path) -> None:
        super().__init__(model, kept)
        self.table = folder / "frequencies.json"
        assert model.tokenizer is not None
        items = [one for task in mini.SHORT_ANSWERS for one in mini.generate(task, SEED, COUNT, "train")]
        found = Counter(model.tokenizer.encode("\n".join(f"{one.prompt}\n{one.answer}" for one in items)))
        self.table.write_text(json.dumps({token: count / found.total() for token, count in found.items()}))

    def decoded(self, words: str, seed: int, items: Sequence[Sample]) -> Scores:
        return replace(super().decoded(words.replace(TABLE, str(self.table)), seed, items), words=words)


def of(model: str) -> list[Cell]:
    return [cell for cell in CELLS if cell.model in (None, model)]


def then(cell: Cell) -> str:
    return cell.now if cell.before is None else cell.before


def decode(bench: Bench, settings: Iterable[str]) -> dict[str, Scores]:
    """The scores of each setting. Raises UserError for one that is refused."""
    shown = track([*dict.fromkeys(settings)], bench.model.name, console=Console(stderr=True))
    found = {words: bench.scores(words, SEED, COUNT) for words in shown}
    for words, one in found.items():
        if one.refused:
            raise UserError(f"{words}: {one.refused}")
    return found


def recalled(bench: Bench, words: str) -> Scores:
    """What the kept column says of a setting."""
    found = bench.known.get((bench.model.name, words, SEED, COUNT * len(mini.SHORT_ANSWERS)))
    if found is None:
        raise UserError(f"{KEPT.name} lacks {words!r} on {bench.model.name}. Make it again by --before FOLDER.")
    return found


def with_package_of(folder: Path) -> int:
    """Make KEPT again, in a process that finds this ``experiments`` and the ``dllm`` of another checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "dllm").symlink_to((folder / "dllm").resolve())
        paths = os.pathsep.join([scratch, str(Path(__file__).parents[2])])
        command = [sys.executable, "-P", "-m", "experiments.compare.changed_rules", "--keep"]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}).returncode


def line(cell: Cell, before: Scores, now: Scores) -> str:
    each = [one - other for one, other in zip(now.right, before.right, strict=True)]
    found = paired_difference([each[at : at + COUNT] for at in range(0, len(each), COUNT)])
    settings = f"`{cell.now}`" if cell.before is None else f"`{cell.now}`; before: `{cell.before}`"
    points = f"{100 * found.mean:+.0f} ({100 * found.low:+.0f} to {100 * found.high:+.0f})"
    spent = [f"{fmean(one.nfe):.1f}" for one in (before, now)]
    return markdown.line((settings, percent(before.right), spent[0], percent(now.right), spent[1], points))


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help="names")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help=f"a checkout of {BEFORE}: decode its column anew")
    parser.add_argument("--keep", action="store_true", help="decode that column with the package that is imported")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.before is not None:
        KEPT.unlink(missing_ok=True)
        return with_package_of(given.before)
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.models:
            kept = Counting(load(name), KEPT, Path(scratch))
            if given.keep:
                decode(kept, map(then, of(name)))
                continue
            now = decode(Counting(kept.model, None, Path(scratch)), (cell.now for cell in of(name)))
            rows = [line(cell, recalled(kept, then(cell)), now[cell.now]) for cell in of(name)]
            print(f"\n### {name}\n\n{markdown.head(HEADS)}", *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
