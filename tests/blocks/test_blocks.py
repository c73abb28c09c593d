"""Block schedules by hand: which columns are open when, and what closes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import Combination, decode, forward_of, model, requests

from dllm import UserError
from dllm.parts import (
    TCCF,
    AdaBlock,
    Ahead,
    Blocks,
    BlockState,
    Canvas,
    Confidence,
    FillAfterBlock,
    Fixed,
    FullLength,
    Growing,
    Lengths,
    NoCache,
    Owner,
    Parts,
    Request,
    Sampling,
    Scores,
    Selection,
    Setting,
    State,
    Static,
    Step,
    View,
    Whole,
    denoise,
    refuse_clashes,
)


def spans(blocks: Blocks, canvas: Canvas) -> list[tuple[int, int, int]]:
    """(number, begin, end) of every block in order, filling each at once; columns relative to the answer."""
    span, out = blocks.start(canvas), []
    while not bool(span.done.all()):
        start = int(canvas.start[0])
        out.append((int(span.index[0]), int(span.begin[0]) - start, int(span.end[0]) - start))
        canvas = canvas.commit(span.in_block & canvas.masked, canvas.tokens)
        for _ in range(blocks.min_forwards):
            span = closed(blocks, canvas, span.after_forward())
    return out


def closed(blocks: Blocks, canvas: Canvas, span: BlockState) -> BlockState:
    """After a turn in which nobody was told to stop."""
    owner = Owner.single(1, canvas.start.device)
    return blocks.advance(canvas, span, owner, span.full(canvas, owner), canvas.shortened)


def answer(prompt: int, length: int, grid_at_zero: bool = False) -> Canvas:
    return Canvas.of([Request.answer([1] * prompt, length, 60)], 61, grid_at_zero=grid_at_zero)


def test_fixed_blocks_count_from_the_answer() -> None:
    assert spans(Fixed(4), answer(5, 10)) == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]
    assert int(Fixed(4).count(answer(5, 10))) == 3


def test_a_growing_block_keeps_what_was_open_before() -> None:
    assert spans(Growing(4), answer(5, 10)) == [(0, 0, 4), (1, 0, 8), (2, 0, 10)]
    assert int(Growing(4).count(answer(5, 10))) == 3
    assert spans(Growing(4), answer(5, 3)) == [(0, 0, 3)]


def test_a_rule_that_takes_nothing_back_decodes_growing_blocks_as_fixed_ones() -> None:
    """But for what counts columns of its block."""
    for sampler in ("confidence", "static", "localleap", "eb"):
        one, other = (decode(Combination(sampler, blocks), requests()) for blocks in ("growing", "fixed"))
        assert [row.canvases for row in one] == [row.canvases for row in other]


def opened(canvas: Canvas, share: float, *commits: list[int]) -> list[tuple[int, int, int]]:
    """Number of the current block, its begin and the end of the last open one, at the start and after each turn."""
    blocks = Ahead(4, share)
    span, out = blocks.start(canvas), list[tuple[int, int, int]]()
    start = int(canvas.start[0])
    for places in ([], *commits):
        if out:
            where = torch.zeros_like(canvas.masked)
            where[0, torch.tensor(places) + start] = True
            canvas = canvas.commit(where, canvas.tokens)
            span = closed(blocks, canvas, span.after_forward())
        out.append((int(span.index[0]), int(span.begin[0]) - start, int(span.open_end[0]) - start))
    return out


def test_the_next_block_opens_when_enough_of_the_last_is_decided() -> None:
    assert opened(answer(3, 12), 0.5, [0], [1], [4], [5], [2, 3]) == [
        (0, 0, 4),
        (0, 0, 4),
        (0, 0, 8),
        (0, 0, 8),
        (0, 0, 12),
        (1, 4, 12),
    ]


def test_one_block_opens_in_a_turn_and_the_last_may_be_short() -> None:
    assert opened(answer(3, 10), 0.0, [0], [1]) == [(0, 0, 8), (0, 0, 10), (0, 0, 10)]


def test_with_a_share_of_one_blocks_come_one_after_the_other() -> None:
    def seen(blocks: Blocks) -> list[list[list[int]]]:
        parts = Parts(Confidence(0.7), blocks, NoCache(), FullLength())
        forward = forward_of(model("tiny-llada"), parts, Sampling())
        running = denoise(Canvas.of(requests(), 61), forward, replace(parts, eos=FullLength()))
        return [turn.candidates.tokens.tolist() for turn in running]

    assert seen(Ahead(5, 1.0)) == seen(Fixed(5)) != seen(Ahead(5, 0.2))


def test_fixed_blocks_of_block_causal_models_count_from_position_zero() -> None:
    assert spans(Fixed(4), answer(6, 9, grid_at_zero=True)) == [(0, -2, 2), (1, 2, 6), (2, 6, 9)]
    assert int(Fixed(4).count(answer(6, 9, grid_at_zero=True))) == 3


def test_the_last_length_of_a_list_repeats() -> None:
    assert spans(Lengths([2, 3]), answer(4, 9)) == [(0, 0, 2), (1, 2, 5), (2, 5, 8), (3, 8, 9)]
    assert int(Lengths([2, 3]).count(answer(4, 9))) == 4


def test_a_list_is_its_lengths_written_out() -> None:
    """Every canvas and grid against cutting a ruler by hand."""
    for lengths, prompt, length in (([3], 0, 7), ([1, 4, 2], 5, 20), ([6, 1], 2, 3), ([2, 2, 9, 1], 4, 30)):
        for at_zero in (False, True):
            grid, edge, expected = (-prompt if at_zero else 0), (-prompt if at_zero else 0), []
            for size in [*lengths, *[lengths[-1]] * 60]:
                expected.append((edge, min(edge + size, length)))
                edge += size
            open_ = [(begin, end) for begin, end in expected if end > 0 and begin < length]
            request = Request([1] * prompt + [60] * length, [False] * prompt + [True] * length)
            canvas = Canvas.of([request], 61, grid_at_zero=at_zero)
            assert spans(Lengths(lengths), canvas) == [(at, *edges) for at, edges in enumerate(open_)], grid
            assert int(Lengths(lengths).count(canvas)) == len(open_)


@pytest.mark.parametrize(
    "blocks", [Fixed(4), Lengths([2, 5, 3]), TCCF(6, 2, marker=54), AdaBlock(3, [54, 56], 0.0), Whole()], ids=type
)
def test_no_block_is_wider_than_the_widest(blocks: Blocks) -> None:
    """Static shapes and states are cut to that measure."""
    forward, widths = forward_of(model("tiny-llada"), Parts(Static(), blocks, NoCache(), FullLength()), Sampling()), []
    canvas = Canvas.of(requests(), 61)
    with torch.inference_mode():
        for turn in denoise(canvas, forward, Parts(Static(), blocks, NoCache(), FullLength())):
            widths.append(int((turn.view.blocks.end - turn.view.blocks.begin).max()))
    length = len(canvas.columns)
    assert max(widths) <= blocks.widest(length) <= length
    assert blocks.widest(10_000) < 10_000 or isinstance(blocks, Whole)


@pytest.mark.parametrize("length", [8, 9, 10, 11])
def test_adablock_looks_for_a_delimiter_in_whole_columns_of_its_window(length: int) -> None:
    """int(ratio * length) columns, as published: a delimiter right after them ends no block."""
    canvas, blocks = answer(2, length), AdaBlock(5, [9], window_ratio=0.25)
    opened = blocks.start(canvas).after_forward()
    for at in range(length):
        token = canvas.tokens.clone()
        token[0, 2 + at] = 9
        scores = Scores(canvas.masked, token, torch.full(token.shape, 0.9).double(), canvas.masked, {})
        end = int(blocks.resize(canvas, scores, opened).end) - 2
        assert end == (at + 1 if at < length // 4 else 5)


def test_whole_is_one_block() -> None:
    assert spans(Whole(), answer(3, 7)) == [(0, 0, 7)]


def test_blocks_without_a_mask_are_skipped() -> None:
    masked = [False] * 3 + [True] * 2 + [False] * 6 + [True] * 3
    canvas = Canvas.of([Request([1] * 14, masked)], 61)
    assert spans(Fixed(4), canvas) == [(0, 0, 4), (2, 8, 11)]


def test_a_full_block_stays_for_its_forwards() -> None:
    blocks, canvas = Fixed(4, min_forwards=3), answer(2, 8)
    span = blocks.start(canvas)
    canvas = canvas.commit(span.in_block, canvas.tokens)
    numbers = []
    for _ in range(4):
        span = closed(blocks, canvas, span.after_forward())
        numbers.append(int(span.index[0]))
    assert numbers == [0, 0, 1, 1]


def test_lookahead_opens_further_blocks() -> None:
    span = Fixed(4).start(answer(2, 10), lookahead=1)
    assert span.in_open[0].nonzero()[:, 0].tolist() == list(range(2, 10))
    assert span.in_block[0].nonzero()[:, 0].tolist() == list(range(2, 6))


def test_tccf_rolls_back_to_the_marker_and_goes_on_in_fine_blocks() -> None:
    network, blocks = model("tiny-llada"), TCCF(8, 2, marker=54)
    request = requests()[0]
    canvas = Canvas.of([request], 61)
    forward, seen, rolled = forward_of(network, Parts(Static(), blocks, NoCache(), FullLength()), Sampling()), [], 0
    for turn in denoise(canvas, forward, Parts(Static(), blocks, NoCache(), FullLength())):
        start, span = int(turn.canvas.start[0]), turn.view.blocks
        seen.append((int(span.begin[0]) - start, int(span.end[0]) - start))
        undone = turn.candidates.masked & ~(turn.canvas.masked & ~turn.step.commit)
        rolled += int(undone.sum())
        final = turn.candidates
    marker = (final.tokens[0, start:] == 54).nonzero()[0, 0].item()
    order = list(dict.fromkeys(seen))
    assert order[0] == (0, 8)
    assert rolled == 8 - (marker + 1)
    assert order[1:] == [(at, min(at + 2, 24)) for at in range(marker + 1, 24, 2)]
    assert not final.masked.any()


def test_what_tccf_discards_does_not_end_the_text() -> None:
    """A coarse block with a marker and, behind it, an end of text: both phases run, as without a policy."""
    canvas, blocks, policy = answer(3, 12), TCCF(8, 2, marker=54), FillAfterBlock("any")
    scripted = Writes([1, 1, 1, 5, 5, 54, 61, 61, 61, 61, 61, *[60] * 4])
    forward = forward_of(model("tiny-llada"), Parts(scripted, blocks, NoCache(), policy), Sampling())
    with torch.inference_mode():
        turn = next(denoise(canvas, forward, Parts(scripted, blocks, NoCache(), policy)))
    assert turn.candidates.masked[0].nonzero()[:, 0].tolist() == list(range(6, 15))
    assert not turn.blocks.done.any() and turn.blocks.begin.tolist() == [6]


class Writes(Static):
    """Commits given tokens, all open ones at once."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__()
        self.tokens = torch.tensor([tokens])

    def step(self, view: View, state: State) -> Step:
        return view.step(view.open, tokens=self.tokens)


