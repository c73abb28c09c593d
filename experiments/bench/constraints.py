"""Measure what constraints cost on the host: ``python -m experiments.bench.constraints``.

The vocabulary has 126,000 entries: a byte-level BPE trained once from the Python files of this environment (half a
minute; kept in outputs/). For each language it prints the states and classes, the seconds to compile it (its bytes,
then its tokens; and read from its file), and the milliseconds of a turn for a row, in thread time: the sets of all open
masks, whether four tokens go together, and their commit. Rows hold random texts of the language, ended, and open their
tokens in a random order, block by block. The first row finds nothing remembered; a batch has 32 others.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dllm.constraints.automata import automaton_of
from dllm.constraints.decoding.requests import check
from dllm.constraints.row_sets import RowSets
from dllm.constraints.sets import MASK, TokenLanguage
from dllm.constraints.store import Store
from dllm.constraints.tokens import token_automaton
from dllm.constraints.vocabulary import Vocabulary
from dllm.models.text.tokenizer import Tokenizer
from experiments.bench.languages import END, LANGUAGES, TRAINED, trained
from experiments.support import markdown
from experiments.support.scripts import refusing

ROWS, AT_ONCE, BLOCK = 32, 4, 32


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of this thread, and what the call returns."""
    begin = time.thread_time()
    value = call()
    return time.thread_time() - begin, value


def turns(language: TokenLanguage, answer: Sequence[int], draw: random.Random) -> Iterator[float]:
    """Seconds of every turn of a row that becomes ``answer``, and of its start."""
    seconds, row = timed(lambda: RowSets(language, [MASK] * len(answer)))
    seconds += timed(lambda: check(row, "bench"))[0]
    for begin in range(0, len(answer), BLOCK):
        left = list(range(begin, min(begin + BLOCK, len(answer))))
        while left:
            chosen = draw.sample(left, min(AT_ONCE, len(left)))
            ids = [answer[at] for at in chosen]
            begun = time.thread_time()
            row.allowed(left)
            admitted = row.admit(chosen, ids)
            row.write(chosen, ids)
            spent = time.thread_time() - begun
            assert all(admitted), "a text of the language was refused"
            yield seconds + spent
            seconds, left = 0.0, [at for at in left if at not in chosen]


def measure(name: str, tokenizer: Tokenizer, table: Vocabulary, end: int, gen_length: int) -> list[str]:
    """The cells of a line of the table."""
    constraint, text = LANGUAGES[name]
    bytes_seconds, automaton = timed(lambda: automaton_of(constraint))
    seconds, tokens = timed(lambda: token_automaton(automaton, table))
    with TemporaryDirectory() as folder:
        Store(Path(folder)).get(name, table, lambda: automaton)
        read = timed(lambda: Store(Path(folder)).get(name, table, lambda: automaton))[0]
    draw, rows, language = random.Random(0), list[list[int]](), TokenLanguage(tokens, [end])
    while len(rows) <= ROWS:
        ids = tokenizer.encode(text(draw))
        if len(ids) <= gen_length:
            rows.append([*ids, *[end] * (gen_length - len(ids))])
    first, *others = [list(turns(language, row, draw)) for row in rows]
    later = 1000 * np.array([spent for row in others for spent in row])
    batch = 1000 * np.array([sum(spent) for spent in zip(*others, strict=True)])
    spans = (1000 * np.array(first), later, batch)
    compiled = (f"{seconds:.3f}" for seconds in (bytes_seconds, seconds, read))
    return [
        name,
        str(tokens.states),
        str(tokens.size),
        *compiled,
        *(f"{one:.2f}" for span in spans for one in (span.mean(), span.max())),
    ]


@refusing
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="a checkpoint's folder; by default one is trained")
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES), choices=LANGUAGES)
    parser.add_argument("--gen-length", type=int, default=256)
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_folder(options.tokenizer or trained(TRAINED))
    end = tokenizer.backend.token_to_id(END)
    assert end is not None, "the vocabulary has the id that ends a text"
    seconds, table = timed(lambda: Vocabulary.of(tokenizer, ends=[end]))
    seconds += timed(lambda: (table.trie, table.fingerprint))[0]
    size, length = len(table), options.gen_length
    print(f"{size:,} tokens, tables {seconds:.2f} s; answer {length}, blocks of {BLOCK}, load {os.getloadavg()[0]:.1f}")
    names = (f"{when}, {kind}" for when in ("first row ms", "later rows ms", "32 rows ms") for kind in ("mean", "most"))
    print(markdown.head(("language", "states", "classes", "bytes s", "tokens s", "file s", *names)))
    for name in options.languages:
        print(markdown.line(measure(name, tokenizer, table, end, length)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
