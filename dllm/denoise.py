"""The loop. Every method of this framework is this loop with other parts; nothing here knows their names.

A turn is one forward and the step that follows it. The loop yields every turn, so that traces, progress and timing
hang on it from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor

from dllm.blocks.base import Blocks, Span
from dllm.cache.base import Session
from dllm.canvas import Canvas, merge, of, select
from dllm.eos.base import EndOfText
from dllm.forward import Forward
from dllm.record.cost import ForwardCost
from dllm.samplers.base import Sampler, State, Step, View
from dllm.scores import Scores


@dataclass(frozen=True)
class Turn:
    """One turn of the rows still unfinished. N candidates of B rows; ``owner`` [N] as in Step, None for N = B.

    forwarded [M]: the candidates this forward ran on, ``work`` what it computed for each, ``forwarded_by`` [M] whose
    they were, ``kept`` [B] which of them go on (None: all). canvas [B]: those that were kept, whose ``view``
    the sampler saw. step: its decision. candidates [N]: the canvases after it and after the end-of-text policy.
    span [B]: the blocks after closing. checked: whether blocks could close (see ``denoise``).
    """

    forwarded: Canvas
    forwarded_by: Tensor | None
    kept: Tensor | None
    work: ForwardCost
    view: View
    step: Step
    candidates: Canvas
    span: Span
    checked: bool = True

    @property
    def canvas(self) -> Canvas:
        return self.view.canvas

    @property
    def finished(self) -> Tensor:
        """Rows [B] that are complete after this turn; its candidates are alike, the first stands for all."""
        return self.span.done

    @property
    def acts(self) -> Tensor | None:
        """Rows [B] that took part; the others waited for the host to look (None: all took part)."""
        return self.view.blocks.acts


def denoise(
    canvas: Canvas, forward: Forward, sampler: Sampler, blocks: Blocks, eos: EndOfText, every: int | None = None
) -> Iterator[Turn]:
    """Denoise ``canvas`` to the end, yielding every turn. Rows leave the batch as they finish.

    every: shapes are static, and the host asks the device only after so many turns whether blocks are full; a row whose
    block is waits: nothing of it changes until the host has looked. None: after every turn, and every shape is exact.
    """
    span, state = blocks.start(canvas, sampler.lookahead, every is not None), sampler.start(canvas, blocks)
    session, ids = forward.start(canvas), forward.propose.ids
    candidates, owner, upcoming, stop, check = canvas, None, None, None, True
    for turn in count(1):
        if check:
            if all(done := span.done.tolist()):
                return
            if any(done):
                candidates, owner, span, state, session, upcoming = drop(
                    candidates, owner, span, state, session, upcoming)  # fmt: skip
            span = span.sized()
        else:
            span = replace(span, acts=blocks.acting(candidates, span, stop))
        scores, work = forward(candidates, span, session, owner, upcoming)
        forwarded, forwarded_by, span = candidates, owner, span.forwarded()
        kept = None if owner is None else sampler.keep(look(candidates, scores, of(span, owner)), owner, state)
        canvas = candidates
        if kept is not None:
            session.kept(kept)
            canvas, scores = candidates.select(kept), select(scores, kept)
        span = merge(span.acts, blocks.look(canvas, scores, span), span)
        view = look(canvas, scores, span)
        step = sampler.propose(view, state)
        state, owner, upcoming = merge(view.acts, state | step.state, state), step.owner, step.next
        candidates = apply(step, view, ids.mask)
        candidates, span = blocks.revise(candidates, span, ids.mask)
        cut = eos.cut(candidates, of(scores, owner), step, of(span, owner), ids.eos)
        candidates, stop = merge(span.acts, cut, candidates), either(stop, step.stop)
        if check := turn % (every or 1) == 0:
            span, stop = blocks.advance(candidates, span, owner, stop), None
        yield Turn(forwarded, forwarded_by, kept, work, view, step, candidates, span, check)


def look(canvas: Canvas, scores: Scores, span: Span) -> View:
    """What the sampler sees: open is masked, in the open blocks, and committable by the cache's plan."""
    open_ = canvas.undecided & span.inside & scores.ready
    acts = open_.any(1) if scores.only is None else open_.any(1) & ~scores.only.any(1)
    return View(canvas, scores, open_, span, acts)


def either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one | other


def apply(step: Step, view: View, mask_id: int) -> Canvas:
    """The candidates [N] that a step makes of the canvas [B]."""
    canvas, tokens = view.canvas, view.scores.token
    if step.owner is not None:
        canvas, tokens = canvas.select(step.owner), tokens[step.owner]
    if step.remask is not None:
        canvas = canvas.remask(step.remask, mask_id)
    return canvas.commit(step.commit, tokens if step.tokens is None else step.tokens)


def drop(
    candidates: Canvas, owner: Tensor | None, span: Span, state: State, session: Session, upcoming: Tensor | None
) -> tuple[Canvas, Tensor | None, Span, State, Session, Tensor | None]:
    """Everything that belongs to a request, without the finished ones."""
    rows = (~span.done).nonzero()[:, 0]
    upcoming = None if upcoming is None else upcoming[rows]
    if owner is None:
        candidates = candidates.select(rows)
    else:
        kept = ~span.done[owner]
        candidates = candidates.select(kept.nonzero()[:, 0])
        owner = (torch.cumsum(~span.done, 0) - 1)[owner[kept]]
    return candidates, owner, select(span, rows), select(state, rows), session.select(rows), upcoming