def test_tccf_without_a_marker_is_fixed() -> None:
    def canvases(blocks: Blocks) -> list[list[int]]:
        forward = forward_of(model("tiny-llada"), Parts(Static(), blocks, NoCache(), FullLength()), Sampling())
        canvas = Canvas.of(requests(), 61)
        return [
            turn.candidates.tokens.tolist()
            for turn in denoise(canvas, forward, Parts(Static(), blocks, NoCache(), FullLength()))
        ]

    assert canvases(TCCF(8, 2, marker=63)) == canvases(Fixed(8))


def test_a_marker_of_several_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="3 tokens"):
        TCCF(marker="</think>").resolved(lambda text: [1, 2, 3])
    assert TCCF(marker="</think>").resolved(lambda text: [7]).marker == 7


def test_block_causal_models_decode_on_their_own_grid() -> None:
    torch.manual_seed(0)
    combination = Combination("confidence", "fixed", model="sdar_b4")
    rows = [Request.answer([5, 9, 11, 3, 8][: 5 - cut], 9, 130, cut) for cut in range(2)]
    together = decode(combination, rows)
    for number, row in enumerate(rows):
        alone = decode(combination, [row])[0]
        assert alone.canvases == together[number].canvases


def test_a_model_without_a_tokenizer_has_no_newline_to_go_by() -> None:
    setting = Setting(model("tiny-llada").config, AdaBlock(), 8)
    chosen, named = Selection(setting, Confidence(0.9)), AdaBlock(delimiter_ids=[9])
    with pytest.raises(UserError, match="^blocks.delimiter_ids=None takes the tokenizer's newline"):
        refuse_clashes(chosen, ("blocks", setting.blocks, AdaBlock.clashes))
    refuse_clashes(chosen, ("blocks", named, AdaBlock.clashes))
