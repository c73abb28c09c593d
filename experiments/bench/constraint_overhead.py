"""Measure what constraints add to a turn of the loop: ``python -m experiments.bench.constraint_overhead``.

The vocabulary is that of ``bench_constraints``. A stand-in for the network gives each position the head's row of its
answer's token, so that the head proposes it; in ``wrong`` the tokens are random ones, so that nearly all proposals are
made again. Rows hold random texts of the language, ended, and commit 4 tokens a turn in blocks of 32. Times are of one
thread, in milliseconds a turn of the whole batch: without constraints; with them; of these the vocabulary (logits of
cells that are proposed again, and what fits them) and the host (sets and what follows); the last for each row.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllm.blocks.fixed import Fixed
from dllm.cache.none import NoCache
from dllm.compose.fitted import Parts
from dllm.constraints.automata import automaton_of
from dllm.constraints.decoding import batch as batches
from dllm.constraints.decoding import reproposals
from dllm.constraints.decoding.batch import ConstrainedBatch
from dllm.constraints.decoding.compiled import CompiledConstraint
from dllm.constraints.decoding.row import ConstrainedRow
from dllm.constraints.row_sets import RowSets
from dllm.constraints.sets import TokenLanguage
from dllm.constraints.tokens import token_automaton
from dllm.constraints.vocabulary import Vocabulary
from dllm.contract.canvas import Canvas, Request
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise
from dllm.loop.forward import Forward
from dllm.loop.proposals import LogitReproposer
from dllm.models.config import ModelConfig
from dllm.models.ids import Ids
from dllm.models.tokenizer import Tokenizer
from dllm.samplers.static import Static
from experiments.bench.languages import END, LANGUAGES, TRAINED, trained
from experiments.support.scripts import refusing

WIDTH, ROWS, BLOCK, PER_TURN = 64, 32, 32, 4


class StandIn:
    """A network that has ``answers`` [B, L] in mind. Its head is a random matrix [V, 64]."""

    triton = streams = False
    device = torch.device("cpu")

    def __init__(self, answers: Tensor, vocab: int) -> None:
        torch.manual_seed(0)
        self.head_weight, self.answers = torch.randn(vocab, WIDTH), answers
        self.config = ModelConfig(
            family="stand-in", width=WIDTH, layers=0, heads=1, kv_heads=1, head_dim=WIDTH, mlp_width=WIDTH, vocab=vocab,
            max_length=answers.shape[1], eps=1e-5, theta=1e4, mask_id=None, eos_id=None, pad_id=None,
        )  # fmt: skip

    def __call__(self, tokens: Tensor, positions: Tensor, memory: object, columns: Tensor | None) -> tuple[Tensor, Any]:
        return self.head_weight[self.answers], columns

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head_weight.T


class Watch:
    """Adds up the seconds of this thread in the calls that it wraps; of nested ones, those of the outer."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    @contextmanager
    def on(self, owner: object, *names: str) -> Iterator[None]:
        """Wrap methods of a class, or functions of a module."""
        plain = {name: getattr(owner, name) for name in names}
        for name, call in plain.items():
            setattr(owner, name, self.around(call))
        yield
        for name, call in plain.items():
            setattr(owner, name, call)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began, self.depth = time.thread_time(), self.depth + 1
            out = call(*args, **options)
            self.depth -= 1
            self.seconds += 0 if self.depth else time.thread_time() - began
            return out

        return timed


