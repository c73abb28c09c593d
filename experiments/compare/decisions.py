"""Decisions beside decoding under a constraint to the same texts: ``python -m experiments.compare.decisions``.

Questions about held-out items of the mini models: the first of some names in order (of one token each, or spelt in
several, trained on or not), and the town in the first of some records. Prints a Markdown table with a line for each
estimator (one where alternatives have one token and all agree) and one for the decode. NLL and ECE are as read; T is
the temperature that fits them best, with the NLL and ECE under it, of two thirds of the items where it was fitted on
the others. Where all is right, T says nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dllm import Decoder, Model, load
from dllm.constraints import Choice as Among
from dllm.decisions import Choice
from dllm.decisions.calibration import Labelled, best_temperature, quality
from dllm.decisions.estimators import ESTIMATORS
from dllm.prompts import PrefilledPrompt
from dllm.tasks.mini import tasks as mini
from experiments.support import markdown
from experiments.support.markdown import percent
from experiments.support.scripts import counted, refusing

HEADS = ("question, way", "right %", "forwards", "canvases", "NLL", "ECE", "T", "NLL at T", "ECE at T")
SIZES = (5, 8)


@dataclass(frozen=True)
class Item:
    """One question: what the model is told, what stands before and behind the slot, the alternatives, the truth."""

    messages: list[dict[str, str]]
    before: str
    behind: str
    values: tuple[str, ...]
    truth: str


def names_in_order(count: int, seed: int, names: str = "known") -> Iterator[Item]:
    """The first of 5 to 8 names, sorted."""
    for sample in mini.generate("sort", seed, count, "test", SIZES, names):
        found = json.loads(sample.answer)
        yield Item(sample.messages, '["', '", "', tuple(sample.truth["input"]), found[0])


def towns_of_records(count: int, seed: int) -> Iterator[Item]:
    """The town in the first record, among those of all records of all items."""
    samples = mini.generate("records", seed, count, "test", (3, 5))
    rows = [json.loads(sample.answer) for sample in samples]
    towns = tuple(sorted({row["town"] for one in rows for row in one}))
    for sample, one in zip(samples, rows, strict=True):
        before, _, behind = sample.answer.partition(one[0]["town"])
        yield Item(sample.messages, before, behind, towns, one[0]["town"])


# Each with whether alternatives have several tokens.
QUESTIONS: dict[str, tuple[Callable[[int, int], Iterator[Item]], bool]] = {
    "town of a record": (towns_of_records, False), "first of the names": (names_in_order, False),
    "of spelt names": (partial(names_in_order, names="spelt"), True),
    "of spelt names, never seen": (partial(names_in_order, names="unseen"), True),
}  # fmt: skip


def read(model: Model, label: str, items: Sequence[Item], estimator: str) -> str:
    """A line of one estimator."""
    decoder, labelled, right, forwards, rows = Decoder(model), [], [], 0, 0
    for item in items:
        question = Choice(item.values, template=f"{item.before}{{slot}}{item.behind}")
        found = decoder.decide(item.messages, {"q": question}, estimator=estimator)
        labelled.append(Labelled(found["q"].scores.scores, item.values.index(item.truth)))
        right.append(float(found["q"].choice == item.truth))
        forwards, rows = forwards + found.forwards, rows + found.rows
    third = len(items) // 3
    raw, temperature = quality(labelled), best_temperature(labelled[:third])
    fitted = quality(labelled[third:], temperature)
    figures = (raw.nll, raw.ece, temperature, fitted.nll, fitted.ece)
    costs = (f"{forwards / len(items):.1f}", f"{rows / len(items):.1f}")
    return markdown.line((f"{label}, {estimator}", percent(right), *costs, *(f"{one:.2f}" for one in figures)))


def decoded(model: Model, label: str, items: Sequence[Item]) -> str:
    """A line of a decode of the slot, under a constraint to the same texts."""
    assert model.tokenizer is not None, "demo models have a tokenizer"
    right, forwards = [], 0
    for item in items:
        longest = max(len(model.tokenizer.encode(value)) for value in item.values)
        decoder = Decoder(model, gen_length=longest + 1)
        head = decoder.prompts.encode(PrefilledPrompt(item.messages, item.before))
        (result,) = decoder(head, constraints=[Among(item.values)])
        right.append(float(result.text == item.truth))
        forwards += result.nfe
    costs = (f"{forwards / len(items):.1f}", f"{forwards / len(items):.1f}")
    return markdown.line((f"{label}, decode", percent(right), *costs, *["-"] * 5))


@refusing
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["mini-llada", "mini-dream"], help="names or folders")
    parser.add_argument("--count", type=counted, default=120, help="items per question")
    parser.add_argument("--seed", type=int, default=1, help="seed of the held-out items")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for model in map(load, given.models):
        print(f"### {model.name}, decided and decoded\n\n{markdown.head(HEADS)}", flush=True)
        for label, (make, several) in QUESTIONS.items():
            items = list(make(given.count, given.seed))
            for estimator in ESTIMATORS if several else ESTIMATORS[:1]:
                print(read(model, label, items, estimator), flush=True)
            print(decoded(model, label, items), flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
