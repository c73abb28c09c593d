"""The loop. Every method of this framework is this loop with other parts; nothing here knows their names.

A turn is one forward and the step that follows it. The loop yields every turn, so that traces, progress and timing
hang on it from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dllm.common.errors import UserError
from dllm.compose.fitted import Parts
from dllm.constraints.decoding.batch import ConstrainedBatch
from dllm.contract import Turn
from dllm.contract.canvas import Canvas
from dllm.contract.shapes import shapes_for
from dllm.loop.forward import Forward
from dllm.loop.head import ScoredHead
from dllm.loop.pace import never_ends
from dllm.loop.rows import Rows
from dllm.loop.stages import choose_candidates, close_turn, decide, look, score_candidates, write_step
from dllm.parts.cache.base import Session

TakeTurn = Callable[[Rows, Forward, Parts], tuple[Rows, Turn]]


def advance(rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
    """A turn as far as it happens on the device: one forward of every candidate, and what follows from it."""
    return settle(rows, forward(rows), forward, parts)


def settle(rows: Rows, head: ScoredHead, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
    """What follows from a forward. No network runs here, so this is a function of small tensors."""
    scored = score_candidates(rows, head, forward)  # what the forward says, and proposals that constraints allow
    choice = choose_candidates(rows, scored, parts, forward.shared)  # the candidate that each row goes on with
    view = look(rows, choice, parts, forward.shared)  # blocks sized from the scores, and what the rule may commit
    decision = decide(rows, choice, view, parts, forward.vocab)  # the rule, and what constraints admit of it
    canvas = write_step(choice, decision, parts, forward.ids)  # remask, commit, edit, and what is shown next
    rows, turn = close_turn(rows, choice, decision, canvas, parts, forward.ids)  # ends, blocks, the ledger
    if parts.length.traits.changes:
        rows, turn = rows.change_lengths(turn, parts, forward.ids)  # rows grow, are cut, or have masks inserted
    return rows.planned(), turn  # the next forward, whose widths the rows report


def take_turn(rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
    """One forward and one step of all ``rows``. Returns what they have become, finished ones included, and the turn."""
    rows, turn = advance(rows.bounded(), forward, parts)
    rows, finished = rows.reported(rows.numbers())
    return rows, replace(turn, finished=finished)


def denoise(
    canvas: Canvas,
    forward: Forward,
    parts: Parts,
    lag: int | None = None,
    take: TakeTurn | None = None,
    constraints: ConstrainedBatch | None = None,
) -> Iterator[Turn]:
    """Denoise ``canvas`` to the end, yielding every turn. The last three as in ``start_rows`` and ``turns``."""
    return turns(start_rows(canvas, forward, parts, lag, constraints), forward, parts, take)


def start_rows(
    canvas: Canvas,
    forward: Forward,
    parts: Parts,
    lag: int | None,
    constraints: ConstrainedBatch | None = None,
    prepare: Callable[[Session], None] | None = None,
) -> Rows:
    """The rows of ``canvas`` before their first turn, but for those in which nothing is masked.

    parts: of these rows. Only ``per_request`` parameters may differ from those of their turns. lag: shapes are
    bounded, and the host learns that many turns late what a turn filled; a row that depends on its knowing waits, and
    nothing of it changes meanwhile (None: shapes are exact, and the host asks in every turn). constraints: those that
    the rows are under (None: all are free). prepare: is given the cache's session before the rows remember anything.
    """
    shapes = shapes_for(lag, parts.cache.traits.full_on_open)
    constraints = constraints or ConstrainedBatch.none(len(canvas.row_id))
    canvas, session, carried = forward.start(canvas)
    if prepare is not None:
        prepare(session)
    rows = Rows.start(canvas, session, parts, shapes, constraints, carried)
    return rows.without([row for row, is_done in enumerate(rows.blocks.done.tolist()) if is_done])


def refuse(row: int, error: UserError) -> None:
    raise error


def turns(
    rows: Rows,
    forward: Forward,
    parts: Parts,
    take: TakeTurn | None = None,
    between: Callable[[Rows], Rows] | None = None,
    stuck: Callable[[int, UserError], None] = refuse,
    observe: Callable[[Rows, Turn], None] | None = None,
) -> Iterator[Turn]:
    """Take turns until no rows are left, which leave the batch as they finish.

    take: takes a turn (None: ``take_turn``). between: what happens between turns. Rows may leave then, and others join
    that were started with the same parts. Only ``per_request`` parameters may differ. stuck: is told the
    number of a row that would never end, and why; by default that is raised (UserError). observe: is shown the rows
    after each turn, those that finish included.
    """
    while len(rows):
        rows, turn = (take or take_turn)(rows, forward, parts)
        for row, pace in enumerate(rows.paces):
            if pace.is_stuck:
                stuck(row, never_ends(turn, row, pace, parts))
        if observe is not None:
            observe(rows, turn)
        yield turn
        rows = rows.without(turn.finished)
        rows = between(rows) if between else rows
