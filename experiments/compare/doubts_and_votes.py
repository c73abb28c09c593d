"""Guidance against doubted tokens, and votes of block lengths, on held-out items of the mini models:
``python -m experiments.compare.doubts_and_votes``.

Prints two Markdown tables per model. Members of a vote commit two tokens a forward, as HEX has it, and are elected by
the rules of ``task.vote``; beside it, as many samples of one schedule vote.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from dllm import Decoder, Model, Result, load, part
from dllm.app.runs.block_votes import VOTE_RULES, Ballot, elected, first_likelihoods
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.items import Sample
from experiments.support import markdown
from experiments.support.held_out import answered, comparison
from experiments.support.scripts import refusing

LENGTH, BATCH = 32, 52
MEMBERS = (2, 4, 8, 16, 32)  # block lengths that vote: five, as published
WARMTH = 0.5  # temperature of samples of one schedule
GUIDED: dict[str, dict[str, Any]] = {
    "": {},
    ", against the prompt": {"guidance": 1.0},
    ", against doubted tokens": {"guidance": 1.0, "guidance_against": "doubted", "guidance_ratio": 0.3},
}
RULES: dict[str, Any] = {
    "confidence": "confidence", "static, two a forward": part("sampler", "static", steps=LENGTH // 2),
}  # fmt: skip
HEADS = ("score", "of many right answers", "turns", "query rows")
Found = tuple[list[Result], list[float]]


def decoder_of(model: Model, rule: str, block_length: int, **sampling: Any) -> Decoder:
    blocks = part("blocks", "fixed", block_length=block_length)
    return Decoder(model, RULES[rule], blocks, "none", "none", gen_length=LENGTH, batch_size=BATCH, **sampling)


def cells(items: Sequence[Sample], right: Sequence[float], members: Sequence[Found]) -> tuple[str, ...]:
    """Scores of ``items``, and what the answers that they took cost together."""
    free = [one for one, item in zip(right, items, strict=True) if item.task in mini.FREE]
    turns, columns = ([[getattr(row, name) for row in rows] for rows, _ in members] for name in ("nfe", "query_tokens"))
    return (markdown.percent(right), f"{100 * fmean(free):.0f}", f"{sum(map(fmean, turns)):.1f}",
            f"{sum(map(fmean, columns)):.0f}")  # fmt: skip


def guided(model: Model, items: Sequence[Sample]) -> Iterator[tuple[str, ...]]:
    for rule in RULES:
        for name, sampling in GUIDED.items():
            found = answered(decoder_of(model, rule, LENGTH, **sampling), items)
            yield rule + name, *cells(items, found[1], [found])


def voted(model: Model, items: Sequence[Sample]) -> Iterator[tuple[str, ...]]:
    rule = "static, two a forward"
    members = list[Found]()
    for length in MEMBERS:
        members.append(answered(decoder_of(model, rule, length), items))
        yield f"blocks of {length}", *cells(items, members[-1][1], members[-1:])
    said = ballots(model, items, members)
    for name in VOTE_RULES:
        yield f"vote of these, {name}", *cells(items, elections(said, members, name), members)
    decoder = decoder_of(model, rule, MEMBERS[2], temperature=WARMTH)
    samples = [answered(decoder, items, seed=number * len(items)) for number in range(len(MEMBERS))]
    yield f"blocks of {MEMBERS[2]}, temperature {WARMTH}", *cells(items, samples[0][1], samples[:1])
    right = elections(ballots(model, items, samples), samples, "frequency")
    yield "vote of five such samples", *cells(items, right, samples)


def ballots(model: Model, items: Sequence[Sample], members: Sequence[Found]) -> list[list[Ballot]]:
    """What the members say of each item."""
    decoder, said = Decoder(model, gen_length=LENGTH), list[list[Ballot]]()
    for at, item in enumerate(items):
        rows = [rows[at] for rows, _ in members]
        likely = first_likelihoods(model, decoder.request(item.messages), [row.canvas for row in rows])
        said.append([Ballot(row.text.strip() or None, one) for row, one in zip(rows, likely, strict=True)])
    return said


def elections(said: Sequence[Sequence[Ballot]], members: Sequence[Found], rule: str) -> list[float]:
    """The score of what is elected for each item."""
    winners = [elected(one, rule) for one in said]
    return [0.0 if winner is None else members[winner][1][at] for at, winner in enumerate(winners)]


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = comparison(__doc__, 16, "items of each of the 13 tasks with short answers")
    parser.set_defaults(seed=42)
    given = parser.parse_args(arguments)
    for name in given.models:
        model = load(name)
        items = [item for task in mini.SHORT_ANSWERS for item in mini.generate(task, given.seed, given.count)]
        heads = ("decode", *HEADS)
        print(f"### {name}, {len(items)} items: guidance\n\n{markdown.table(heads, guided(model, items))}\n")
        print(f"### {name}, {len(items)} items: votes\n\n{markdown.table(heads, voted(model, items))}\n",
              flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
