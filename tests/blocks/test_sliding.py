"""The window that moves after every turn: where it lies, what it leaves alone, and how it decodes."""

from __future__ import annotations

import random

import pytest
import torch
from harness import forward_of, model, requests, results

from dllm import Decoder, UserError, load
from dllm.parts import (
    Blocks,
    Canvas,
    Confidence,
    Fixed,
    FullLength,
    NoCache,
    Owner,
    Parts,
    Request,
    Sampler,
    Sampling,
    Sliding,
    Static,
    StopAtEos,
    Turn,
    Whole,
    composed,
    denoise,
    part,
)


def played(
    sampler: Sampler,
    blocks: Blocks,
    batch: list[Request],
    eos: FullLength | StopAtEos | None = None,
    name: str = "tiny-llada",
) -> list[Turn]:
    eos = eos or FullLength()
    forward = forward_of(model(name), Parts(sampler, blocks, NoCache(), eos), Sampling())
    with torch.inference_mode():
        return list(denoise(Canvas.of(batch, 61), forward, Parts(sampler, blocks, NoCache(), eos)))


def window(masked: list[bool], size: int, bound: int | None, further: int) -> list[int]:
    """The definition: the leftmost masks, those within the bound; then as many further ones, from there on."""
    found: list[int] = []
    column = masked.index(True)
    for _ in range(1 + further):
        left = [at for at in range(column, len(masked)) if masked[at]][:size]
        found += [at for at in left if bound is None or at < column + bound]
        ends = [len(masked), *([left[-1] + 1] if len(left) == size else []), *([column + bound] if bound else [])]
        column = min(ends)
    return found


@pytest.mark.parametrize("further", [0, 1, 2])
@pytest.mark.parametrize(("size", "bound"), [(1, None), (3, None), (3, 3), (4, 7), (5, 2), (30, None), (30, 6)])
def test_the_window_is_the_leftmost_masks(size: int, bound: int | None, further: int) -> None:
    """Random infillings, of which random masks are then decided. A row that is full keeps no window."""
    rng, blocks = random.Random(size), Sliding(size, bound)
    rows = [[rng.random() < 0.6 for _ in range(rng.randint(5, 17))] + [True] for _ in range(8)]
    batch = [Request([1] * 3 + [60] * len(row), [False] * 3 + row, start=3) for row in rows]
    canvas = Canvas.of(batch, 61)
    state = blocks.start(canvas, further)
    while not bool(state.done.all()):
        for row, masked in enumerate(canvas.undecided.tolist()):
            assert bool(state.done[row]) == (not any(masked))
            if any(masked):
                seen = (state.in_open[row] & canvas.undecided[row]).nonzero()[:, 0].tolist()
                assert seen == window(masked, size, bound, further)
                assert int(state.begin[row]) == masked.index(True)
        commit = canvas.undecided & (torch.rand(canvas.masked.shape) < 0.4)
        canvas = canvas.commit(commit, canvas.tokens)
        owner = Owner.single(len(batch), canvas.start.device)
        state = blocks.advance(canvas, state.after_forward(), owner, state.full(canvas, owner), canvas.shortened)
    assert not canvas.undecided.any()


@pytest.mark.parametrize("bound", [None, 6, 3])
def test_it_moves_as_the_paper_says(bound: int | None) -> None:
    """Its end is block_length plus the commits made so far, as far as the bound and the answer allow; neither edge ever
    falls, and so many masks are open at most."""
    (request,), length = requests()[:1], 24
    start, made, before = request.answer_start, 0, (0, 0)
    for turn in played(Confidence(0.6), Sliding(6, bound), [request]):
        begin, end = int(turn.view.blocks.begin) - start, int(turn.view.blocks.end) - start
        assert end == min(length, 6 + made, length if bound is None else begin + bound)
        assert begin >= before[0] and end >= before[1]
        assert 0 < int(turn.view.open.sum()) <= 6 and not turn.canvas.undecided[0, : begin + start].any()
        before, made = (begin, end), made + int(turn.step.commit.sum())
        assert turn.view.block_step.tolist() == [turn.view.blocks.turn.item() - 1] and turn.blocks.index.tolist() == [0]
    assert made == length


