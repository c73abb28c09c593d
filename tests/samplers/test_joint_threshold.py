"""joint_threshold: turns worked by hand, and whole decodes beside a loop of its own that knows the rule alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from harness import forward_of, model, results

from dllm import UserError
from dllm.parts import (
    DKV,
    TCCF,
    Blocks,
    Cache,
    Canvas,
    Collector,
    EndOfText,
    EoTP,
    FillAfterBlock,
    Finished,
    Fixed,
    Frontier,
    FullLength,
    Ids,
    JointThreshold,
    NoCache,
    Parts,
    Request,
    Result,
    Sampling,
    Setting,
    SettingWarning,
    Sliding,
    StopAtEos,
    StopFront,
    StopStrings,
    Trace,
    TruncateAtEos,
    denoise,
    validate,
    warn_once,
)
from tests.samplers.game import MASK, PROMPT, Game, applied, positions

NAME, EOS = "tiny-llada21", 61


def edits(game: Game) -> dict[int, int]:
    """What the last turn replaced, by place."""
    assert game.step.edit is not None
    return {at: int(game.canvas.tokens[0, PROMPT + at]) for at in positions(game.step.edit)[0]}


def test_a_turn_fills_and_replaces_from_the_same_scores() -> None:
    game = Game(JointThreshold(0.5, 0.5), 4, block=4)
    assert game.turn([0.5, 0.6, 0.1, 0.4], [1, 2, 3, 4]) == [1]  # 0.5 does not exceed 0.5
    assert game.turn([0.4, 0.6, 0.3, 0.2], [1, 9, 3, 4]) == [0] and edits(game) == {1: 9}  # the best, since none does
    assert game.turn([0.5, 0.5, 0.9, 0.9], [8, 8, 3, 4]) == [2, 3] and edits(game) == {}  # neither exceeds 0.5
    assert game.canvas.tokens[0, PROMPT:].tolist() == [1, 9, 3, 4]


def test_a_full_block_is_held_until_nothing_changes() -> None:
    game = Game(JointThreshold(0.5, 0.0), 4, block=2)
    assert game.turn([0.9, 0.9, 0, 0], [1, 2, 0, 0]) == [0, 1]
    for token in (5, 6, 5):  # a cycle
        assert game.turn([0.1, 0.1, 0, 0], [1, token, 0, 0]) == [] and edits(game) == {1: token}
    assert game.turn([0.9, 0.9, 0.9, 0.9], [1, 5, 3, 4]) == [] and edits(game) == {}
    assert game.turn([0.9, 0.9, 0.9, 0.9], [7, 7, 3, 4]) == [2, 3] and edits(game) == {}  # of the open block alone


@pytest.mark.parametrize("post", [0, 1, 2])
def test_the_hold_is_bounded_and_its_last_forward_may_replace(post: int) -> None:
    game = Game(JointThreshold(0.5, 0.0, post), 4, block=2)
    game.turn([0.9, 0.9, 0, 0], [1, 2, 0, 0])
    for number in range(post):
        assert game.turn(0.9, [1, 5 + number, 0, 0]) == [] and edits(game) == {1: 5 + number}
    assert game.turn(0.9, [1, 9, 3, 4]) == [2, 3] and edits(game) == {}


def test_a_schedule_that_keeps_a_settled_block_open_does_not_reopen_it() -> None:
    game = Game(JointThreshold(0.5, 0.0, 3), 4, block=2)
    game.blocks = Fixed(2, min_forwards=4)
    game.span = game.blocks.start(game.canvas)
    game.turn(0.9, [1, 2, 0, 0])
    assert game.turn(0.9, [1, 2, 0, 0]) == [] and edits(game) == {}  # settled
    assert game.turn(0.9, [8, 8, 0, 0]) == [] and edits(game) == {}


def test_rows_have_thresholds_of_their_own() -> None:
    game = Game(JointThreshold([0.5, 0.9], [1.0, 0.3]), 2, rows=2)
    assert game.play([[0.6, 0.6], [0.6, 0.5]], 3) == [[0, 1], [0]]
    game.play([[0.6, 0.6], [0.6, 0.5]], 4)
    assert game.step.edit is not None and positions(game.step.edit) == [[], [0]]


def test_without_edits_no_block_is_held() -> None:
    game = Game(JointThreshold(0.5, None), 4, block=2)
    game.turn(0.9, 1)
    assert game.turn(0.9, 2) == [2, 3] and game.canvas.tokens[0, PROMPT:].tolist() == [1, 1, 2, 2]


def reference(
    prompt: list[int], length: int, threshold: float, edit: float, post: int, least: int, penalty: float
) -> tuple[list[int], int]:
    """The rule as a loop over one sequence, which runs the model on all columns up to the open block's end: the answer
    and the number of forwards."""
    tokens, forwards, network = [*prompt, *[MASK] * length], 0, model(NAME)
    for begin in range(len(prompt) // 8 * 8, len(tokens), 8):
        places, spent = range(begin, min(begin + 8, len(tokens))), 0
        while True:
            empty = [at for at in places if tokens[at] == MASK]
            if not empty and spent == post:
                break
            spent, forwards = spent + (not empty), forwards + 1
            logits = network.head(network.encode(torch.tensor([tokens[: places.stop]])))[0]
            logits[:, MASK] = -torch.inf
            for at in places[1:]:
                logits[at, tokens[at - 1]] -= penalty
            sure, best = (found.tolist() for found in logits.softmax(-1).max(-1))
            fill = [at for at in empty if sure[at] > threshold]
            if len(fill) < least:
                fill = sorted(empty, key=lambda at: (-sure[at], at))[:least]
            other = [at for at in places if at >= len(prompt) and at not in empty and sure[at] > edit]
            other = [at for at in other if best[at] != tokens[at]]
            for at in (*fill, *other):
                tokens[at] = best[at]
            if not (empty or other):
                break
    return tokens[len(prompt) :], forwards


def prompts(count: int) -> list[list[int]]:
    """Random prompts of the tiny models' tasks."""
    noise = torch.Generator().manual_seed(3)
    sizes = torch.randint(2, 12, (count,), generator=noise).tolist()
    kinds = torch.randint(50, 54, (count,), generator=noise).tolist()
    return [
        [62, kind, *torch.randint(0, 40, (size,), generator=noise).tolist(), 55]
        for kind, size in zip(kinds, sizes, strict=True)
    ]


