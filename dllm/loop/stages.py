"""The six stages of a turn, in their order. ``denoise.advance`` calls them.

Letters: B rows, M candidates of them that a forward runs on, N that a step makes, L columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dllm.common.rowwise import Owner, select, update_rows
from dllm.compose.fitted import Parts
from dllm.contract import BlockState, Scores, State, Step, Turn, View
from dllm.contract.canvas import Canvas
from dllm.contract.checks import checked_blocks, checked_choice, checked_cut
from dllm.contract.constrained import ConstraintMarks
from dllm.contract.shared_values import Shared
from dllm.loop.extras.base import ScoredCandidates
from dllm.loop.forward import Forward
from dllm.loop.head import ScoredHead
from dllm.loop.rows import Rows
from dllm.models.text.ids import Ids


@dataclass(frozen=True)
class ChosenCandidates:
    """What a forward says of the candidate that each row goes on with."""

    scored: ScoredCandidates  # [M] all candidates, this one among them
    candidate: Tensor  # [B] its number among them
    canvas: Canvas  # [B] its canvas
    scores: Scores  # [B] its scores
    forced: Tensor | None  # [B, L] what is committed automatically (None: nothing)
    corrected: Tensor  # [B, L] proposals that are not the model's own
    blocks: BlockState  # [B] where the blocks stand after the forward
    cache_state: State  # [B, ...] what the cache remembers of the rows


@dataclass(frozen=True)
class Decision:
    """What is decided in a turn, after the constraints of the rows."""

    view: View  # what the rule saw
    step: Step  # what it commits
    marks: ConstraintMarks  # what the constraints changed


def score_candidates(rows: Rows, head: ScoredHead, forward: Forward) -> ScoredCandidates:
    """What a forward says. Where a row is under a constraint, proposals that do not fit are made again."""
    scored = forward.finish(head)
    scores, corrected = rows.constraints.propose(scored.canvas, scored.owner, scored.scores)
    return replace(scored, scores=scores, corrected=corrected)


def choose_candidates(rows: Rows, scored: ScoredCandidates, parts: Parts, shared: Shared) -> ChosenCandidates:
    """The candidate that each row goes on with. The cache keeps what it computed."""
    blocks, owner = rows.blocks.after_forward(), scored.owner
    candidate, of_rows = owner.row, (scored.canvas, scored.scores, scored.forced, scored.corrected)
    if not owner.is_single:
        each = Owner.single(len(owner.row), owner.row.device)
        view = View.of(scored.canvas, scored.scores, owner.per_candidate(blocks), scored.forced, each, shared)
        candidate = checked_choice(parts.sampler, parts.sampler.choose(view, owner, rows.state), owner)
        of_rows = select(of_rows, candidate)
    cache_state = rows.session.keep(scored.run, candidate, scored.cache_state)
    canvas, scores, forced, corrected = of_rows
    if parts.cache.needs():
        cache_state = rows.session.after_scores(cache_state, scores)
    return ChosenCandidates(scored, candidate, canvas, scores, forced, corrected, blocks, cache_state)


def look(rows: Rows, choice: ChosenCandidates, parts: Parts, shared: Shared) -> View:
    """What the rule sees: blocks sized from the scores, and the positions that it may commit."""
    resized = parts.blocks.resize(choice.canvas, choice.scores, choice.blocks)
    blocks = choice.blocks.update(checked_blocks(parts.blocks, "resize()", resized, choice.blocks))
    owner = Owner.single(len(rows), choice.candidate.device)
    return View.of(choice.canvas, choice.scores, blocks, choice.forced, owner, shared, parts.sampler.traits.edits)


def decide(rows: Rows, choice: ChosenCandidates, view: View, parts: Parts, vocab: int) -> Decision:
    """Which of the open positions to commit: the rule, less what a constraint does not admit together."""
    step = parts.sampler.decide(view, rows.state, vocab)
    step, rejected, replaced = rows.constraints.filter_commits(step, view, choice.scored.owner, choice.candidate)
    return Decision(view, step, ConstraintMarks(choice.corrected, rejected, replaced))


def write_step(choice: ChosenCandidates, decision: Decision, parts: Parts, ids: Ids) -> Canvas:
    """The candidates [N] of the step: what it takes back is masked, then what it commits and edits is written, and what
    it leaves undecided shows what it says."""
    step, view = decision.step, decision.view
    candidates = step.owner.per_candidate(choice.canvas)
    if parts.sampler.traits.revocable:
        candidates = candidates.remask(step.remask, ids.placeholder)
    candidates = candidates.commit(step.written, step.tokens)
    if step.shown is None:
        return candidates
    return candidates.show(step.owner.per_candidate(view.blocks.in_open & view.active[:, None]), step.shown)


def close_turn(
    rows: Rows, choice: ChosenCandidates, decision: Decision, canvas: Canvas, parts: Parts, ids: Ids
) -> tuple[Rows, Turn]:
    """The schedule may roll back, a text may end here, and full blocks make way for the next ones."""
    scored, view, step, owner = choice.scored, decision.view, decision.step, decision.step.owner
    canvas, blocks = parts.blocks.revise(canvas, view.blocks, ids.placeholder)
    full = blocks.full(canvas, owner)
    if parts.sampler.traits.edits:
        full = full & ~owner.per_candidate(step.keep_open)
    view_of_candidates = owner.per_candidate(view if blocks is view.blocks else replace(view, blocks=blocks))
    cut = parts.eos.cut(canvas, view_of_candidates, step, ids.ends, full)
    cut = checked_cut(parts.eos, parts.sampler.traits.edits, cut, canvas, view_of_candidates, step)
    if parts.eos.traits.at_once:  # a policy that waits for a full block finds none in a row that waits
        cut = blocks.shapes.update(view_of_candidates.blocks.active, cut, canvas)
    candidates = rows.constraints.undo_invalid_cuts(canvas, cut, owner)
    if parts.eos.traits.at_once and candidates is not canvas:  # a policy that waits for a full block leaves it full
        full = blocks.full(candidates, owner)
    closed = parts.blocks.advance(candidates, blocks, owner, full, step.stop)
    blocks = (update_rows(step.keep_open, blocks, closed) if parts.sampler.traits.edits else closed).after_turn(blocks)
    state = update_rows(view.active, rows.state | step.state, rows.state) if step.state else rows.state
    if parts.sampler.per_block:
        state = parts.sampler.next_block(state, blocks.index != view.blocks.index)
    if parts.eos.traits.writes:
        candidates = parts.eos.opened(candidates, owner.per_candidate(blocks))
    carried, soft = scored.carried, parts.sampler.traits.soft
    if step.mixture is not None and soft is not None:
        carried = update_rows(view.active, rows.handed_on(step, soft, candidates, blocks), carried)
    after = replace(
        rows,
        candidates=candidates,
        owner=owner,
        blocks=blocks,
        state=state,
        cache_state=choice.cache_state,
        next_positions=step.next_positions,
        ledger=rows.ledger.after(scored.cost, scored.owner, view, step),
        carried=carried,
    )
    return after, Turn(
        tried=scored.canvas,
        tried_owner=scored.owner,
        chosen=choice.candidate,
        cost=scored.cost,
        view=view,
        step=step,
        candidates=candidates,
        blocks=blocks,
        ledger=after.ledger,
        constraints=rows.constraints,
        marks=decision.marks,
        finished=(),
        carried=carried,
    )
