"""Questions to distil on, and how they become token ids before any weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import count as count_from
from pathlib import Path
from random import Random
from typing import Any

from dllm.common.coerce import is_whole
from dllm.common.errors import UserError, in_words
from dllm.models.text.ids import Ids
from dllm.prompts import Prompt, Prompts
from dllm.tasks.mini import tasks
from dllm.tasks.mini.items import Sample
from experiments.distill.recipe import Recipe

NAMES = {"prompt": ("prompt", "question", "messages", "tokens"), "response": ("response", "llm_response")}


@dataclass(frozen=True)
class Question:
    """A prompt, and what is known of its answer. where: for messages. response: given, so it is not decoded.
    judge: the score of an answer, 0 to 1 (None: unknown)."""

    where: str
    prompt: Prompt
    gen_length: int
    response: str | None = None
    judge: Callable[[str], float] | None = None


@dataclass(frozen=True)
class Example:
    """A question in token ids. answer: filled with end-of-text tokens to the canvas (None: the teacher's to give)."""

    prompt: list[int]
    gen_length: int
    answer: list[int] | None = None
    judge: Callable[[str], float] | None = None


@dataclass(frozen=True)
class Data:
    """Examples to learn from, and those that both measurements decode."""

    train: list[Example]
    held: list[Example]

    @property
    def digest(self) -> str:
        """A hash of all prompts and given answers."""
        known = [(one.prompt, one.gen_length, one.answer) for one in (*self.train, *self.held)]
        return sha256(repr((known, len(self.train))).encode()).hexdigest()[:16]

    @staticmethod
    def of(recipe: Recipe, prompts: Prompts) -> Data:
        """Raises UserError for data that cannot be read or do not fit the model."""
        if recipe.data == "mini":
            splits = (("train", recipe.count), ("test", recipe.held_out))
            train, held = ([*items(split, count, recipe.seed)] for split, count in splits)
        else:
            train, held = divided(read_file(Path(recipe.data), recipe.gen_length), recipe)
        found = Data(*([encoded(one, prompts, recipe) for one in part] for part in (train, held)))
        if recipe.batch > len(found.train):
            raise UserError(f"batch={recipe.batch} exceeds the {len(found.train)} examples to learn from. Lower it.")
        return found


def divided(questions: Sequence[Question], recipe: Recipe) -> tuple[list[Question], list[Question]]:
    """Those to learn from, and those kept for the measurement, drawn by the seed. Raises UserError if none is left."""
    if recipe.held_out >= len(questions):
        raise UserError(
            f"held_out={recipe.held_out} leaves nothing to learn from: data={recipe.data!r} has {len(questions)} "
            "questions. Lower it."
        )
    order = list(questions)
    Random(recipe.seed).shuffle(order)
    return order[recipe.held_out :], order[: recipe.held_out]


def read_file(file: Path, gen_length: int) -> list[Question]:
    """The lines of a JSON-lines file. Raises UserError, which names the line, for what is not a question."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"data={str(file)!r} cannot be read ({in_words(error)})"
        raise UserError(f"{problem}. Give a JSON-lines file, or data=mini.") from error
    return [
        question(line, f"data={str(file)!r}, line {number}", gen_length)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def question(line: str, where: str, gen_length: int) -> Question:
    rule = 'must be {"prompt": TEXT}, {"messages": [...]} or {"tokens": [...]} and, where it is known, "response": TEXT'
    try:
        content = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}); it {rule}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{where} {rule}.")
    prompt: Any
    response: Any
    prompt, response = (next((content[name] for name in names if name in content), None) for names in NAMES.values())
    if not is_prompt(prompt) or not (response is None or isinstance(response, str)):
        raise UserError(f"{where} {rule}.")
    if response is not None and not response.strip():
        raise UserError(
            f"{where} has an empty response, from which there is nothing to learn. Drop the line, or leave out its "
            "response: then the teacher answers."
        )
    return Question(where, prompt, gen_length, response)


def is_prompt(value: Any) -> bool:
    """A text, chat messages, or token ids."""
    if isinstance(value, str):
        return bool(value.strip())
    return (
        isinstance(value, list)
        and bool(value)
        and (
            all(map(is_whole, value))
            or all(
                isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("role", "content"))
                for one in value
            )
        )
    )


def encoded(one: Question, prompts: Prompts, recipe: Recipe) -> Example:
    """Raises UserError for a prompt that is too long for the model, or that leaves no room for an answer."""
    try:
        request = replace(prompts, gen_length=one.gen_length).request(one.prompt)
    except UserError as error:
        raise UserError(f"{one.where}: {error}") from None
    prompt = list(request.tokens[: request.answer_start])
    if recipe.length is not None and len(prompt) >= recipe.length:
        raise UserError(
            f"{one.where} has a prompt of {len(prompt)} tokens, and length={recipe.length} leaves none for its "
            "response. Raise length, or drop the line."
        )
    answer = None if one.response is None else ended(prompts.ids_of(one.response), one.gen_length, prompts.ids)
    return Example(prompt, one.gen_length, answer, one.judge)


def ended(tokens: Sequence[int], length: int, ids: Ids) -> list[int]:
    """An answer up to its first end, and end-of-text tokens up to the canvas's; what exceeds the canvas is cut."""
    stop = next((place for place, token in enumerate(tokens) if token in (ids.eos, *ids.stops)), len(tokens))
    return ([*tokens[: stop + 1], *[ids.eos] * length])[:length]


def sequence(example: Example, length: int | None, eos: int) -> list[int]:
    """Prompt and answer, cut or filled to ``length`` (None: as they are). AssertionError for an example without one."""
    assert example.answer is not None, "the teacher has not answered"
    whole = [*example.prompt, *example.answer]
    return whole if length is None else [*whole, *[eos] * length][:length]


def items(split: str, count: int, seed: int) -> Iterator[Question]:
    """``count`` items of every task, from ``split`` (``train`` or ``test``)."""
    number = count_from()
    for task in tasks.TASKS:
        for sample in tasks.generate(task, seed + 2000, count, split):
            where, length = f"{task} {next(number)}", tasks.longest(task)
            yield Question(where, sample.messages, length, judge=partial(score, sample))


def score(sample: Sample, text: str) -> float:
    return tasks.score(sample, text)["score"]
