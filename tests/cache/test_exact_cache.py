"""The exact cache of causal models: what it keeps is what one causal forward over the committed tokens computes."""

from __future__ import annotations

import pytest
import torch
from harness import Combination, forward_of, model, parts_of, requests
from plain_causal import Triangle
from torch import Tensor

from dllm.blocks.fixed import Fixed
from dllm.cache.buffer import ColumnSession
from dllm.cache.finished import Finished
from dllm.cache.none import NoCache
from dllm.compose.fitted import Parts
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.eos.none import FullLength
from dllm.loop.denoise import denoise, start_rows, take_turn
from dllm.models.transformer import Transformer
from dllm.samplers.confidence import Confidence

CAUSAL = ("tiny-wedlm", "tiny-nbdiff")


def largest_error(network: Transformer, session: ColumnSession, row: int, tokens: Tensor) -> float:
    """Between the keys and values kept of a row's first columns, and those of one causal run over its ``tokens``."""
    causal = Triangle()
    network(tokens[None], torch.arange(len(tokens))[None], causal)
    errors = [0.0]
    for kept, expected in zip(session.stores, causal.layers, strict=True):
        assert kept is not None
        errors += [float((a[row, :, : len(tokens)] - b[0]).abs().max()) for a, b in zip(kept, expected, strict=True)]
    return max(errors)


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("blocks", ["fixed", "whole"])
@pytest.mark.parametrize("sampler", ["confidence", "rcr"])
def test_kept_keys_are_those_of_one_causal_run(name: str, blocks: str, sampler: str) -> None:
    network, parts = model(name), parts_of(Combination(sampler, blocks, "finished", "none", name))
    forward = forward_of(network, parts, Sampling())
    canvas = Canvas.of(requests(), network.config.pad_id or 0)
    most = 0
    with torch.inference_mode():
        rows = start_rows(canvas, forward, parts, None)
        while len(rows):
            session = rows.session
            rows, turn = take_turn(rows, forward, parts)
            assert isinstance(session, ColumnSession)
            for row, flags in enumerate((rows.remembered["exact"] & turn.canvas.valid).tolist()):
                exact = sum(flags)
                assert all(flags[:exact]) and not bool(turn.canvas.masked[row, :exact].any())
                if exact:
                    assert largest_error(network, session, row, turn.canvas.tokens[row, :exact]) <= 1e-12
                most = max(most, exact - int(turn.canvas.start[row]))
            rows = rows.without(turn.finished)
    assert most >= 6  # columns of an answer


def run(name: str, batch: list[Request], cache: NoCache | Finished, blocks: Fixed) -> list[Turn]:
    network, sampler, eos = model(name), Confidence(0.6), FullLength()
    forward = forward_of(network, Parts(sampler, blocks, cache, eos), Sampling())
    with torch.inference_mode():
        return list(denoise(Canvas.of(batch, network.config.pad_id or 0), forward, Parts(sampler, blocks, cache, eos)))


@pytest.mark.parametrize("name", CAUSAL)
def test_blocks_that_stay_open_when_they_are_full(name: str) -> None:
    """A forward may then have nothing to predict, in one row or in all."""
    for batch in (requests(), requests()[:1]):
        cached, plain = (run(name, batch, cache, Fixed(4, min_forwards=5)) for cache in (Finished(), NoCache()))
        assert [turn.candidates.tokens.tolist() for turn in cached] == [
            turn.candidates.tokens.tolist() for turn in plain
        ]


@pytest.mark.parametrize("name", CAUSAL)
def test_text_given_to_the_right_is_seen_by_rank_and_not_from_another_block(name: str) -> None:
    """WeDLM's masks see given text to their right; NBDiff's see none behind their block. So a token that is given in
    the last block changes the first proposals of the one and not of the other."""
    found = []
    for token in (7, 30):
        request = requests()[0]
        tokens, masked = list(request.tokens), list(request.masked)
        tokens[-2], masked[-2] = token, False
        turns = [run(name, [Request(tokens, masked, 0, request.start)], cache, Fixed(8))[0].view.scores
                 for cache in (NoCache(), Finished())]  # fmt: skip
        first, cached = (scores.confidence[scores.committable] for scores in turns)
        torch.testing.assert_close(first, cached, rtol=0, atol=1e-12)
        found.append(first)
    assert torch.equal(*found) == (name == "tiny-nbdiff")


def test_the_forward_that_opens_a_block_is_the_causal_pass_of_the_one_before() -> None:
    """NBDiff, blocks of 8: the prompt, then 8 rows in each forward; the first column of each block is committed by the
    forward that computes the block before."""
    request = requests()[1]
    start = request.answer_start
    turns = run("tiny-nbdiff", [request], Finished(), Fixed(4))
    opens = [turn for turn in turns if bool(turn.view.forced_positions.any())]
    assert [turn.view.forced_positions[0].nonzero().flatten().tolist() for turn in opens] == [[start], [start + 8]]
    assert [int(turn.cost.queries) for turn in turns] == [start] + [8] * (len(turns) - 1)
    assert all(torch.equal(turn.step.commit, turn.view.forced_positions) for turn in opens)


def test_a_window_computes_what_has_become_known_once_more_and_never_again() -> None:
    """WeDLM with the whole answer open: everything first, then what is known and not final, and the masks."""
    request = requests()[1]
    turns, final, queries = run("tiny-wedlm", [request], Finished(), Fixed(64)), 0, []
    for turn in turns:
        queries.append(len(request.tokens) - final)
        final = int(turn.canvas.masked[0].long().argmax())  # what is before the first mask was computed in this turn
    assert [int(turn.cost.queries) for turn in turns] == queries