def decode(
    rule: JointThreshold,
    rows: list[list[int]],
    cache: Cache | None = None,
    eos: EndOfText | None = None,
    length: int = 24,
) -> list[Result]:
    batch = [Request.answer(row, length, MASK) for row in rows]
    return results(model(NAME), Parts(rule, Fixed(8), cache or NoCache(), eos or FullLength()), batch)


@pytest.mark.parametrize(
    ("threshold", "edit", "post", "least", "penalty"),
    [(0.0, 0.0, 1, 1, 0.0), (0.3, 0.0, 2, 1, 0.0), (0.5, 0.3, 16, 3, 0.0), (0.3, 0.0, 3, 1, 4.0), (0.9, 0.6, 0, 2, 0)],
)
def test_decodes_equal_a_loop_that_knows_the_rule_alone(
    threshold: float, edit: float, post: int, least: int, penalty: float
) -> None:
    rows = prompts(8)
    found = decode(JointThreshold(threshold, edit, post, least, penalty), rows)
    with torch.inference_mode():
        expected = [reference(row, 24, threshold, edit, post, least, penalty) for row in rows]
    assert [(one.canvas, one.nfe) for one in found] == expected


CLOSED_BY_AN_EDIT = [62, 53, 33, 16, 3, 35, 0, 5, 25, 0, 39, 31, 55]  # a block closes with an edit in its last forward


@pytest.mark.parametrize("post", [0, 1, 2, 16])
def test_the_exact_cache_computes_again_what_has_seen_a_replaced_token(post: int) -> None:
    rule, rows = JointThreshold(0.0, 0.0, post), [CLOSED_BY_AN_EDIT, *prompts(6)]
    for one, other in zip(decode(rule, rows, Finished()), decode(rule, rows), strict=True):
        assert (one.canvas, one.turns) == (other.canvas, other.turns) and one.query_tokens < other.query_tokens


STOPS = StopStrings(FullLength(), ["<5>"], lambda ids: "".join(f"<{at}>" for at in ids))


@pytest.mark.parametrize(("policy", "end"), [(FillAfterBlock(), EOS), (STOPS, 5)], ids=["fill_after_block", "stop"])
def test_a_text_ends_when_the_block_that_ends_it_closes(policy: EndOfText, end: int) -> None:
    game = Game(JointThreshold(0.5, 0.0), 6, block=2)

    def cut(tokens: list[int]) -> bool:
        """Whether the policy ends the row after a turn with these proposals."""
        view = game.view(0.9, [*tokens, 7, 7, 7, 7])
        game.step = game.sampler.propose(view, game.state)
        game.state, game.canvas = game.state | game.step.state, applied(game.step, view)
        full = view.blocks.full(game.canvas, game.step.owner) & ~game.step.keep_open
        return bool(policy.cut(game.canvas, view, game.step, (EOS,), full).undecided.sum() == 0)

    assert not cut([end, 3])  # the block is full, and held
    assert not cut([4, 3])  # and indeed, the end is replaced
    assert not cut([end, 3])
    assert cut([end, 3])  # nothing changes: it closes


