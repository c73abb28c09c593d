"""Compare all samplers at their defaults on held-out items: ``python -m experiments.compare.samplers``.

Prints a Markdown table for each mini model, with 95 % intervals, and checks the relations that the methods promise. The
exit code is 1 when one fails. ``--count 16`` takes 16 items of each of the 13 tasks with short answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import track

from dllm import Decoder, Model, Result, UserError, load, part
from dllm.compose.parts import choices
from dllm.record.bounds import GuessRecorder, lossless_minimum
from dllm.samplers.oracle import Oracle
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.compare.kinds import Line, line
from experiments.mini.decoders import LEFT_TO_RIGHT
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

ANSWER, BATCH = 32, 52
HEADS = ("sampler", "score", "NFE", "TPF", "as one per step", "oracle / NFE")
DRAFT = 4  # FreeDave's default depth
OWN_TEXT = {"ete"}  # may write tokens that are not the model's first choice


@dataclass(frozen=True)
class Column:
    """One sampler's results on all items, and the score of each."""

    name: str
    rows: list[Result]
    right: list[float]


def interval(values: Sequence[float], digits: int) -> str:
    """Mean and its 95 % interval (normal)."""
    mean = fmean(values)
    spread = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return f"{mean:.{digits}f} ±{1.96 * sqrt(spread / len(values)):.{digits}f}"


def tokens_per_forward(rows: Sequence[Result]) -> str:
    """Useful tokens over forwards, sums over sums, with the 95 % interval of a ratio (normal, linearised)."""
    tokens, forwards = ([getattr(row, key) for row in rows] for key in ("useful_tokens", "nfe"))
    ratio, count = sum(tokens) / sum(forwards), len(rows)
    square = sum((mine - ratio * spent) ** 2 for mine, spent in zip(tokens, forwards, strict=True))
    half = 1.96 * sqrt(square / max(1, count - 1) / count) / fmean(forwards)
    return f"{ratio:.2f} ±{half:.2f}"


def autoregressive(items: list[Sample]) -> Line:
    """mini-ar from left to right on the same items: what diffusion is measured against."""
    (words,) = LEFT_TO_RIGHT.values()
    return line(load("mini-ar"), "AR", words, items)


