"""Free against constrained answers of the demo models: ``python -m experiments.compare.constrained_tasks``.

For each task, and for 1, 4 and 32 tokens committed in each forward, most confident first, in blocks of 32: the share of
answers that the constraint allows, the share that is right, and the forwards of an answer. The constraint of an item is
the set of its right answers (shuffle, replace_random, latin_square), or what any right answer looks like (records: a
list of objects with three fields each). Prints a Markdown table for each model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from statistics import fmean
from typing import Any

from dllm import Decoder, load
from dllm.constraints import Choice, Constraint, JsonSchema, automaton_of
from dllm.models.bundle import Model
from dllm.parts.samplers.static import Static
from dllm.record.results import Result
from dllm.tasks.mini import tasks as suite
from dllm.tasks.parallelbench.scoring import write_list
from experiments.support import markdown
from experiments.support.held_out import comparison
from experiments.support.scripts import refusing

TOKENS_PER_STEP = (1, 4, 32)
BLOCK, SIZES = 32, (3, 5)
FOUND = ("valid %", "right %", "forwards")
HEADS = ("task, tokens a step", *(f"{kind}: {what}" for kind in ("free", "constrained") for what in FOUND))
RECORD = {
    "type": "object",
    "required": ["name", "age", "town"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "town": {"type": "string"}},
}


def shuffles(truth: dict[str, Any]) -> Constraint:
    """Every other order of the names."""
    given = truth["input"]
    return Choice([write_list(order) for order in permutations(given) if list(order) != given])


def replacements(truth: dict[str, Any]) -> Constraint:
    """The word in any place."""
    given, word = truth["input"], truth["word"]
    return Choice([write_list([*given[:at], word, *given[at + 1 :]]) for at in range(len(given))])


def squares(truth: dict[str, Any]) -> Constraint:
    """The 576 squares of four symbols in which no row and no column repeats one."""
    rows = list(permutations(truth["symbols"]))
    return Choice(
        [
            "\n".join(",".join(row) for row in square)
            for square in product(rows, repeat=4)
            if all(len(set(column)) == 4 for column in zip(*square, strict=True))
        ]
    )


def records(truth: dict[str, Any]) -> Constraint:
    """As many objects as there are, with their fields."""
    count = len(truth["records"])
    return JsonSchema({"type": "array", "items": RECORD, "minItems": count, "maxItems": count}, whitespace="one")


CONSTRAINTS: dict[str, Callable[[dict[str, Any]], Constraint]] = {
    "records": records,
    "shuffle": shuffles,
    "replace_random": replacements,
    "latin_square": squares,
}


def cells(results: Sequence[Result], samples: Sequence[Any], constraints: Sequence[Constraint]) -> Iterator[str]:
    """Valid answers and right ones in percent, and the mean of forwards."""
    texts = [result.text for result in results]
    valid = [automaton_of(one).accepts(text.encode()) for one, text in zip(constraints, texts, strict=True)]
    right = [suite.judge(one.task, one.truth, text)["score"] for one, text in zip(samples, texts, strict=True)]
    yield f"{100 * fmean(valid):.0f}"
    yield f"{100 * fmean(right):.0f}"
    yield f"{fmean(result.nfe for result in results):.1f}"


def lines(model: Model, task: str, count: int, seed: int) -> Iterator[str]:
    """The lines of a task, one for each number of tokens in a step."""
    samples = suite.generate(task, seed, count, "test", SIZES)
    constraints = [CONSTRAINTS[task](sample.truth) for sample in samples]
    assert model.tokenizer is not None, "demo models have a tokenizer"
    longest = 1 + max(len(model.tokenizer.encode(sample.answer)) for sample in samples)
    for k in TOKENS_PER_STEP:
        length = BLOCK * -(-longest // BLOCK)
        decoder = Decoder(model, Static(per_step=k), gen_length=length, batch_size=min(count, 32))
        prompts: list[Any] = [sample.messages for sample in samples]
        found = [f"{task}, {k}"]
        for each in (None, constraints):
            found += cells(decoder(prompts, constraints=each), samples, constraints)
        yield markdown.line(found)


@refusing
def main(arguments: Sequence[str] | None = None) -> int:
    parser = comparison(__doc__, 48, "items per task")
    parser.add_argument("--tasks", nargs="+", default=list(CONSTRAINTS), choices=CONSTRAINTS)
    options = parser.parse_args(arguments)
    for model in map(load, options.models):
        print(f"### {model.name}, free and constrained\n\n{markdown.head(HEADS)}", flush=True)
        for task in options.tasks:
            for line in lines(model, task, options.count, options.seed):
                print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
