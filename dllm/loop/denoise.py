"""The loop. Every method of this framework is this loop with other parts; nothing here knows their names.

A turn is one forward and the step that follows it. The loop yields every turn, so that traces, progress and timing
hang on it from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dllm.blocks.base import Blocks
from dllm.common.rowwise import Owner, select, update_rows
from dllm.constrained.batch import ConstrainedBatch
from dllm.contract import Turn, View
from dllm.contract.canvas import Canvas
from dllm.contract.checks import kept_blocks, kept_choice, kept_cut
from dllm.contract.constrained import ConstraintMarks
from dllm.contract.shapes import Bounded, Shapes
from dllm.eos.base import EndOfText
from dllm.errors import UserError
from dllm.loop.forward import Forward
from dllm.loop.pace import never_ends
from dllm.loop.rows import Rows
from dllm.samplers.base import Sampler

TakeTurn = Callable[[Rows, Forward, Sampler, Blocks, EndOfText], tuple[Rows, Turn]]


def denoise(
    canvas: Canvas, forward: Forward, sampler: Sampler, blocks: Blocks, eos: EndOfText, lag: int | None = None,
    take: TakeTurn | None = None, constraints: ConstrainedBatch | None = None,
) -> Iterator[Turn]:  # fmt: skip
    """Denoise ``canvas`` to the end, yielding every turn. The last three as in ``start_rows`` and ``turns``."""
    return turns(start_rows(canvas, forward, sampler, blocks, lag, constraints), forward, sampler, blocks, eos, take)


def start_rows(
    canvas: Canvas, forward: Forward, sampler: Sampler, blocks: Blocks, lag: int | None,
    constraints: ConstrainedBatch | None = None,
) -> Rows:  # fmt: skip
    """The rows of ``canvas`` before their first turn, but for those in which nothing is masked.

    constraints: those that rows are under (None: all are free). lag: shapes are bounded, and the host learns so
    many turns late what a turn has filled; a row that depends on its knowing waits, and nothing of it changes
    meanwhile. None: shapes are exact, and the host asks in every turn.
    """
    shapes = Shapes() if lag is None else Bounded(lag, lag * forward.cache.opens_wide)
    constraints = constraints or ConstrainedBatch.none(len(canvas.row_id))
    rows = Rows.start(canvas, forward.start(canvas), sampler, blocks, shapes, constraints)
    return rows.without([row for row, done in enumerate(rows.blocks.done.tolist()) if done])


def refuse(row: int, error: UserError) -> None:
    raise error


def turns(
    rows: Rows, forward: Forward, sampler: Sampler, blocks: Blocks, eos: EndOfText, take: TakeTurn | None = None,
    between: Callable[[Rows], Rows] | None = None, stuck: Callable[[int, UserError], None] = refuse,
) -> Iterator[Turn]:  # fmt: skip
    """Take turns until no rows are left, which leave the batch as they finish.

    take: takes a turn (None: ``take_turn``). between: what happens between turns. Rows may leave then, and others join
    that were started with the same parts, of which only ``per_request`` parameters may differ. stuck: is told the
    number of a row that would never end, and why; by default that is raised (UserError).
    """
    while len(rows):
        rows, turn = (take or take_turn)(rows, forward, sampler, blocks, eos)
        for row, pace in enumerate(rows.paces):
            if pace.is_stuck:
                stuck(row, never_ends(turn, row, pace, sampler, blocks, forward.cache))
        yield turn
        rows = rows.without(turn.finished)
        rows = between(rows) if between else rows


def take_turn(rows: Rows, forward: Forward, sampler: Sampler, blocks: Blocks, eos: EndOfText) -> tuple[Rows, Turn]:
    """One forward and one step of all ``rows``. Returns what they have become, finished ones included, and the turn."""
    rows, turn = advance(rows.bounded(), forward, sampler, blocks, eos)
    rows, finished = rows.reported(rows.numbers())
    return rows, replace(turn, finished=finished)


def advance(rows: Rows, forward: Forward, sampler: Sampler, blocks: Blocks, eos: EndOfText) -> tuple[Rows, Turn]:
    """A turn as far as it happens on the device."""
    # Score: one forward of every candidate.
    ids, tried, owner, constraints = forward.proposer.ids, rows.candidates, rows.owner, rows.constraints
    scores, forced, under_way, cost = forward(rows)
    scores, steered = constraints.propose(tried, owner, scores)
    now, canvas, chosen, single = rows.blocks.after_forward(), tried, owner.row, owner
    # Choose: the candidate that each row goes on with.
    if not owner.is_single:
        single, each = Owner.single(len(rows), chosen.device), Owner.single(len(chosen), chosen.device)
        seen = View.of(tried, scores, owner.per_candidate(now), forced, each)
        chosen = kept_choice(sampler, sampler.choose(seen, owner, rows.state), owner)
        rows.session.keep(under_way, chosen)
        canvas, scores, forced, steered = select((tried, scores, forced, steered), chosen)
    # Decide: which of the open positions to commit.
    now = now.update(kept_blocks(blocks, "resize()", blocks.resize(canvas, scores, now), now))
    view = View.of(canvas, scores, now, forced, single, sampler.edits)
    step = sampler.decide(view, rows.state, forward.model.config.vocab)
    step, refused, replaced = constraints.filter_commits(step, view, owner, chosen)
    # Commit, after what the rule takes back.
    candidates = step.owner.per_candidate(canvas)
    if sampler.revocable:
        candidates = candidates.remask(step.remask, ids.mask)
    candidates = candidates.commit(step.written, step.tokens)
    # Close: the schedule may roll back, a text may end here, full blocks make way for the next ones.
    candidates, now = blocks.revise(candidates, now, ids.mask)
    seen = step.owner.per_candidate(view if now is view.blocks else replace(view, blocks=now))
    cut = kept_cut(eos, sampler.edits, eos.cut(candidates, seen, step, ids.eos), candidates, seen, step)
    cut = now.shapes.update(seen.blocks.active, cut, candidates)
    candidates = constraints.undo_invalid_cuts(candidates, cut, step.owner)
    closed = blocks.advance(candidates, now, step.owner, step.stop)
    now = (update_rows(step.keep_open, now, closed) if sampler.edits else closed).after_turn(now)
    state = update_rows(view.active, rows.state | step.state, rows.state) if step.state else rows.state
    ledger = rows.ledger.after(cost, owner, view, step)
    after = replace(
        rows,
        candidates=candidates,
        owner=step.owner,
        blocks=now,
        state=state,
        next_positions=step.next_positions,
        ledger=ledger,
    )
    marks = ConstraintMarks(steered, refused, replaced)
    return after, Turn(tried, owner, chosen, cost, view, step, candidates, now, ledger, constraints, marks, ())
