"""The hooks of a forward. A plain decode has one extra, ``Waiting``, which does nothing where no row waits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dllm.common.rowwise import Owner
from dllm.contract import BlockState, ForwardCost, ForwardPlan, Scores, State
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import HeadInput
from dllm.loop.hidden import HiddenStates
from dllm.loop.rows import Rows
from dllm.models.network.packed_calls import Inputs
from dllm.parts.cache.base import Session
from dllm.parts.cache.passes import Call, ForwardPass


@dataclass(frozen=True)
class Work:
    """What one forward of N candidates is about to do."""

    rows: Rows  # whose candidates are scored
    canvas: Canvas  # [N] their canvases, as they are scored
    shown: Canvas  # [N] what the network runs on; [2 N] under guidance
    blocks: BlockState  # [N] where the blocks stand
    plan: ForwardPlan  # [N] the cache's plan
    scored: Tensor  # [N, L] positions that parts need scored

    def on(self, canvas: Canvas) -> Work:
        """The same of another canvas [N]."""
        return replace(self, canvas=canvas, shown=canvas)


@dataclass(frozen=True)
class ScoredCandidates:
    """What a forward says of the candidates."""

    canvas: Canvas  # [N] the candidates that it ran on
    owner: Owner  # the row of each
    scores: Scores  # [N] what it says, with proposals that fit the constraints of their rows
    forced: Tensor | None  # [N, L] what the cache's plan commits automatically (None: nothing)
    corrected: Tensor  # [N, L] proposals that are not the model's own, because of a constraint
    run: ForwardPass  # the forward
    cost: ForwardCost  # [N] what it computed
    cache_state: State  # [B, ...] what the cache remembers of the rows, before a candidate is chosen
    carried: State  # [B, ...] what the rows hand to their next forward


class Extra:
    """Base of all extras: every hook leaves things as they are. When rows start:

        canvas = extra.first_canvas(canvas)                    # as the rows begin
        shown = extra.session_canvas(canvas)                   # what the cache's session opens on
        session = extra.session(session)                       # that session
        carried = extra.carried(canvas)                        # what the rows hand to their first forward

    A forward calls the others in this order, each hook of all its extras in turn:

        work = extra.before(work)                              # the plan is made
        extra = extra.start(work)                              # the extra of this forward alone
        inputs = extra.at_call(work, forward, call, inputs)    # of every call of the network
        canvas = extra.again(work, hidden)                     # the network has run
        logits = extra.mix(logits)                             # all logits are stored
        result = extra.finish(work, hidden, source, result)    # the positions are scored
    """

    stores_logits: bool = False  # all logits of the scored positions must be stored
    looks_up: bool = False  # it reads some of them, as proposals have them
    leads: bool = False  # its results may be shared by rows that run one forward together
    sequential: bool = False  # the calls of a forward run one after the other, not as one stream

    def first_canvas(self, canvas: Canvas) -> Canvas:
        """The canvas [B] as its first forward sees it."""
        return canvas

    def session(self, session: Session) -> Session:
        """The cache's session, opened on what ``session_canvas`` makes of the canvas."""
        return session

    def session_canvas(self, canvas: Canvas) -> Canvas:
        """The canvas [B] that the cache's session opens on."""
        return canvas

    def carried(self, canvas: Canvas) -> State:
        """What the rows of ``canvas`` [B] hand to their first forward, by name [B, ...]."""
        return {}

    def states(self, layer: int, work: Work) -> HiddenStates | None:
        """The hidden states that left an inner layer in this forward (None: it keeps none)."""
        return None

    def before(self, work: Work) -> Work:
        """What the forward is about to do."""
        return work

    def start(self, work: Work) -> Extra:
        """The extra of this forward, with what it keeps until the forward's end."""
        return self

    def at_call(self, work: Work, forward: ForwardPass, call: Call, inputs: Inputs) -> Inputs:
        """What the network takes in a call, for the queries [b, n] of its candidates."""
        return inputs

    def again(self, work: Work, hidden: HiddenStates) -> Canvas | None:
        """The canvas [N] of a second forward by the same plan, whose logits follow those of the first (None: there is
        no second one)."""
        return None

    def mix(self, logits: Tensor) -> Tensor:
        """The logits [N, n, V] of the scored positions, from those of all canvases that were shown."""
        return logits

    def finish(self, work: Work, hidden: HiddenStates, source: HeadInput, result: ScoredCandidates) -> ScoredCandidates:
        """What the forward says."""
        return result