@dataclass(frozen=True)
class Bench:
    """One language on a vocabulary. joint: proposals of the best filling."""

    tokenizer: Tokenizer
    language: TokenLanguage
    end: int
    gen_length: int

    def answers(self, text: Callable[[random.Random], str], rows: int) -> Tensor:
        """Random texts of the language [rows, n], ended."""
        draw, found = random.Random(0), list[list[int]]()
        while len(found) < rows:
            ids = self.tokenizer.encode(text(draw))
            if len(ids) <= self.gen_length:
                found.append([*ids, *[self.end] * (self.gen_length - len(ids))])
        return torch.tensor(found)

    def turns(self, model: Any, rows: int, constraints: ConstrainedBatch | None) -> int:
        """Decode; returns the number of turns."""
        mask, parts = model.config.vocab - 1, Parts(Static(per_step=PER_TURN), Fixed(BLOCK), NoCache(), FullLength())
        forward = Forward.of(model, Ids(mask, self.end, ()), parts)
        canvas = Canvas.of([Request.answer([], self.gen_length, mask) for _ in range(rows)], self.end)
        with torch.inference_mode():
            return sum(1 for _ in denoise(canvas, forward, parts, constraints=constraints))

    def constrained(self, rows: int, together: bool) -> ConstrainedBatch:
        compiled = CompiledConstraint(self.language, "bench", False, together, False)
        cells = [-1] * self.gen_length
        return ConstrainedBatch(
            tuple(ConstrainedRow(compiled, 0, [RowSets(self.language, cells)]) for _ in range(rows))
        )

    def line(self, answers: Tensor, vocab: int, together: bool) -> str:
        """Milliseconds a turn, of free rows and of constrained ones, the memo warm as after a first batch."""
        rows, model = len(answers), StandIn(answers, vocab)
        self.turns(model, rows, self.constrained(rows, together))
        began = time.thread_time()
        free = self.turns(model, rows, None)
        plain = time.thread_time() - began
        batch, inside, wide = self.constrained(rows, together), Watch(), Watch()
        with (
            inside.on(ConstrainedBatch, "propose", "filter_commits", "undo_invalid_cuts"),
            wide.on(reproposals, "repropose"),
            wide.on(batches, "maxima"),
            wide.on(LogitReproposer, "logits", "pick"),
            wide.on(CompiledConstraint, "ids"),
        ):
            began = time.thread_time()
            count = self.turns(model, rows, batch)
            whole = time.thread_time() - began
        corrected = sum(row.corrected for row in batch.rows if row) / count / rows
        host = 1000 * (inside.seconds - wide.seconds) / count
        return (
            f"{corrected:9.1f}{1000 * plain / free:10.1f}{1000 * whole / count:10.1f}"
            f"{1000 * wide.seconds / count:12.1f}{host:10.2f}{host / rows:10.3f}"
        )


def measure(name: str, tokenizer: Tokenizer, table: Vocabulary, end: int, options: argparse.Namespace) -> None:
    """Print the lines of a language."""
    constraint, text = LANGUAGES[name]
    language = TokenLanguage(token_automaton(automaton_of(constraint), table), [end])
    bench = Bench(tokenizer, language, end, options.gen_length)
    right = bench.answers(text, max(options.rows))
    wrong = torch.randint(len(table), right.shape, generator=torch.Generator().manual_seed(0))
    for rows in options.rows:
        for kind, answers in (("right", right), ("wrong", wrong)):
            for together in (False, True) if options.joint else (False,):
                head = f"{name:8}{kind + ' joint' * together:>12}{rows:6}"
                print(head + bench.line(answers[:rows], len(table) + 1, together), flush=True)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a checkpoint's folder; by default one is trained")
    parser.add_argument("--languages", nargs="+", default=["order", "json"], choices=LANGUAGES)
    parser.add_argument("--gen-length", type=int, default=256)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, ROWS])
    parser.add_argument("--joint", action="store_true", help="also with joint proposals")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_folder(options.tokenizer or trained(TRAINED))
    end = tokenizer.eos_id or tokenizer.backend.token_to_id(END)
    assert end is not None, "the vocabulary has an id that ends a text"
    table = Vocabulary.of(tokenizer, ends=[end])
    print(f"{len(table):,} tokens, answer {options.gen_length}, blocks of {BLOCK}, load {os.getloadavg()[0]:.1f}")
    print(f"{'language':8}{'proposals':>12}{'rows':>6}{'corrected':>9}{'free':>10}{'with':>10}{'vocabulary':>12}"
          f"{'host':>10}{'a row':>10}")  # fmt: skip
    for name in options.languages:
        measure(name, tokenizer, table, end, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
