"""What a rule does when it is tried on made-up scores: for what its class does not say of itself.

Only its choices tell a rule that ranks by confidence from one that does not, and a flag that a new class forgets would
be silent. So a rule plays a few rows of a made-up answer. Every number that it may read is made by itself, so that one
that goes by one of them is not taken for one that goes by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dllm.common.rowwise import Owner, update_rows
from dllm.contract import BlockState, Scores, State, Step, View
from dllm.contract.attention_weights import AttentionWeights
from dllm.contract.canvas import Canvas, Request
from dllm.contract.logits import Logits, Lookup
from dllm.contract.shapes import Shapes
from dllm.contract.traits import BlocksTraits, SamplerTraits, Schedule
from dllm.kernels.row_statistics import ROW_STATISTICS

_ROWS, _PROMPT, _VOCAB, _TURNS = 3, 2, 16, 24
_LENGTH = 20  # more than a gate of 16 columns is wide
_MASK = _VOCAB - 1


class Player(Protocol):
    """What a trial asks of a rule (``dllm.samplers.base.Sampler``)."""

    @property
    def traits(self) -> SamplerTraits: ...

    def start(self, canvas: Canvas, blocks: Schedule) -> State: ...

    def propose(self, view: View, state: State) -> Step: ...


@dataclass(frozen=True)
class TrialDraw:
    """How scores are made."""

    sunk: bool = False  # a third of the confidences are -1, as of ends of text under ``sampling.eos_last``
    scale: float = 1.0  # of all confidences
    turn: int = 0  # the number of the first turn, by which rules draw their noise
    steady: bool = False  # every turn has the same scores, so that a rule which waits for calm finds it


class OneBlock:
    """The schedule of a trial: the answer is one block."""

    traits = BlocksTraits(slides=False, rolls_back=False)
    fixed_length: int | None = _LENGTH
    per_request: tuple[str, ...] = ()

    def count(self, canvas: Canvas) -> Tensor:
        return torch.ones_like(canvas.start)

    def widest(self, length: int) -> int:
        return length


def played(rule: Player, made: TrialDraw = TrialDraw()) -> Iterator[tuple[View, Step]]:  # noqa: B008  frozen
    """What the rule sees and does in every turn, until nothing is left or it offers several candidates."""
    requests = [Request.answer([0] * _PROMPT, _LENGTH, _MASK, row) for row in range(_ROWS)]
    canvas = Canvas.of([replace(request, param_index=0) for request in requests], 0)
    blocks, owner = one_block(canvas, made.turn, rule.traits.lookahead), Owner.single(_ROWS, canvas.start.device)
    state, noise = rule.start(canvas, OneBlock()), torch.Generator().manual_seed(0)
    for _ in range(_TURNS):
        blocks, noise = blocks.after_forward(), torch.Generator().manual_seed(0) if made.steady else noise
        view = View.of(canvas, made_up_scores(canvas, made, noise), blocks, None, owner, rule.traits.edits)
        step = rule.propose(view, state)
        yield view, step
        tried = step.owner.per_candidate(canvas).remask(step.remask, _MASK)
        canvas = step.owner.per_row(tried.commit(step.written, step.tokens))
        if not step.owner.is_single or not canvas.masked.any():
            return
        state = update_rows(view.active, state | step.state, state)


def one_block(canvas: Canvas, turn: int, lookahead: int) -> BlockState:
    """The rows' one block before its first forward."""
    zero, inside = torch.zeros_like(canvas.start), canvas.undecided
    return BlockState(
        begin=canvas.start, end=canvas.end, open_end=canvas.end, index=zero, masks=inside.sum(1), forwards=zero,
        turn=zero + turn, done=canvas.shortened, host_wait=zero, active=~canvas.shortened,
        in_block=inside, in_open=inside, params={},
        lookahead=lookahead, alone=not lookahead, shapes=Shapes(),
    )  # fmt: skip


