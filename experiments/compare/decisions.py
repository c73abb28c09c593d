"""Decisions beside decoding under a constraint to the same texts: ``python -m experiments.compare.decisions``.

Questions about held-out items of the mini models: towns, ages and the last name of records, and the first or second of
some names in order (of one token each, or spelt in several, trained on or not). Prints a Markdown table with a line for
each way to read (one where alternatives have one token and all estimators agree) and to decode: the slot under
constraint=choice, or the whole list. NLL and ECE are as read. T is the temperature that fits a third of the items best,
NLL and ECE at T are of the others; they are left out where fewer than 20 of all items are wrong, since such a fit says
nothing. Whole lists are decoded of a third of the items. A second table has the error of an age read as a score.

Exit code 1: where both are printed, ``local`` is less often right than the decode under constraint=choice, by more than
its 95 % interval.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from dllm import Decoder, Model, load
from dllm.constraints import Choice as Among
from dllm.constraints import Constraint, Regex
from dllm.prompts import PrefilledPrompt
from dllm.record.measures import wilson
from dllm.scoring.decisions import Choice, Decision, Score
from dllm.scoring.decisions.calibration import MIN_ERRORS, LabelledScores, best_temperature, quality
from dllm.scoring.decisions.estimators import ESTIMATORS
from dllm.tasks.mini import tasks as mini
from experiments.support import markdown
from experiments.support.held_out import comparison
from experiments.support.markdown import percent
from experiments.support.scripts import refusing

SIZES = (5, 8)  # names of a list


@dataclass(frozen=True)
class Item:
    """One question: what the model is told, what is before and after the slot, the alternatives, the truth."""

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


def records(
    count: int, seed: int, names: str = "known"
) -> list[tuple[list[dict[str, str]], str, list[dict[str, str]]]]:
    """Messages, answer and rows of items of 3 to 5 records."""
    samples = mini.generate("records", seed, count, "test", (3, 5), names)
    return [(sample.messages, sample.answer, json.loads(sample.answer)) for sample in samples]


def towns_of_records(count: int, seed: int) -> Iterator[Item]:
    """The town in the first record, among those of all records of all items."""
    found = records(count, seed)
    towns = tuple(sorted({row["town"] for _, _, rows in found for row in rows}))
    for messages, answer, rows in found:
        before, _, behind = answer.partition(rows[0]["town"])
        yield Item(messages, before, behind, towns, rows[0]["town"])


def ages_of_records(count: int, seed: int) -> Iterator[Item]:
    """The age in the first record, among all from 2 to 99."""
    for messages, answer, rows in records(count, seed):
        age = str(rows[0]["age"])
        before, _, behind = answer.partition(age)
        yield Item(messages, before, behind, tuple(str(n) for n in range(2, 100)), age)


def last_names(count: int, seed: int) -> Iterator[Item]:
    """The spelt name in the last record, among those of the item, with JSON on both sides."""
    for messages, answer, rows in records(count, seed, "spelt"):
        name = rows[-1]["name"]
        before, _, behind = answer.rpartition(name)
        yield Item(messages, before, behind, tuple(sorted({row["name"] for row in rows})), name)


HEADS = ("question, way", "right %", "forwards", "canvases", "NLL", "ECE", "T", "NLL at T", "ECE at T")
SCORE_HEADS = ("age as a score", "mean error of the expected age", "of the likeliest")
# Of names, the masks that hold any list, and whether it is decoded without a form, too. In more masks than those that
# the mini models were trained on they write no list of their own accord.
LISTS = {"known": (32, True), "spelt": (64, False)}


@dataclass(frozen=True)
class Asked:
    """How items are read and decoded. make: items by count and seed. estimators: each has a line. slot: of
    ``DecisionOptions``. lists: names of the whole list that is decoded beside (None: none is). decoded: the slot is
    decoded beside."""

    make: Callable[[int, int], Iterator[Item]]
    estimators: Sequence[str] = ("local",)
    slot: str = "auto"
    lists: str | None = None
    decoded: bool = True


ITEMS = {
    "town of a record": Asked(towns_of_records),
    "age of a record": Asked(ages_of_records, decoded=False),
    "last name of records, spelt": Asked(last_names, ESTIMATORS, "closed", decoded=False),
    "first of the names": Asked(names_in_order, lists="known"),
    "of spelt names": Asked(partial(names_in_order, names="spelt"), ESTIMATORS, lists="spelt"),
    "of spelt names, never seen": Asked(partial(names_in_order, names="unseen"), ESTIMATORS),
}


@dataclass(frozen=True)
class Line:
    """A line of the table. costs: forwards and canvases of a question."""

    label: str
    right: list[float]
    costs: tuple[float, float]
    labelled: Sequence[LabelledScores] = ()

    def __str__(self) -> str:
        costs = (f"{one:.1f}" for one in self.costs)
        return markdown.line((self.label, percent(self.right), *costs, *self.figures()))

    def figures(self) -> list[str]:
        """NLL and ECE, the temperature, and both under it."""
        if not self.labelled:
            return ["-"] * 5
        third, raw = len(self.labelled) // 3, quality(self.labelled)
        found = [f"{raw.nll:.2f}", f"{raw.ece:.2f}"]
        if len(self.right) - sum(self.right) < MIN_ERRORS:
            return [*found, *["-"] * 3]
        temperature = best_temperature(self.labelled[:third])
        fitted = quality(self.labelled[third:], temperature)
        return [*found, *(f"{one:.2f}" for one in (temperature, fitted.nll, fitted.ece))]


def labelled(decision: Decision, values: Sequence[str], truth: str) -> tuple[LabelledScores, float]:
    """An answer with its truth, and 1 where it is right."""
    return LabelledScores(decision.scores.scores, values.index(truth)), float(decision.choice == truth)


def read(model: Model, label: str, items: Sequence[Item], estimator: str, slot: str) -> Line:
    """A line of one estimator."""
    decoder, told, forwards, rows = Decoder(model), [], 0, 0
    for item in items:
        question = Choice(item.values, template=f"{item.before}{{slot}}{item.behind}")
        found = decoder.decide(item.messages, {"q": question}, estimator=estimator, slot=slot)
        told.append(labelled(found["q"], item.values, item.truth))
        forwards, rows = forwards + found.forwards, rows + found.rows
    costs = (forwards / len(items), rows / len(items))
    return Line(f"{label}, {estimator}", [hit for _, hit in told], costs, [one for one, _ in told])


def decoded(model: Model, label: str, items: Sequence[Item]) -> Line:
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
    return Line(f"{label}, decode", right, (forwards / len(items), forwards / len(items)))


def decoded_list(model: Model, label: str, items: Sequence[Item], length: int, regex: bool) -> Line:
    """A line of a decode of the whole list; its first name counts. regex: to lists of these names."""
    decoder, right, forwards = Decoder(model, gen_length=length), [], 0
    for item in items:
        one = f'"({"|".join(map(re.escape, item.values))})"'
        form: Constraint | None = Regex(rf"\[{one}(, {one})*\]") if regex else None
        (result,) = decoder(item.messages, constraints=[form])
        first = re.match(r'\["([^"]*)"', result.text)
        right.append(float(first is not None and first[1] == item.truth))
        forwards += result.nfe
    way = "decode of the list" + (" under a regex" if regex else "")
    return Line(f"{label}, {way}", right, (forwards / len(items), forwards / len(items)))


def lines(model: Model, label: str, asked: Asked, count: int, seed: int) -> Iterator[Line]:
    """All lines of one kind of question."""
    items = list(asked.make(count, seed))
    for estimator in asked.estimators:
        yield read(model, label, items, estimator, asked.slot)
    if asked.decoded:
        yield decoded(model, label, items)
    if asked.lists is not None:
        length, free = LISTS[asked.lists]
        for regex in (False, True) if free else (True,):
            yield decoded_list(model, label, items[: max(len(items) // 3, 1)], length, regex)


def errors_of_scores(model: Model, items: Sequence[Item]) -> str:
    """How far the expected age, and the likeliest, lie from the true one, in years."""
    decoder, found = Decoder(model), []
    for item in items:
        question = Score(item.values, template=f"{item.before}{{slot}}{item.behind}")
        decision = decoder.decide(item.messages, {"q": question})["q"]
        assert decision.value is not None, "ages are numbers"
        found.append((abs(decision.value - int(item.truth)), abs(int(str(decision.choice)) - int(item.truth))))
    expected, likeliest = (fmean(one) for one in zip(*found, strict=True))
    return markdown.line((model.name, f"{expected:.2f}", f"{likeliest:.2f}"))


def worse(found: Sequence[Line], label: str) -> bool:
    """Whether local is less often right than the decode under constraint=choice, beyond its interval."""
    by_way = {line.label.removeprefix(f"{label}, "): line.right for line in found}
    if "decode" not in by_way:
        return False
    return wilson(sum(by_way["local"]), len(by_way["local"]))[1] < fmean(by_way["decode"])


@refusing
def main(arguments: list[str] | None = None) -> int:
    given = comparison(__doc__, 120, "items per question").parse_args(arguments)
    scores, behind = [], list[str]()
    for model in map(load, given.models):
        print(f"### {model.name}, decided and decoded\n\n{markdown.head(HEADS)}", flush=True)
        for label, asked in ITEMS.items():
            found = []
            for line in lines(model, label, asked, given.count, given.seed):
                print(line, flush=True)
                found.append(line)
            behind += [f"{model.name}: {label}"] * worse(found, label)
        scores.append(errors_of_scores(model, list(ages_of_records(given.count, given.seed))))
        print()
    print("\n".join(["### Ages as scores\n", markdown.head(SCORE_HEADS), *scores]))
    print("\n".join(f"local is less often right than the decode: {one}" for one in behind), file=sys.stderr, end="")
    return int(bool(behind))


if __name__ == "__main__":
    sys.exit(main())
