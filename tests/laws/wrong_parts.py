"""Parts that are wrong on purpose, each in a way that strangers' parts are wrong; ``Honest`` is right."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from dllm.parts import (
    BlockState,
    Buffered,
    CacheView,
    Canvas,
    EndOfText,
    EosTraits,
    Fixed,
    ForwardPlan,
    Owner,
    Sampler,
    SamplerTraits,
    Schedule,
    Setting,
    State,
    Step,
    View,
    after_first,
    answer_ends,
    argmax_mask,
    replaced,
    uniform,
)


class Honest(Sampler):
    """The surest position, and all above a bound."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True, ranks_by="confidence")

    def __init__(self, low: float = 0.6) -> None:
        self.low = low

    def bound(self, view: View) -> Tensor:
        """Confidence from which a position is committed [B, 1]."""
        return torch.full_like(view.scores.confidence[:, :1], self.low)

    def step(self, view: View, state: State) -> Step:
        accepted = view.open & (view.scores.confidence >= self.bound(view))
        return view.step(accepted | argmax_mask(view.scores.confidence, view.open), accepted=accepted)


class Told(Honest):
    """Its constructor makes the one that knows the vocabulary."""

    def __init__(self, low: float = 0.6, vocab: int = 0) -> None:
        super().__init__(low)
        self.vocab = vocab

    def resolved(self, setting: Setting) -> Sampler:
        return type(self)(self.low, setting.model.vocab)

    def bound(self, view: View) -> Tensor:
        assert self.vocab
        return super().bound(view)


class Copied(Told):
    """A copy is written on."""

    def resolved(self, setting: Setting) -> Sampler:
        mine = copy(self)
        mine.vocab = setting.model.vocab
        return mine


class Replaced(Told):
    """The same in a line."""

    def resolved(self, setting: Setting) -> Sampler:
        return replaced(self, vocab=setting.model.vocab)


class TellsItself(Told):
    """Wrong: other decodes have this object."""

    def resolved(self, setting: Setting) -> Sampler:
        self.vocab = setting.model.vocab
        return self


class AfterTelling(Copied):
    """Wrong: the one that knows is shared by requests, too."""

    def step(self, view: View, state: State) -> Step:
        self.low *= 0.9
        return super().step(view, state)


class Mistaken(Told):
    """Wrong: the model's description has no such name."""

    def resolved(self, setting: Setting) -> Sampler:
        return replaced(self, vocab=setting.model.vocab_size)  # type: ignore[attr-defined]


class Leaky(Honest):
    """Its bound grows with the open positions of all rows together."""

    def bound(self, view: View) -> Tensor:
        return (view.open.sum() / 100).expand(len(view.open), 1)


class MeanOfBatch(Honest):
    """Its bound is the mean confidence of the batch."""

    def bound(self, view: View) -> Tensor:
        return view.scores.confidence[view.open].mean().expand(len(view.open), 1)


class ByOrder(Honest):
    """Rows further down are judged more strictly."""

    def bound(self, view: View) -> Tensor:
        return (0.3 + 0.25 * torch.arange(len(view.open)))[:, None]


class Padded(Honest):
    """Goes by the width of the batch, which padding makes."""

    def bound(self, view: View) -> Tensor:
        return torch.full_like(view.scores.confidence[:, :1], view.open.shape[1] / 40)


class Noting(Honest):
    """Counts its turns on itself."""

    def bound(self, view: View) -> Tensor:
        self.turn = getattr(self, "turn", 0) + 1
        return super().bound(view)


class Appending(Honest):
    """Keeps a history in a list of its own."""

    def __init__(self, low: float = 0.9) -> None:
        super().__init__(low)
        self.seen: list[int] = []

    def bound(self, view: View) -> Tensor:
        self.seen.append(1)
        return torch.full_like(view.scores.confidence[:, :1], 0.9 - 0.1 * (len(self.seen) % 7))


class Tossing(Sampler):
    """Commits positions that torch's own generator draws."""

    traits = SamplerTraits(stateless=True, deterministic=False, by_confidence=False)

    def step(self, view: View, state: State) -> Step:
        return view.step(argmax_mask(torch.rand(view.open.shape, dtype=torch.float64), view.open))


class Outside(Honest):
    """Commits masks of later blocks."""

    def step(self, view: View, state: State) -> Step:
        step = super().step(view, state)
        return step.but(commit=step.commit | view.canvas.undecided)


class Idle(Honest):
    """Commits what reaches the bound, and else nothing."""

    def step(self, view: View, state: State) -> Step:
        return view.step(view.open & (view.scores.confidence >= self.low))