def made_up_scores(canvas: Canvas, made: TrialDraw, noise: torch.Generator) -> Scores:
    """Scores of every position of the answer, all of them drawn."""
    shape, scored = tuple(canvas.tokens.shape), canvas.valid & ~canvas.given
    chance = {name: torch.rand(shape, generator=noise, dtype=torch.float64) for name in ("confidence", *ROW_STATISTICS)}
    beside = torch.rand(2, *shape, generator=noise, dtype=torch.float64).log().unbind()
    sinks = torch.rand(shape, generator=noise) < 1 / 3
    confidence = made.scale * chance.pop("confidence") ** 0.25  # a third of them reach 0.9
    logits = Logits(torch.randn(*shape, _VOCAB, generator=noise), canvas.positions)
    weights = torch.rand(shape[0], shape[1], shape[1], generator=noise, dtype=torch.float64)
    token = torch.randint(0, _MASK, shape, generator=noise)
    chance["likeliest"] = token
    return Scores(
        scored, token, confidence.masked_fill(sinks & made.sunk, -1.0), scored,
        chance | dict(zip(("current", "shadow"), beside, strict=True)), logits,
        Lookup(logits.columns, logits.values, lambda source, ids: source.gather(-1, ids)),
        attention=AttentionWeights(canvas.positions, weights, weights.mean(1)),
    )  # fmt: skip


def tried(rule: Player, made: TrialDraw) -> list[tuple[View, Step]] | None:
    """What the rule does, on changing scores and then on steady ones; None where it cannot be tried: it wants another
    prompt, or files."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(made.turn)
            return [*played(rule, made), *played(rule, replace(made, steady=True))]
    except Exception:  # whatever a rule raises that made-up scores do not suit
        return None


def goes_by(rule: Player, name: str | None) -> bool:
    """Whether the rule commits the first of the open positions, by confidence (name None, the largest first) or by a
    statistic (the smallest first), however many it takes."""
    turns = tried(rule, TrialDraw())
    if not turns or not all(step.owner.is_single for _, step in turns):
        return False
    return all(_first(view.scores.confidence if name is None else -view.scores.statistic(name), view.open, step)
               for view, step in turns)  # fmt: skip


def _first(rate: Tensor, open_: Tensor, step: Step) -> bool:
    taken = torch.where(step.commit, rate, torch.inf).amin(1)
    return bool((torch.where(open_ & ~step.commit, rate, -torch.inf).amax(1) <= taken).all())


def puts_last(rule: Player) -> bool:
    """Whether the rule commits a position of confidence -1 only when no other is open."""
    turns = tried(rule, TrialDraw(sunk=True))
    return bool(turns) and all(_last(view.scores.confidence < 0, view.open, step) for view, step in turns or ())


def _last(sunk: Tensor, open_: Tensor, step: Step) -> bool:
    early = (step.commit & step.owner.per_candidate(sunk)).any(1)
    return not bool((early & (step.owner.per_candidate(open_ & ~sunk) & ~step.commit).any(1)).any())


def repeats_itself(rule: Player) -> bool:
    """Whether the same scores give the same step of a row, whatever the number of the turn."""
    return _alike(rule, TrialDraw(), TrialDraw(turn=7))


def is_free_of_scale(rule: Player) -> bool:
    """Whether smaller confidences in the same order give the same step: the rule compares them with nothing else."""
    return _alike(rule, TrialDraw(), TrialDraw(scale=0.5))


def _alike(rule: Player, one: TrialDraw, other: TrialDraw) -> bool:
    found = [tried(rule, made) for made in (one, other)]
    first, second = ([decided(step) for _, step in turns or ()] for turns in found)
    return bool(first) and first == second


def decided(step: Step) -> tuple[list[list[bool]], list[list[int]]]:
    return step.commit.tolist(), torch.where(step.commit, step.tokens, 0).tolist()