@pytest.mark.parametrize("sampler", [Confidence(0.7), Static(steps=6), Static(per_step=3)], ids=["t", "steps", "three"])
def test_a_window_as_long_as_the_answer_is_the_whole_answer(sampler: Sampler) -> None:
    network, windows = model("tiny-dream"), (Sliding(24), Whole())
    one, other = (results(network, Parts(sampler, blocks, NoCache(), FullLength()), requests()) for blocks in windows)
    assert [(row.canvas, row.turns) for row in one] == [(row.canvas, row.turns) for row in other]


def test_a_fixed_schedule_runs_over_the_answer() -> None:
    """24 masks in 12 forwards are two each, although five are open at a time."""
    made = played(Static(steps=12), Sliding(5), requests()[:1])
    assert [int(turn.step.commit.sum()) for turn in made] == [2] * 12


def test_one_window_serves_all_candidates_of_a_row() -> None:
    """It begins at the first position that any of them has left to decide."""
    canvas = Canvas.of([Request.answer([1, 2], 8, 60)], 61)
    blocks, row = Sliding(2), torch.zeros(2, dtype=torch.int64)
    state, both = blocks.start(canvas), canvas.select(row)
    where = torch.zeros_like(both.masked)
    where[0, [2, 3]] = where[1, [2, 5]] = True
    tried, owner = both.commit(where, both.tokens), Owner(row, 1)
    moved = blocks.advance(tried, state, owner, state.full(tried, owner), torch.zeros(1, dtype=torch.bool))
    assert moved.in_open[0].nonzero()[:, 0].tolist() == [3, 4]


def test_an_end_of_text_ends_the_window_too() -> None:
    """stop_at_eos: undecided ends behind the leftmost committed end of text, and with it the row's window."""
    for turn in played(Confidence(0.5), Sliding(9), requests(), StopAtEos()):
        reach = (turn.view.blocks.in_open * turn.view.canvas.columns).amax(1)
        assert bool((reach < turn.canvas.end).all())


@pytest.mark.parametrize(("option", "value"), [("block_length", 0), ("max_block_length", 0), ("block_length", -4)])
def test_an_empty_window_is_refused(option: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"blocks\.{option}={value} must be at least 1"):
        part("blocks", "sliding", **{option: value})


def test_each_request_may_have_a_window_of_its_own() -> None:
    network = model("tiny-llada")
    sampler, sizes = Confidence(0.8), [3, 8, 5]
    alone = [
        results(network, Parts(sampler, Sliding(size), NoCache(), FullLength()), [request])[0]
        for size, request in zip(sizes, requests(), strict=True)
    ]
    each = Sliding()
    each.block_length = sizes  # type: ignore[assignment]
    together = results(network, Parts(sampler, each, NoCache(), FullLength()), requests())
    assert [row.turns for row in together] == [row.turns for row in alone]
    fixed = results(network, Parts(sampler, Fixed(5), NoCache(), FullLength()), requests())
    assert [row.turns for row in fixed] != [row.turns for row in alone]


def test_a_decoder_takes_it_by_name() -> None:
    decoder = Decoder(load("mini-llada"), blocks="sliding", eos="stop_at_eos", gen_length=32)
    assert decoder('Copy the list:\n["Kai", "Emma", "Hugo"]')[0].text == '["Kai", "Emma", "Hugo"]'
    with pytest.raises(UserError, match="blocks=sliding has none"):
        Decoder(decoder.model, blocks="sliding")


def test_it_brings_a_policy_that_needs_no_border() -> None:
    """Unless another one is named; and what the schedule brings, it brings behind a cache's back as well."""

    def policy(*words: str) -> str:
        return str(composed(list(words)).eos._target_).rpartition(".")[2]

    assert [policy("blocks=sliding"), policy("blocks=sliding", "eos=none")] == ["StopAtEos", "FullLength"]
    assert [policy(), policy("cache=window"), policy("blocks=sliding", "cache=dkv")] == [
        "FillAfterBlock",
        "FillAfterBlock",
        "StopAtEos",
    ]
