"""Training: batches that are functions of recipe and step, and a state from which a killed run goes on bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from dllm.models.text.ids import Ids
from experiments.distill.data import Example, sequence
from experiments.distill.recipe import Place, Recipe
from experiments.distill.student import Student
from experiments.support.course import CLIP, Course, learning

TERMS = ("cross_entropy", "entropy", "right")


def steps_of(recipe: Recipe, examples: int) -> int:
    """Steps of the run: given, or whole batches of all epochs."""
    return recipe.steps or (recipe.epochs or 1) * (examples // recipe.batch)


def rate_factor(step: int, steps: int, recipe: Recipe) -> float:
    """Linear warm-up, then constant or half a cosine down to 0."""
    warm = (recipe.warmup or 0.0) * steps
    if step < warm:
        return (step + 1) / (warm + 1)
    if recipe.schedule == "constant":
        return 1.0
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1.0, steps - warm))


def drawn(recipe: Recipe, step: int, examples: int) -> tuple[int, list[int]]:
    """The epoch of a step, and its examples: each epoch is a new permutation, without what fills no whole batch."""
    epoch, at = divmod(step, examples // recipe.batch)
    order = torch.randperm(examples, generator=seeded(recipe.seed, epoch)).tolist()
    return epoch, order[at * recipe.batch : (at + 1) * recipe.batch]


def seeded(*numbers: int) -> torch.Generator:
    """A generator for these numbers, and no others."""
    found = 0
    for number in numbers:
        found = (found * 1_000_003 + number + 1) % 2**62
    return torch.Generator().manual_seed(found)


def pack(
    examples: Sequence[Example], numbers: Sequence[int], epoch: int, recipe: Recipe, ids: Ids
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, target, learnt and valid [2 n, L] of some examples, as ``Student`` takes them. What an example's views
    hide depends on seed, epoch and example alone. Those whose segment is empty are left out, if not all are."""
    rows = []
    for number in numbers:
        whole, one = torch.tensor(sequence(examples[number], recipe.length, ids.eos)), examples[number]
        block = recipe.block_length if recipe.segment == "block" else None
        views = complementary(whole, len(one.prompt), block, ids.placeholder, seeded(recipe.seed, epoch, number))
        rows += [(tokens, whole, learnt) for tokens, learnt in zip(views.tokens, views.loss, strict=True)]
    rows = [row for at, row in enumerate(rows) if bool((rows[at][2] | rows[at ^ 1][2]).any())] or rows[:2]
    longest = max(len(row[0]) for row in rows)
    lengths = torch.tensor([len(row[0]) for row in rows])
    tokens, target, learnt = (
        torch.stack([nn.functional.pad(one, (0, longest - len(one)), value=fill) for one in column])
        for column, fill in zip(zip(*rows, strict=True), (ids.eos, ids.eos, 0), strict=True)
    )
    return tokens, target, learnt, torch.arange(longest) < lengths[:, None]


