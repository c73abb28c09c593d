"""One forward: the cache plans it, the network computes it, and the head scores the positions that parts need.

What only some decodes do besides (guidance, drafts, attention as a readout, ...) is in ``dllm.loop.extras``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

from torch import Tensor

from dllm.common.rowwise import T, select_or_all
from dllm.compose.fitted import Parts
from dllm.contract import Need, State
from dllm.contract.canvas import Canvas
from dllm.contract.shared_values import Shared, shared_by
from dllm.loop.extras.base import Extra, ScoredCandidates, Work
from dllm.loop.extras.chosen import extras_of
from dllm.loop.head import ScoredHead
from dllm.loop.hidden import CallStates
from dllm.loop.proposals import Proposer
from dllm.loop.rows import Rows
from dllm.loop.runtime.runtime import Network
from dllm.models.network.memory import Memory
from dllm.models.network.packed_calls import Inputs, run_together
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids
from dllm.parts.cache.base import Cache, Session
from dllm.parts.cache.passes import Call, ForwardPass


class RunStage(Protocol):
    """Runs a stage of a turn: a function whose tensors are small, and that launches no kernel of ours."""

    def __call__(self, stage: Callable[..., T], *args: Any) -> T: ...


def run_plainly(stage: Callable[..., T], *args: Any) -> T:
    """The stage as it is."""
    return stage(*args)


@dataclass(frozen=True)
class NetworkRun:
    """A forward whose calls have run."""

    rows: Rows  # whose forward it is
    work: Work  # what it is about
    extras: Sequence[Extra]  # of this forward
    forward: ForwardPass  # its plan, as calls
    inputs: Sequence[Inputs]  # what the network took in each call
    outputs: Sequence[tuple[Tensor, Tensor | None]]  # hidden states of each call and their columns

    def states(self) -> list[CallStates]:
        """What each call computed, followed by the rows of it that ran once more."""
        states = list[CallStates]()
        for call, inputs, output in zip(self.forward.calls, self.inputs, self.outputs, strict=True):
            again = inputs.memory.reruns
            if not any(rows is None and counts is None for rows, *_, counts in again):  # else that counts alone
                states.append(CallStates(call, *output))
            states += [CallStates(call, hidden, columns, rows, some) for rows, hidden, columns, some in again]
        return states


@dataclass(frozen=True)
class Forward:
    """The network as the loop sees it."""

    model: Transformer  # the network's weights and description
    cache: Cache  # plans which columns are computed and keeps keys and values
    proposer: Proposer  # makes a token and its statistics of logits
    needs: tuple[Need, ...]  # what sampler, blocks, end-of-text policy and cache want to know of a forward
    extras: tuple[Extra, ...]  # what it does besides, in their order
    steady: bool  # as of ``Parts``
    shrinks: bool  # rows may be shortened, by the end-of-text policy or the part that says how long they are
    network: Network  # what runs the model: itself, or its recordings
    shared: Shared  # what the sampler gives to all rows, on the model's device
    offers: bool = False  # its logits may be read until the next turn, also where no row is under a constraint
    stage: RunStage = run_plainly  # what runs a function of small tensors, between network and head and around them

    @staticmethod
    def of(model: Transformer, ids: Ids, parts: Parts, network: Network | None = None) -> Forward:
        """The forward that serves the needs of all parts. network: what runs the model (None: the model itself)."""
        cache, eos = parts.cache, parts.eos
        needs = (*parts.sampler.needs(), *parts.blocks.needs(), *eos.needs(), *cache.needs(), *parts.length.needs())
        statistics = frozenset(name for need in needs for name in need.statistics)
        proposer = Proposer(parts.sampling, ids, statistics, model.triton)
        extras = tuple(extras_of(model, ids, parts, needs))
        shared = shared_by(parts.sampler, model.device)
        shrinks = eos.traits.shrinks or parts.length.traits.changes
        return Forward(model, cache, proposer, needs, extras, parts.steady, shrinks, network or model, shared)

    def start(self, canvas: Canvas) -> tuple[Canvas, Session, State]:
        """The canvas [B] as its rows begin, the cache's session for them, and what they hand to their first forward, by
        name [B, ...]."""
        for extra in self.extras:
            canvas = extra.first_canvas(canvas)
        session_canvas = reduce(lambda canvas_so_far, extra: extra.session_canvas(canvas_so_far), self.extras, canvas)
        session = self.cache.start(session_canvas, self.model.config, self.shrinks)
        session.row_numbers.streams, session.steady = self.streams, self.steady
        session = reduce(lambda inner, extra: extra.session(inner), self.extras, session)
        return canvas, session, reduce(lambda state, extra: state | extra.carried(canvas), self.extras, State())

    @property
    def streams(self) -> bool:
        """Whether the calls of a forward run as one stream. A network that is compiled or recorded for the shapes of
        one call runs them one after the other: pairs of shapes would multiply what is recorded."""
        return self.network is self.model and self.model.streams and not any(extra.sequential for extra in self.extras)

    def leads(self, session: Session) -> bool:
        """Whether rows of a session may share a first forward. Extras may give each row something of its own."""
        return session.traits.leads and all(extra.leads for extra in self.extras)

    @property
    def ids(self) -> Ids:
        """The model's special ids."""
        return self.proposer.ids

    @property
    def vocab(self) -> int:
        """How many ids the model has."""
        return self.model.config.vocab

    def __call__(self, rows: Rows) -> ScoredHead:
        """Run a forward of the candidates of ``rows``."""
        run = self.run(rows)
        for inputs in run.inputs:  # in some caches rows run on by what the host now reads
            inputs.memory.resume(inputs.memory.answer(rows.blocks.shapes.facts))
        return self.head(run)

    def run(self, rows: Rows) -> NetworkRun:
        """The cache's plan and the network: a turn until the host may read something."""
        work = self.stage(Forward.plan_work, self, rows)
        return self._run(rows, work, [extra.start(work) for extra in self.extras])

    def head(self, run: NetworkRun) -> ScoredHead:
        """Score the positions that parts need."""
        work, extras = run.work, run.extras
        if work.plan.shapes.leaders:
            run.rows.session.kept.follow(work.plan.shapes.leaders)
        in_blocks = all(need.region == "block" for need in self.needs)
        aim = self.stage(ScoredHead.aim_of, work, run.states(), self.model.config, in_blocks)
        for extra in extras:
            if (canvas := extra.again(work, aim.hidden)) is not None:
                again = self._run(run.rows, replace(work, shown=canvas), extras)
                states = again.states()
                aim = aim.followed_by(self.stage(ScoredHead.aim_of, again.work, states, self.model.config, in_blocks))
        return ScoredHead.run_on(self.model, self.proposer, work, run.forward, extras, aim)

    def finish(self, head: ScoredHead) -> ScoredCandidates:
        """What the forward says of the candidates."""
        result = head.result(self.offers)
        for extra in head.extras:
            result = extra.finish(head.work, head.aim.hidden, head, result)
        return result

    def plan_work(self, rows: Rows) -> Work:
        """The cache's plan, and which positions parts need scored, as the extras change it."""
        owner, canvas = rows.owner, rows.candidates
        plan, blocks = owner.per_candidate(rows.coming()), owner.per_candidate(rows.blocks)
        scored = reduce(Tensor.__or__, (need.mask(canvas, blocks) for need in self.needs))
        if not self.model.config.attention.everywhere:  # a mask that this forward does not predict has no score
            scored = scored & (plan.committable | ~canvas.masked)
        work = Work(rows, canvas, canvas, blocks, plan, scored)
        return reduce(lambda so_far, extra: extra.before(so_far), self.extras, work)

    def _run(self, rows: Rows, work: Work, extras: Sequence[Extra]) -> NetworkRun:
        """The calls of the network."""
        shown, inputs = work.shown, list[Inputs]()
        forward = work.rows.session.begin(work.plan, shown, work.rows.owner)
        for call in forward.calls:
            call_inputs = inputs_of(shown, call, work.rows.session.memory(forward, call))
            for extra in extras:
                call_inputs = extra.at_call(work, forward, call, call_inputs)
            inputs.append(side_by_side(call_inputs, call))
        return NetworkRun(rows, work, extras, forward, inputs, self._call(inputs))

    def _call(self, calls: Sequence[Inputs]) -> list[tuple[Tensor, Tensor | None]]:
        """Hidden states of each call and their columns."""
        if len(calls) > 1 and self.streams and all(call.memory.streams for call in calls):
            return [(hidden, call.columns) for hidden, call in zip(run_together(self.model, calls), calls, strict=True)]
        return [self.network(call.tokens, call.positions, call.memory, call.columns, **call.more) for call in calls]


def inputs_of(canvas: Canvas, call: Call, memory: Memory) -> Inputs:
    """What the network takes for the queries [b, n] of a call's candidates."""
    tokens, positions = (select_or_all(tensor, call.candidates) for tensor in (canvas.tokens, canvas.positions))
    if call.columns is not None:
        tokens = tokens.gather(1, call.columns.clamp(max=tokens.shape[1] - 1))
    return Inputs(tokens, positions, memory, call.columns)


def side_by_side(inputs: Inputs, call: Call) -> Inputs:
    """The same for the rows of a call's candidates, where these lie side by side."""
    beside, queries = call.side_by_side, inputs.columns
    if beside is None or queries is None:
        return inputs
    first = beside.candidates[:, 0]  # all candidates of a row are as long
    totals = None if inputs.totals is None else inputs.totals[first]
    return replace(
        inputs,
        tokens=beside.pack(inputs.tokens),
        positions=inputs.positions[first],
        columns=beside.pack(queries),
        totals=totals,
    )
