"""Training batches for the mini models: fresh items in many wordings, canvases of 16 to 256 tokens, patterns of masks
that decoding meets, and prompts that in two thirds of the rows do not see their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dllm.tasks.mini import tasks
from dllm.tasks.mini.items import Draw, Sample
from experiments.mini.masks import draw_masks, half_decided, mask_at_once
from experiments.mini.tokenizer import CHATML_MODELS, EOS, MASK

# Weights of the tasks: those with many right answers learn slowest (they need the committed tokens).
SHARES = {
    "copy": 0.4, "reverse": 1.0, "sort": 2.6, "shuffle": 2.8, "insert_index": 1.0, "insert_random": 1.7,
    "remove_index": 0.8, "remove_random": 0.9, "replace_index": 0.8, "replace_random": 2.2,
    "latin_square": 1.8, "sudoku": 1.8, "words_to_sentence": 1.0,
    "records": 0.8, "assign": 1.0,
}  # fmt: skip
# Where a task has four times as many wordings, those that come up least are learnt last: with the shares above copying
# was right in 60 of 100 requests after 2,000 steps.
EVEN_SHARES = {
    "copy": 0.6, "reverse": 1.0, "sort": 3.8, "shuffle": 2.8, "insert_index": 1.1, "insert_random": 2.2,
    "remove_index": 1.0, "remove_random": 1.2, "replace_index": 1.0, "replace_random": 2.4,
    "latin_square": 2.0, "sudoku": 1.6, "words_to_sentence": 1.4,
    "records": 0.8, "assign": 1.6,
}  # fmt: skip
# Once most tasks are learnt, more of those that are not.
HARD_SHARES = {
    **EVEN_SHARES,
    "sort": 4.4,
    "shuffle": 3.6,
    "insert_random": 2.6,
    "replace_random": 3.4,
    "records": 1.4,
    "assign": 1.8,
}
TURN = 0.45  # of the run
ALONE = 2 / 3  # of the rows: the prompt's positions do not see the answer's, as under a cache that freezes them
KEPT = 1 / 3  # of the rows: committed tokens do not see later ones; else Latin squares fell from 98 to 34 under dkv
# Canvases are never cut after a window of masks: with 15 of 100 rows cut for 9,000 steps, mini-dream's records rose
# from 66 to 96 of 100 under cache=window, but fell from 90 to 64 in blocks of 8. 15,000 steps uncut gave 92 under it.
EARLIER = 0.03  # of the short conversations have an earlier turn
LARGE, LARGEST = 0.35, (6, 8)  # of the items have that many names: most of what goes wrong goes wrong there
CANVASES = {  # lengths and how often, for short and long tasks; the next that the answer fits into
    False: ((16, 24, 32, 48, 64, 128, 256), (40, 17, 32, 3, 5, 2, 1)),
    True: ((64, 96, 128, 256), (30, 30, 37, 3)),
}
EXTRA_EOS_WEIGHT, EXTRA_EOS_MOST = 0.1, 2.0  # of each token after the first end of text, and of all of them
HARD_MASKS = 12  # of an answer's positions, or an eighth of it
GROUP = 700  # tokens of rows that go through the network together: they fit into a core's cache


@dataclass(frozen=True)
class Mix:
    """What requests a model learns from: the weights of the tasks; and, from the last stage on, the shares of requests
    that are not plain which are worded in further ways (``wordings.SOURCES``), and by what factor fewer are plain.

    at_once: of the rows of tasks with one right answer are masked from the start of a block of BLOCK tokens on, as
    where a forward decodes a block. kept: of the rows, ``Batch.kept``. frozen: of the rows are a block that is half
    decided, in ``Batch.outside``. later: what takes this mix's place from TURN of the run on.
    """

    shares: Mapping[str, float]
    further: Mapping[str, float] = field(default_factory=dict)
    plain: float = 1.0
    at_once: float = 0.0
    kept: float = KEPT
    frozen: float = 0.0
    later: Mix | None = None

    def at(self, progress: float) -> Mix:
        """What holds when ``progress`` (0 to 1) of a run is over."""
        return self.later if self.later is not None and progress >= TURN else self

    def source(self, rng: Random) -> str:
        """Where a request that is not plain is worded from."""
        drawn = rng.random() if self.further else 1.0
        for source, share in self.further.items():
            if drawn < share:
                return source
            drawn -= share
        return "trained"


# With five thousand wordings from the last stage on, a model of 15,000 steps answers strangers' as well as those of
# training, but the tasks themselves at 94.7 of 100; with a tenth of them it has 96, and loses 7 points to strangers
# after nine minutes of all of them. Rows masked from a block's start on took records at 32 tokens a step from 70 to 94.
HARD = Mix(HARD_SHARES, {"many": 0.5, "more": 0.2}, 0.8, at_once=0.4)
# Without frozen rows mini-dream noted in the masks after a block of 8 what was committed in it: under cache=dual
# sentences fell from 93 to 73 of 100, and replace_random under dkv from 87 to 72.
MIXES = {
    "narrow": Mix(SHARES),
    "wide": Mix(EVEN_SHARES, {"more": 0.55}, 0.6, later=HARD),
    "adapted": replace(HARD, kept=1 / 2, frozen=0.15),
}


@dataclass(frozen=True)
class Conversation:
    """A sample with the turns before it."""

    sample: Sample
    earlier: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Batch:
    """tokens [B, L] with masks in place, target, answer positions, masked, weight of the loss, valid: all [B, L].

    alone [B]: the prompt does not see the answer. kept [B]: a committed token does not see those committed after it, in
    the order ``rank`` [B, L], as if a cache kept it. outside [B, L]: columns that do not see what is committed in the
    other columns of the row, those of an open block, as if a cache kept all but the block. tasks: of each row.
    """

    tokens: Tensor
    target: Tensor
    answer: Tensor
    masked: Tensor
    weight: Tensor
    valid: Tensor
    alone: Tensor
    kept: Tensor
    rank: Tensor
    outside: Tensor
    tasks: tuple[str, ...]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return replace(self, **moved(self, device))

    def share(self) -> Tensor:
        """Weight [M] of each masked position in the loss: that of its token over the square root of its row's sum, so
        that an answer of a hundred tokens weighs three times, not ten times, as much as one of ten."""
        weight = self.weight * self.masked
        return (weight / weight.sum(1, keepdim=True).clamp(min=1e-9) ** 0.5)[self.masked]

    def counted(self) -> tuple[Tensor, Tensor]:
        """The row [M] and the weight [M] of each masked position."""
        return self.masked.nonzero(as_tuple=True)[0], self.weight[self.masked]

    def visible(self, shift: int) -> Tensor:
        """Which keys [B, L, L] each query sees. The position that predicts the answer's first token is on its side, and
        what predicts a mask sees everything."""
        side, live, outside = self.answer.clone(), self.masked, self.outside
        if shift:  # what predicts a block's first token is computed with the block
            outside = outside.clone()
            outside[:, :-1] &= self.outside[:, 1:]
            side[:, :-shift] |= self.answer[:, shift:]
            live = self.masked.clone()
            live[:, :-shift] |= self.masked[:, shift:]
        hidden = side[:, None, :] & ~side[:, :, None] & self.alone[:, None, None]
        committed = self.answer & ~self.masked
        later = self.rank[:, None, :] > self.rank[:, :, None]
        hidden |= later & committed[:, None, :] & (committed & ~live & self.kept[:, None])[:, :, None]
        hidden |= (committed & ~self.outside)[:, None, :] & outside[:, :, None]
        return self.valid[:, None, :] & ~hidden


def render(model: str, talk: Conversation) -> str:
    """The chat template by hand (500 times faster than jinja); a test holds it equal to the shipped one."""
    turns = [(role, text) for one in talk.earlier for role, text in (("user", one.prompt), ("assistant", one.answer))]
    turns.append(("user", talk.sample.prompt))
    if model in CHATML_MODELS:
        said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
        return f"{said}<|im_start|>assistant\n"
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    said = "".join(f"{head.format(role)}{text.strip()}<|eot_id|>" for role, text in turns)
    return f"<|startoftext|>{said}{head.format('assistant')}"


@dataclass(frozen=True)
class Stage:
    """What a run sees until ``until`` (0 to 1) of it is over: sizes of items, names, how many requests are plain, how
    often long tasks come up against their share, how many short conversations have an earlier turn, and whether it
    meets what may come late: further wordings, and names with other vectors."""

    until: float
    sizes: tuple[int, int]
    names: str
    plain: float
    long: float
    earlier: float = 0.0
    late: bool = False


# Copying has to be learnt before much else can be, and is learnt from short lists in one wording: with all wordings and
# ways to write a list from the start, four names were copied right in 59 % of their tokens after 1,800 steps. All tasks
# are there from the start: one that came later undid what was learnt (copying from a loss of 0.33 back to 1.4).
STAGES = (
    Stage(0.05, (2, 4), "known", 1.0, 0.2),
    Stage(0.10, (2, 8), "known", 0.5, 0.4),
    Stage(0.20, (2, 8), "mixed", 0.3, 0.6),
    Stage(1.01, (2, 8), "mixed", 0.25, 1.0, EARLIER, late=True),
)


def stage_at(progress: float) -> Stage:
    return next(stage for stage in STAGES if progress < stage.until)


def choose(rng: Random, count: int, progress: float, mix: Mix) -> list[Conversation]:
    """Items of one step."""
    stage, mix, out = stage_at(progress), mix.at(progress), []
    plain = stage.plain * mix.plain if stage.late else stage.plain
    shares = [share * (stage.long if task in tasks.LONG_ANSWERS else 1.0) for task, share in mix.shares.items()]
    for task in rng.choices(list(mix.shares), shares, k=count):
        wording = "plain" if rng.random() < plain else rng.choice(("trained", "trained strewn"))
        if stage.late and wording != "plain":
            wording = wording.replace("trained", mix.source(rng))
        earlier: tuple[Sample, ...] = ()
        if task in tasks.SHORT_ANSWERS and rng.random() < stage.earlier:
            before, turns = Draw(rng, (2, 4), "known", "trained"), rng.choice((1, 1, 1, 2))
            earlier = tuple(tasks.draw(rng.choice(tasks.SHORT_ANSWERS), before, "train") for _ in range(turns))
        sizes = LARGEST if stage.sizes[1] == LARGEST[1] and rng.random() < LARGE else stage.sizes
        out.append(Conversation(tasks.draw(task, Draw(rng, sizes, stage.names, wording), "train"), earlier))
    return out


def encode(tokenizer: Tokenizer, model: str, talks: Sequence[Conversation]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompt ids and answer ids (without EOS) of each conversation."""
    texts = [render(model, talk) for talk in talks] + [talk.sample.answer for talk in talks]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return ids[: len(talks)], ids[len(talks) :]


