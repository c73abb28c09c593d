"""What a part returns is checked where the loop takes it: one sentence that names the part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import model, results
from own_parts import CutFirst, Says, Surest, Twice
from torch import Tensor

from dllm import UserError
from dllm.parts import (
    Blocks,
    BlockState,
    Buffered,
    Cache,
    CacheView,
    Canvas,
    Confidence,
    EndOfText,
    EosTraits,
    Fixed,
    ForwardPlan,
    FreeDave,
    Frontier,
    FullLength,
    JointThreshold,
    Need,
    NoCache,
    Owner,
    Parts,
    Request,
    Sampler,
    SamplerTraits,
    Scores,
    Setting,
    State,
    Static,
    Statistic,
    Step,
    View,
    validate,
)
from tests.samplers.game import Game

ROWS = [Request.answer([3, 4], masks, 60, masks) for masks in (9, 8, 7)]
B, L = 2, 7  # rows and columns of a game: 2 of the prompt, 5 of the answer
FALSE, ZERO = torch.zeros(B, L, dtype=torch.bool), torch.zeros(B, L, dtype=torch.int64)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "commit of one row": ({"commit": FALSE[0]}, r"commit has the shape \[7\], and must have \[2, 7\]"),
    "a short commit": ({"commit": FALSE[:, :5]}, r"commit has the shape \[2, 5\]"),
    "commit of numbers": ({"commit": ZERO}, "commit is of torch.int64, and must be of bool"),
    "a list": ({"commit": [[True]]}, r"commit is list, and must be a tensor \[2, 7\]"),
    "another device": ({"commit": FALSE.to("meta")}, "commit is on meta, and the canvas on cpu"),
    "tokens of one row": ({"tokens": ZERO[0]}, r"tokens has the shape \[7\]"),
    "tokens as a list": ({"tokens": [1]}, "tokens is list"),
    "tokens of fractions": ({"tokens": ZERO.double()}, r"tokens is of torch.float64, and must be of int64 \(.long"),
    "confidence": ({"confidence": ZERO}, "confidence is of torch.int64, and must be of a floating-point type"),
    "accepted": ({"accepted": FALSE[:, :1]}, r"accepted has the shape \[2, 1\]"),
    "next_positions": ({"next_positions": ZERO.double()}, "is of torch.float64, and must be of bool or int64"),
    "stop": ({"stop": FALSE[:, :1]}, r"stop has the shape \[2, 1\], and must have \[2\]"),
    "state of no row": ({"state": {"seen": torch.zeros(7)}}, r"'seen' has the shape \[7\], and must lead with the row"),
    "state of a number": ({"state": {"seen": 3}}, "'seen' is int, and must be a tensor"),
    "unknown state": ({"state": {"sene": torch.zeros(B)}}, "changes the state 'sene', and began with seen"),
    "remask": ({"remask": ~FALSE}, "takes tokens back .*write revocable=True in its traits"),
    "edit": ({"edit": FALSE}, "replaces tokens .*write edits=True"),
    "keep_open": ({"keep_open": torch.ones(B, dtype=torch.bool)}, "keeps a full block .*write edits=True"),
    "candidates": ({"commit": FALSE[[0, 0, 1]], "owner": Owner(torch.tensor([0, 0, 1]), B)}, "write branches=True"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_step_that_is_none_is_refused_in_one_sentence(what: str) -> None:
    given, words = WRONG[what]
    game = Game(Says(given.get("commit"), **{key: value for key, value in given.items() if key != "commit"}), 5, rows=2)
    with pytest.raises(UserError, match=rf"^sampler=Says\b.*{words}") as refused:
        game.turn(0.5)
    assert "\n" not in str(refused.value)


def test_a_step_that_is_forgotten_is_refused() -> None:
    class Silent(Sampler):
        traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

        def step(self, view: View, state: State) -> Step:
            return None  # type: ignore[return-value]

    with pytest.raises(UserError, match=r"^sampler=Silent: step\(\) returned NoneType, and must return view\.step"):
        Game(Silent(), 5).turn(0.5)


def test_state_that_a_rule_says_it_has_not_is_refused() -> None:
    class Forgets(Says):
        traits = Says.traits.but(stateless=True)

    with pytest.raises(UserError, match=r"^sampler=Forgets remembers something .*write stateless=False"):
        Game(Forgets(state={"seen": torch.zeros(1)}), 5).turn(0.5)


def decode(
    sampler: Sampler,
    blocks: Blocks | None = None,
    cache: Cache | None = None,
    eos: EndOfText | None = None,
    lag: int | None = None,
) -> None:
    results(
        model("tiny-llada"), Parts(sampler, blocks or Fixed(8), cache or NoCache(), eos or FullLength()), ROWS, lag=lag
    )


class Starts(Sampler):
    """A rule whose first state is ``made``."""

    traits = SamplerTraits(stateless=False, deterministic=True, by_confidence=True)

    def __init__(self, made: Any) -> None:
        self.made = made

    def start(self, canvas: Canvas, blocks: Any) -> State:
        return self.made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "returned NoneType, and must return a dict"),
        ({"seen": 0}, "'seen' is int"),
        ({"seen": torch.zeros(1, 3)}, r"'seen' has the shape \[1, 3\], and must lead with the row: \[3, \.\.\.\]"),
        ({"seen": torch.zeros(3, device="meta")}, "'seen' is on meta"),
    ],
)
def test_a_first_state_that_is_none_is_refused(made: Any, words: str) -> None:
    with pytest.raises(UserError, match=rf"^sampler=Starts: start\(\).*{words}"):
        decode(Starts(made))


@pytest.mark.parametrize("token", [64, -1, 10**9])
def test_a_token_that_the_model_has_not_is_refused(token: int) -> None:
    class Writes(Surest):
        def step(self, view: View, state: State) -> Step:
            return view.step(super().step(view, state).commit, tokens=torch.full_like(view.scores.token, token))

    with pytest.raises(UserError, match=rf"^sampler=Writes commits token {token}, and the model's ids lie in \[0, "):
        decode(Writes())


def test_a_rule_around_another_one_leaves_the_prompt_alone_and_the_gate_shut() -> None:
    class Greedy(Twice):
        def propose(self, view: View, state: State) -> Step:
            step = super().propose(view, state)
            return step.but(commit=step.commit | step.owner.per_candidate(view.canvas.given))

    class Short(Twice):
        def propose(self, view: View, state: State) -> Step:
            step = super().propose(view, state)
            return step.but(commit=step.commit[:, :1])

    with pytest.raises(UserError, match="^sampler=Greedy commits positions that are decided already, prompt included"):
        decode(Greedy(Static()))
    with pytest.raises(UserError, match="^sampler=Short: the step's commit has the shape"):
        decode(Short(Static()))
    with pytest.raises(UserError, match=r"^inner=Twice commits positions .* not in view.open, so sampler=fron"):
        decode(Frontier(Twice(Static()), 1))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda rows: rows[:1], r"result has the shape \[1\]"),
        (lambda rows: rows.double(), "is of torch.float64"),
        (lambda rows: rows * 0, "names a candidate of another row"),
        (lambda rows: rows + 99, "another row"),
    ],
)
def test_a_choice_among_others_candidates_is_refused(wrong: Callable[[Tensor], Tensor], words: str) -> None:
    class Chooses(FreeDave):
        def choose(self, view: View, owner: Owner, state: State) -> Tensor:
            return wrong(super().choose(view, owner, state))

    with pytest.raises(UserError, match=rf"^sampler=Chooses: choose\(\).*{words}"):
        decode(Chooses(Static()))


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (lambda: (Need("sufix"),), "Need.region='sufix' must be one of .* Did you mean 'suffix'?"),
        (lambda: (Need(reads="entropy"),), r"Need.reads='entropy' must be a tuple of readouts, such as \(Statistic"),
        (lambda: (Need(reads=(Statistic("entropie"),)),), "Statistic.name='entropie' .* Did you mean 'entropy'?"),
        (lambda: Need(), r"needs\(\) returned Need\(.*, and must return a tuple of Need"),
        (lambda: None, r"needs\(\) returned None"),
    ],
)
@pytest.mark.parametrize("group", ["sampler", "blocks", "cache", "eos"])
def test_a_need_that_there_is_not_is_refused_with_the_parts_name(
    group: str, need: Callable[[], Any], words: str
) -> None:
    parts: dict[str, Any] = {"sampler": Confidence(), "blocks": Fixed(8), "cache": NoCache(), "eos": FullLength()}
    kind = type(parts[group])
    parts[group] = type("Asks", (kind,), {"needs": lambda self: need()})()
    setting = Setting(model("tiny-llada").config, parts["blocks"], 16)
    with pytest.raises(UserError, match=f"^{group}=Asks: {words}"):
        validate(setting, parts["sampler"], parts["cache"], parts["eos"])


def test_a_rule_lost_on_the_way_is_refused() -> None:
    class Lost(Confidence):
        def resolved(self, setting: Setting) -> Sampler:
            return None  # type: ignore[return-value]

    with pytest.raises(UserError, match=r"^sampler=Lost: resolved\(\) returned None, and must return the rule"):
        validate(Setting(model("tiny-llada").config, Fixed(8), 16), Lost(), NoCache(), FullLength())


class Cuts(EndOfText):
    """A policy that does ``what`` with the candidates."""

    traits = EosTraits(at_once=True, fills=True, shrinks=False)

    def __init__(self, what: Callable[[Canvas], Any]) -> None:
        self.what = what

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        return self.what(candidates)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda canvas: None, r"cut\(\) returned NoneType"),
        (lambda canvas: replace(canvas, end=canvas.end[:1]), r"end of what cut\(\) returned has the shape \[1\]"),
        (lambda canvas: replace(canvas, masked=canvas.masked.long()), "masked of what .* is of torch.int64"),
        (lambda canvas: replace(canvas, masked=canvas.valid), "leaves more to decide than before"),
        (lambda canvas: canvas.stop_at(canvas.end - 1, ~canvas.shortened, False), "traits must not say shrinks=False"),
    ],
)
def test_a_policy_that_does_what_it_must_not_is_refused(what: Callable[[Canvas], Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^eos=Cuts.*{words}"):
        decode(Static(), eos=Cuts(what))


def test_a_policy_that_acts_earlier_than_it_says_is_refused_under_an_editing_rule() -> None:
    class Hasty(CutFirst):
        traits = CutFirst.traits.but(at_once=False)

        def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
            return candidates.stop_at(candidates.end - 1, ~candidates.shortened, attended=False)

    with pytest.raises(UserError, match="^eos=Hasty acts in a block that is still open"):
        decode(JointThreshold(), eos=Hasty())
    decode(Static(), eos=Hasty())


def test_a_policy_that_fills_rows_that_go_on_is_refused_if_it_says_it_does_not() -> None:
    class Filling(CutFirst):
        traits = CutFirst.traits.but(fills=False)

        def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
            last = candidates.undecided & (candidates.columns == candidates.end[:, None] - 1)
            return candidates.commit(last, candidates.tokens.masked_fill(last, ends[0]))

    with pytest.raises(UserError, match="^eos=Filling fills positions of a row that goes on"):
        decode(Static(), eos=Filling())


class Sized(Fixed):
    """Blocks whose range ``what`` changes."""

    def __init__(self, what: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__(8)
        self.what = what

    def containing(
        self, canvas: Canvas, column: Tensor, number: Tensor, params: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.what(*super().containing(canvas, column, number, params))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda begin, end, number: (begin, begin, number), "must return a block that holds the column"),
        (lambda begin, end, number: (begin + 9, end + 9, number), "must return a block that holds the column"),
        (lambda begin, end, number: (begin, end), "returned tuple, and must return begin, end, number"),
        (lambda begin, end, number: (begin, end[:1], number), r"end of containing\(\) has the shape \[1\]"),
        (lambda begin, end, number: (begin, end / 1, number), r"end of containing\(\) is of torch.float32"),
    ],
)
def test_a_block_that_is_none_is_refused(what: Callable[[Tensor, Tensor, Tensor], Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^blocks=Sized: .*{words}"):
        decode(Static(), Sized(what))


def test_blocks_resized_to_another_batch_are_refused() -> None:
    class Resizes(Fixed):
        def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
            return replace(blocks, end=blocks.end[:1])

    with pytest.raises(UserError, match=r"^blocks=Resizes: resize\(\): end has the shape \[1\], and must have \[3\]"):
        decode(Static(), Resizes(8))


class Plans(Buffered):
    """A cache whose plan ``what`` changes."""

    def __init__(self, what: Callable[[ForwardPlan], Any]) -> None:
        self.what = what

    def plan(self, view: CacheView) -> ForwardPlan:
        return self.what(view.plan(view.canvas.valid))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda plan: None, r"plan\(\) returned NoneType, and must return view\.plan"),
        (lambda plan: replace(plan, columns=plan.columns[:1]), r"the plan's columns has the shape \[1, "),
        (lambda plan: replace(plan, committable=plan.columns.long()), "the plan's committable is of torch.int64"),
        (lambda plan: replace(plan, keys=plan.columns[:, :4]), r"the plan's keys has the shape \[3, 4\]"),
        (lambda plan: replace(plan, forced=plan.columns[0]), "the plan's forced has the shape"),
        (lambda plan: replace(plan, state={"seen": torch.zeros(3)}), r"plan\(\) changes the state 'seen', and began"),
    ],
)
def test_a_plan_that_is_none_is_refused(what: Callable[[ForwardPlan], Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^cache=Plans: {words}"):
        decode(Static(), cache=Plans(what))


def test_a_caches_first_state_that_is_none_is_refused() -> None:
    class Remembers(Plans):
        def state(self, canvas: Canvas) -> State:
            return {"seen": torch.zeros(1)}

    with pytest.raises(UserError, match=r"^cache=Remembers: state\(\) returned a state whose 'seen' has the shape"):
        decode(Static(), cache=Remembers(lambda plan: plan))


@pytest.mark.parametrize("lag", [0, 1])
def test_bounded_shapes_are_checked_by_what_costs_nothing(lag: int) -> None:
    with pytest.raises(UserError, match="^sampler=Says: the step's commit has the shape"):
        decode(Says(torch.zeros(3, 1, dtype=torch.bool)), lag=lag)