class Run(Course):
    """Training of one student."""

    def __init__(
        self,
        student: Student,
        examples: Sequence[Example],
        recipe: Recipe,
        place: Place,
        ids: Ids,
        accelerator: Accelerator,
    ) -> None:
        self.examples, self.recipe, self.place, self.ids, self.student = examples, recipe, place, ids, student
        self.steps, weights = steps_of(recipe, len(examples)), list(learning(student).values())
        optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        self.sums = torch.zeros(len(TERMS) + 1, dtype=torch.float64, device=weights[0].device)
        super().__init__(Path(place.out), student, optimizer, accelerator)
        self.wrapped = accelerator.prepare_model(student)

    def advance(self) -> None:
        """One update from ``batch`` examples; each process takes its share, ``micro`` at a time."""
        recipe, processes = self.recipe, self.accelerator.num_processes
        epoch, numbers = drawn(recipe, self.step, len(self.examples))
        mine = numbers[self.accelerator.process_index :: processes]
        groups = list(by_length(mine, self.examples, recipe.micro))
        for at, group in enumerate(groups):
            given = [one.to(self.sums.device) for one in pack(self.examples, group, epoch, recipe, self.ids)]
            waits = nullcontext() if at == len(groups) - 1 else self.accelerator.no_sync(self.wrapped)
            with waits:
                losses, terms = self.wrapped(*given)
                # Of both views of an example; accelerate takes the mean over processes.
                self.accelerator.backward(losses.sum() * processes / recipe.batch)
            self.add(given[2], terms)
        nn.utils.clip_grad_norm_(list(self.learning.values()), CLIP)
        for one in self.optimizer.param_groups:
            one["lr"] = recipe.learning_rate * rate_factor(self.step, self.steps, recipe)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        if self.step % self.place.save_every == 0 or self.step == self.steps:
            self.keep()

    def add(self, learnt: Tensor, terms: Tensor) -> None:
        """Sums over the views that learn something, for the log."""
        counts = learnt.any(1).to(self.sums.dtype)
        self.sums += torch.cat([terms.to(self.sums.dtype) @ counts, counts.sum()[None]])

    def means(self) -> dict[str, float]:
        sums = self.sums.tolist()
        return {name: value / max(1.0, sums[-1]) for name, value in zip(TERMS, sums[:-1], strict=True)}

    def keep(self) -> None:
        """A line of the log with the means since the last one, and the state."""
        self.sums = self.accelerator.reduce(self.sums, "sum")
        self.note(self.means())
        self.sums = torch.zeros_like(self.sums)
        self.save()

    def train(self) -> None:
        """To the end, or to ``stop_at``."""
        until, before = min(self.place.stop_at or self.steps, self.steps), self.step
        with self.bar(self.steps) as tell:
            while self.step < until:
                self.advance()
                tell(self.means())
        if self.step > before and self.step % self.place.save_every and self.step != self.steps:
            self.keep()  # stopped between two states


def by_length(numbers: Sequence[int], examples: Sequence[Example], micro: int) -> Iterator[Sequence[int]]:
    """Groups of ``micro`` examples of like lengths: little padding."""

    def length(number: int) -> tuple[int, int]:
        return len(examples[number].prompt) + examples[number].gen_length, number

    ordered = sorted(numbers, key=length)
    yield from (ordered[at : at + micro] for at in range(0, len(ordered), micro))


SHOWN = {"cross_entropy": "cross entropy, nats", "entropy": "entropy where right, nats", "right": "share right"}


SHARE = (1 - 1e-3) * 0.5 + 1e-3  # of the segment's tokens are masked in the first view, as in the released code


@dataclass(frozen=True)
class Views:
    """tokens [2, L]: the canvas of each view. loss [2, L]: masked positions of the segment, from which it learns."""

    tokens: Tensor
    loss: Tensor


def segment(answer: int, block: int | None, generator: torch.Generator) -> tuple[int, int]:
    """First position of the segment in an answer of that many tokens, and the one after it.

    A block drawn uniformly from all that are complete and the rest after them, which may be empty. block=None: the
    whole answer, as the released code has it for Dream.
    """
    if block is None:
        return 0, answer
    last = answer // block
    drawn = int(torch.randint(last + 1, (), generator=generator))
    return block * drawn, answer if drawn == last else block * (drawn + 1)


def complementary(ids: Tensor, prompt: int, block: int | None, mask_id: int, generator: torch.Generator) -> Views:
    """Two views of a sequence ``ids`` [L] whose first ``prompt`` tokens are the prompt, as decoding in blocks meets it:
    clean before the segment, masked after it. Every position of the segment is masked in exactly one of the two."""
    start, end = (prompt + place for place in segment(len(ids) - prompt, block, generator))
    column = torch.arange(len(ids))
    inside = (column >= start) & (column < end)
    half = (torch.rand(len(ids), generator=generator) < SHARE) & inside
    loss = torch.stack([half, inside & ~half])
    return Views(torch.where(loss | (column >= end), mask_id, ids), loss)