def structure(tokenizer: Tokenizer) -> Tensor:
    """Which ids [V] carry structure only: brackets, quotes, commas, field names, newlines, EOS."""
    marks = ('["', '", "', '"]', ",", "\n", ".", '[{"', '": "', '": ', ', "', '"}, {"', '"}]', "name", "age", "town")
    ids = {EOS} | {tokenizer.encode(text).ids[0] for text in marks}
    return torch.tensor([index in ids for index in range(tokenizer.get_vocab_size())])


def canvas_for(rng: Random, task: str, answer: int, progress: float) -> int:
    """The length of a row's canvas: as drawn, or the next that the answer and its end fit into; at first the least."""
    if progress < STAGES[0].until:
        return max(12, answer + 1)
    lengths, shares = CANVASES[task in tasks.LONG_ANSWERS]
    drawn = rng.choices(lengths, shares)[0]
    return next(length for length in lengths if length >= max(drawn, answer + 1))


def pack(
    prompts: list[list[int]],
    answers: list[list[int]],
    canvases: list[int],
    masked: Tensor,
    alone: Tensor,
    kept: Tensor,
    rank: Tensor,
    outside: Tensor,
    names: tuple[str, ...],
) -> Batch:
    """Right-padded sequences prompt + answer + EOS up to the canvas, the masks of ``masked`` [B, A] put in."""
    total = max(len(prompt) + canvas for prompt, canvas in zip(prompts, canvases, strict=True))
    target = torch.full((len(prompts), total), EOS)
    hidden, weight = torch.zeros(target.shape, dtype=torch.bool), torch.ones(target.shape)
    answer_at, valid, apart = (torch.zeros_like(hidden) for _ in range(3))
    for row, (prompt, answer, canvas) in enumerate(zip(prompts, answers, canvases, strict=True)):
        start, end = len(prompt), len(prompt) + canvas
        target[row, :start] = torch.tensor(prompt)
        target[row, start : start + len(answer)] = torch.tensor(answer)
        hidden[row, start:end] = masked[row, :canvas]
        answer_at[row, start:end] = True
        apart[row] = outside[row].any()
        apart[row, start:end] = outside[row, :canvas]
        extra = canvas - len(answer) - 1
        weight[row, start + len(answer) + 1 :] = min(EXTRA_EOS_WEIGHT, EXTRA_EOS_MOST / max(extra, 1))
        valid[row, :end] = True
    rank = rank[:, :total]
    tokens = target.masked_fill(hidden, MASK)
    return Batch(tokens, target, answer_at, hidden, weight, valid, alone, kept, rank, apart, names)