class Comparison:
    """All samplers on one model. columns: by sampler. minimum, minimum_at_depth: the lossless minimum of each item,
    without a limit and at FreeDave's draft depth."""

    def __init__(self, model: Model, count: int, seed: int) -> None:
        self.model = model
        self.items = [sample for task in mini.SHORT_ANSWERS for sample in mini.generate(task, seed, count)]
        self.refused: list[str] = []
        seen = GuessRecorder()
        static = self.column("static", seen)
        assert static is not None
        self.columns = {"static": static}
        ordered = [seen.requests[number] for number in range(len(self.items))]
        self.minimum = [lossless_minimum(guesses) for guesses in ordered]
        self.minimum_at_depth = [lossless_minimum(guesses, DRAFT) for guesses in ordered]

    def run(self) -> None:
        names = [name for name in choices("sampler") if name not in ("static", "oracle")]
        for name in track([*names, "oracle"], self.model.name, console=Console(stderr=True)):
            found = self.column(name)
            if found is not None:
                self.columns[name] = found

    def column(self, name: str, observe: GuessRecorder | None = None) -> Column | None:
        reference = None if name != "oracle" else [row.canvas for row in self.columns["static"].rows]
        try:
            sampler = part("sampler", name) if reference is None else Oracle(reference)
            cache = name if sampler.traits.verifies else "none"
            decoder = Decoder(self.model, sampler, cache=cache, eos="none", gen_length=ANSWER, batch_size=BATCH)
        except UserError as error:
            self.refused.append(f"{name}: {error}")
            return None
        return Column(name, *answered(decoder, self.items, trace=True, observe=observe))

    def same(self, column: Column) -> list[bool]:
        """The items whose text is that of one token per step."""
        static = self.columns["static"].rows
        return [row.tokens == other.tokens for row, other in zip(column.rows, static, strict=True)]

    def table(self) -> str:
        before = autoregressive(self.items)
        nfe, tpf = interval([row.nfe for row in before.rows], 1), tokens_per_forward(before.rows)
        lines: list[tuple[str, ...]] = [(before.label, percent(before.right), nfe, tpf, "", "")]
        lines += [self._line(column) for column in self.columns.values()]
        bounds = {"lossless minimum": self.minimum, f"... drafting {DRAFT} ahead": self.minimum_at_depth}
        for name, values in bounds.items():
            lines.append((name, "", interval(values, 1), "", "", ""))
        return markdown.table(HEADS, lines)

    def _line(self, column: Column) -> tuple[str, ...]:
        nfe, oracle = [row.nfe for row in column.rows], [row.nfe for row in self.columns["oracle"].rows]
        return (
            column.name, percent(column.right), interval(nfe, 1), tokens_per_forward(column.rows),
            percent([float(same) for same in self.same(column)]), f"{fmean(oracle) / fmean(nfe):.2f}",
        )  # fmt: skip

    def relations(self) -> list[tuple[str, bool]]:
        """Each relation in words, and whether it holds."""
        missing = {"confidence", "localleap", "credit", "freedave", "scout"} - set(self.columns)
        if missing:
            return [(f"all of the samplers compared here run; {', '.join(sorted(missing))} did not", False)]
        nfe = {name: fmean(row.nfe for row in column.rows) for name, column in self.columns.items()}
        static, draft = self.columns["static"].rows, self.columns["freedave"].rows
        below = all(low <= row.nfe for low, row in zip(self.minimum_at_depth, draft, strict=True))
        return [
            (f"localleap {nfe['localleap']:.2f} < threshold {nfe['confidence']:.2f} forwards",
             nfe["localleap"] < nfe["confidence"]),
            (f"credit {nfe['credit']:.2f} <= threshold {nfe['confidence']:.2f} forwards",
             nfe["credit"] <= nfe["confidence"]),
            ("freedave decodes what static decodes",
             [row.canvas for row in draft] == [row.canvas for row in static]),
            (f"freedave saves {nfe['static'] / nfe['freedave']:.2f} x forwards, at least 1.5",
             nfe["static"] >= 1.5 * nfe["freedave"]),
            ("scout decodes what confidence decodes",
             [row.canvas for row in self.columns["scout"].rows]
             == [row.canvas for row in self.columns["confidence"].rows]),
            (f"scout {nfe['scout']:.2f} < confidence {nfe['confidence']:.2f} forwards",
             nfe["scout"] < nfe["confidence"]),
            ("no item needs fewer forwards under freedave than its lossless minimum", below),
            *(self._bounded(column) for name, column in self.columns.items() if name not in ({"oracle"} | OWN_TEXT)),
        ]  # fmt: skip

    def _bounded(self, column: Column) -> tuple[str, bool]:
        """The oracle's forwards and one sampler's, on the items whose whole canvas is that of one token per step."""
        static, oracle = self.columns["static"].rows, self.columns["oracle"].rows
        pairs = [
            (best.nfe, row.nfe)
            for row, other, best in zip(column.rows, static, oracle, strict=True)
            if row.canvas == other.canvas
        ]
        if not pairs:
            return f"{column.name} never gives the static text", True
        bound, spent = fmean(best for best, _ in pairs), fmean(nfe for _, nfe in pairs)
        return f"oracle {bound:.2f} <= {column.name} {spent:.2f} forwards on {len(pairs)} like texts", bound <= spent


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = comparison(__doc__, 16, "items per task; 13 tasks have short answers")
    parser.add_argument("--dtype", default="float32", help="of the arithmetic")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    failed = False
    for name in options.models:
        found = Comparison(load(name, dtype=options.dtype), options.count, options.seed)
        found.run()
        print(f"\n### {found.model.name}, {len(found.items)} items\n\n{found.table()}\n")
        for refusal in found.refused:
            print(f"- not run: {refusal}")
        for words, holds in found.relations():
            failed |= not holds
            print(f"- {'holds' if holds else 'FAILS'}: {words}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