class Undoing(Honest):
    """Takes back tokens of blocks that are closed."""

    traits = Honest.traits.but(revocable=True)

    def step(self, view: View, state: State) -> Step:
        first = view.canvas.columns == view.canvas.start[:, None]
        back = first & ~view.canvas.masked & ((view.blocks.index == 1) & (view.blocks.forwards == 1))[:, None]
        return super().step(view, state).but(remask=back)


class Shared(Honest):
    """Remembers one number for the whole batch."""

    traits = Honest.traits.but(stateless=False, ranks_by="")

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        return {"highest": torch.zeros_like(canvas.temperature)}

    def step(self, view: View, state: State) -> Step:
        highest = torch.maximum(state["highest"].max(), view.scores.confidence.max()).expand(len(view.open)).clone()
        accepted = view.open & (view.scores.confidence >= 0.8 * state["highest"][:, None])
        return view.step(accepted | argmax_mask(view.scores.confidence, view.open), state={"highest": highest})


class Drawn(Honest):
    """Draws the bound in every turn, and states that it decides by the scores alone."""

    def bound(self, view: View) -> Tensor:
        return uniform(view.canvas.seed, view.blocks.turn)[:, None]


class LeftFirst(Sampler):
    """Goes from left to right, and states that it goes by confidence."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    def step(self, view: View, state: State) -> Step:
        return view.step(argmax_mask(-view.canvas.columns.expand_as(view.canvas.tokens).double(), view.open))


class Spread(Honest):
    """Leaves out every other column, and states that it begins with the most confident."""

    traits = Honest.traits.but(by_confidence=False)

    def step(self, view: View, state: State) -> Step:
        step, even = super().step(view, state), view.open & (view.canvas.columns % 2 == 0)
        return step.but(
            commit=torch.where(even.any(1, keepdim=True), step.commit & even, step.commit)
            | argmax_mask(view.scores.confidence, even)
        )


class Measured(Honest):
    """Compares confidences with a bound, and states that it does not."""

    traits = Honest.traits.but(thresholds=False)


class Behind(Buffered):
    """A cache that attends to columns which it never computed."""

    traits = Buffered.traits.but(regions=frozenset({"block", "suffix", "ahead", "answer"}))

    def plan(self, view: CacheView) -> ForwardPlan:
        return view.plan(view.canvas.columns >= view.blocks.begin[:, None])


class Neighbourly(Buffered):
    """A cache that computes from the leftmost block of the batch on."""

    traits = Buffered.traits.but(regions=frozenset({"block", "suffix", "ahead", "answer"}))

    def plan(self, view: CacheView) -> ForwardPlan:
        whole = (view.blocks.turn == 0)[:, None]
        return view.plan(view.canvas.valid & (whole | (view.canvas.columns >= view.blocks.begin.min())))


class Blind(Buffered):
    """A cache that lets the first position of a block alone be committed, decided or not."""

    traits = Buffered.traits

    def plan(self, view: CacheView) -> ForwardPlan:
        first = view.canvas.columns == view.blocks.begin[:, None]
        return view.plan(view.canvas.valid, committable=first)


class Together(Fixed):
    """Blocks as long as the longest answer of the batch has quarters."""

    traits = Fixed.traits

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        length = int((canvas.initial_end - canvas.start).max()) // 4 + len(canvas.start)
        begin = canvas.start + (column - canvas.start) // length * length
        return begin, torch.minimum(begin + length, canvas.end), (column - canvas.start) // length


class Ajar(Fixed):
    """Closes a block before it is full."""

    traits = Fixed.traits

    def advance(self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stop: Tensor) -> BlockState:
        return super().advance(candidates, blocks, owner, torch.ones_like(full), stop)


class AllAtOnce(EndOfText):
    """Ends every row where the first of the batch has an end of text."""

    traits = EosTraits(at_once=True, shrinks=True, fills=True)

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        end, found = after_first(candidates, answer_ends(candidates, ends))
        return candidates.stop_at(end.amin().expand_as(end), found.any().expand_as(found), attended=False)


WRONG: dict[str, tuple[type, ...]] = {
    "sampler": (
        Leaky,
        MeanOfBatch,
        ByOrder,
        Padded,
        Noting,
        Appending,
        Tossing,
        Outside,
        Idle,
        Undoing,
        Shared,
        Drawn,
        LeftFirst,
        Spread,
        Measured,
    ),
    "cache": (Behind, Neighbourly, Blind),
    "blocks": (Together, Ajar),
    "eos": (AllAtOnce,),
}