def mask_least_expected(batch: Batch, expected: Tensor, rows: int, generator: torch.Generator) -> Batch:
    """The last ``rows`` rows masked where their tokens are least ``expected`` [rows, L]: 1 to HARD_MASKS answer
    positions of each, or an eighth of the canvas."""
    order = expected.masked_fill(~batch.answer[-rows:], torch.inf).argsort(1).argsort(1)
    most = (batch.answer[-rows:].sum(1, keepdim=True) // 8).clamp(min=HARD_MASKS)
    masked = batch.masked.clone()
    share = torch.rand((rows, 1), generator=generator).to(order.device)  # drawn on the CPU: the same on every device
    masked[-rows:] = order < 1 + (share * most).floor()
    masked[-rows:] &= batch.answer[-rows:]
    outside = batch.outside.clone()
    outside[-rows:] = False  # their masks are all over the answer
    return replace(batch, masked=masked, tokens=batch.target.masked_fill(masked, MASK), outside=outside)


def grouped(totals: Sequence[int]) -> list[list[int]]:
    """Rows by length, in groups of at most GROUP tokens, padding counted."""
    groups: list[list[int]] = []
    for row in sorted(range(len(totals)), key=lambda row: (totals[row], row)):
        if not groups or (len(groups[-1]) + 1) * totals[row] > GROUP:
            groups.append([])
        groups[-1].append(row)
    return groups


def seeded(seed: int, step: int) -> tuple[Random, torch.Generator]:
    """What a step draws its items and its masks from."""
    return Random(f"{seed}/{step}"), torch.Generator().manual_seed(seed * 1_000_003 + step)


def rows_of(
    tokenizer: Tokenizer, model: str, rng: Random, count: int, progress: float, mix: Mix
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Tasks, prompt ids and answer ids of a step's rows."""
    talks = choose(rng, count, progress, mix)
    return [talk.sample.task for talk in talks], *encode(tokenizer, model, talks)


def make_batches(
    tokenizer: Tokenizer,
    model: str,
    marks: Tensor,
    count: int,
    progress: float,
    seed: int,
    step: int,
    mix: Mix = MIXES["wide"],
) -> list[Batch]:
    """The groups of rows of a step, a function of the arguments alone, so that a resumed run sees the same data."""
    rng, generator = seeded(seed, step)
    names, prompts, answers = rows_of(tokenizer, model, rng, count, progress, mix)
    canvases = [canvas_for(rng, *pair, progress) for pair in zip(names, map(len, answers), strict=True)]
    padded = torch.tensor([answer + [EOS] * (max(canvases) - len(answer)) for answer in answers])
    masked = draw_masks(padded, torch.tensor(canvases), marks, generator)
    if at_once := mix.at(progress).at_once:
        shares = [0.0 if name in tasks.FREE else at_once for name in names]
        masked = mask_at_once(masked, shares, answers, canvases, generator)
    outside = torch.zeros_like(masked)
    if frozen := mix.at(progress).frozen:
        masked, outside = half_decided(masked, frozen, answers, canvases, generator)
    alone, kept = (torch.rand(count, generator=generator) < share for share in (ALONE, mix.at(progress).kept))
    totals = [len(prompt) + canvas for prompt, canvas in zip(prompts, canvases, strict=True)]
    rank = torch.rand((count, max(totals)), generator=generator)
    out = []
    for rows in grouped(totals):
        rng.shuffle(rows)  # the last ones of a group get harder masks: not always the longest
        at = torch.tensor(rows)
        out.append(
            pack(
                [prompts[row] for row in rows],
                [answers[row] for row in rows],
                [canvases[row] for row in rows],
                masked[at],
                alone[at],
                kept[at],
                rank[at],
                outside[at],
                tuple(names[row] for row in rows),
            )
        )
    return out


def moved(batch: object, device: torch.device) -> dict[str, Any]:
    """The tensors of a batch on a device, by name."""
    return {name: value.to(device) for name, value in vars(batch).items() if isinstance(value, Tensor)}


def digest(seed: int, mix: Mix) -> str:
    """A hash of what the generator draws at points of a run: whatever changes the items changes it."""
    found, points = hashlib.sha256(), (0.0, 0.1, 0.5) if mix.later is None else (0.0, 0.1, 0.3, 0.5)
    for step, progress in enumerate(points):
        for talk in choose(Random(f"{seed}/{step}"), 200, progress, mix):
            said = [(one.prompt, one.answer) for one in (*talk.earlier, talk.sample)]
            found.update(repr(said).encode())
    return found.hexdigest()[:16]


assert all(set(mix.shares) == set(tasks.TASKS) for mix in MIXES.values())