def test_a_trace_keeps_what_was_replaced_and_what_replaced_it() -> None:
    rows, seen = prompts(12), 0
    for one in traced(JointThreshold(0.3, 0.0), rows):
        assert one.trace is not None
        again = Trace.from_json(one.trace.to_json())
        assert again == one.trace and [*again.canvases()][-1][again.start :] == one.canvas
        stands: dict[int, int] = {}
        for record in one.trace.turns:
            stands |= zip(record.candidates[0].positions, record.candidates[0].tokens, strict=True)
            for at, token, confidence, _, forced in record.edited[0].rows():
                assert stands[at] != token and confidence and not forced
                stands[at], seen = token, seen + 1
        assert [stands[at] for at in range(24)] == one.canvas
        last = {at: record.turn for record in one.trace.turns for part in record.written(0) for at in part.positions}
        assert one.turns == [last[at] for at in range(24)]
    assert seen > 5


def traced(rule: JointThreshold, rows: list[list[int]]) -> list[Result]:
    network, batch = model(NAME), [Request.answer(row, 24, MASK) for row in rows]
    ids = Ids(MASK, EOS, ())
    collector = Collector(batch, ids, str, (), trace=True)
    forward = forward_of(network, Parts(rule, Fixed(8), NoCache(), FullLength()), Sampling())
    with torch.inference_mode():
        for turn in denoise(
            Canvas.of(batch, EOS, grid_at_zero=True), forward, Parts(rule, Fixed(8), NoCache(), FullLength())
        ):
            collector.observe(turn)
    return collector.results()


@pytest.mark.parametrize(
    ("name", "cache", "eos", "blocks", "words"),
    [
        ("tiny-llada", DKV(), FullLength(), Fixed(8), "cache=dkv computes masked positions, not the committed ones"),
        ("tiny-llada", NoCache(), StopAtEos(), Fixed(8), "eos=stop_at_eos acts on an end of text at once"),
        ("tiny-llada", NoCache(), TruncateAtEos(), Fixed(8), "eos=truncate_at_eos acts on an end of text at once"),
        ("tiny-llada", NoCache(), EoTP(), Fixed(8), "eos=eotp acts on an .*. Use eos=fill_after_block"),
        ("tiny-llada", NoCache(), StopStrings(StopAtEos(), ["a"], str), Fixed(8), "eos=stop_at_eos acts"),
        (
            "tiny-llada",
            NoCache(),
            FullLength(),
            TCCF(8, marker=54),
            "blocks=tccf .*sampler=joint_threshold may replace",
        ),
        ("tiny-llada", NoCache(), FullLength(), Sliding(8), "blocks=sliding moves its window on .*Use blocks=fixed"),
        ("tiny-llada", NoCache(), StopFront(), Fixed(8), "eos=stop_front acts on an end of text at once"),
        ("tiny-wedlm", NoCache(), FullLength(), Fixed(8), "sampler=joint_threshold scores committed tokens, but"),
        (
            "tiny-nbdiff",
            NoCache(),
            FullLength(),
            Fixed(32),
            "sampler=joint_threshold goes on with a block that is full",
        ),
    ],
)
def test_parts_that_take_a_token_for_final_are_refused(
    name: str, cache: Cache, eos: EndOfText, blocks: Blocks, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        validate(Setting(model(name).config, blocks, None), JointThreshold(), cache, eos)


def test_a_model_that_was_not_trained_to_edit_is_a_warning() -> None:
    rules = [JointThreshold(), JointThreshold(edit_threshold=None), Frontier(JointThreshold())]
    said = {}
    for name in ("tiny-llada", "sdar_b4", NAME):
        for at, rule in enumerate(rules):
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                warn_once.cache_clear()
                validate(Setting(model(name).config, Fixed(8), None), rule, NoCache(), FullLength())
            said[name, at] = [(one.category, str(one.message)) for one in heard]
    for name, family in (("tiny-llada", "llada"), ("sdar_b4", "sdar")):
        words = f"sampler.edit_threshold=0.5: models of the family {family} were not trained to replace tokens"
        for at in (0, 2):
            (doubt,) = said[name, at]
            assert doubt[0] is SettingWarning and doubt[1].startswith(words)
            assert doubt[1].endswith("Set sampler.edit_threshold=null, or use a model that was, such as LLaDA2.1.")
        assert said[name, 1] == []
    assert [said[NAME, at] for at in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.5}, r"sampler.threshold=1.5 must lie in \[0, 1\]"),
        ({"edit_threshold": -0.1}, r"sampler.edit_threshold=-0.1 must lie in \[0, 1\]. None replaces nothing"),
        ({"post_edit_steps": -1}, "sampler.post_edit_steps=-1 must be at least 0"),
        ({"minimum": 0}, "sampler.minimum=0 must be at least 1"),
        ({"penalty": -1.0}, "sampler.penalty=-1.0 must be at least 0"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        JointThreshold(**options)
