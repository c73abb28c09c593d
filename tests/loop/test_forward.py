"""The head runs on the rows somebody needs, and on no others."""

from __future__ import annotations

import pytest
import torch
from harness import Combination, model, requests, turns
from torch import Tensor


@pytest.fixture
def logit_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of everything the head makes."""
    shapes: list[tuple[int, ...]] = []
    network = model("tiny-llada")
    original = network.head

    def head(hidden: Tensor) -> Tensor:
        out = original(hidden)
        shapes.append(tuple(out.shape))
        return out

    monkeypatch.setattr(network, "head", head)
    return shapes


def test_logits_exist_only_for_the_open_rows_of_the_block(logit_rows: list[tuple[int, ...]]) -> None:
    opened = [int(turn.view.open.sum(1).max()) for turn in turns(Combination("static", "fixed"), requests()[:1])]
    assert [shape[0] for shape in logit_rows] == opened
    assert max(shape[0] for shape in logit_rows) == 8 < len(requests()[0].tokens)


def test_the_head_runs_on_no_padding(logit_rows: list[tuple[int, ...]]) -> None:
    """Rows with few open positions were padded to the row with the most: 124 rows for the 118 that were scored."""
    found = list(turns(Combination("confidence", "fixed"), requests()))
    scored = [int(turn.view.scores.scored.sum()) for turn in found]
    assert [shape[0] for shape in logit_rows] == scored == [int(turn.cost.scored.sum()) for turn in found]
    assert any(len(set(turn.cost.scored.tolist())) > 1 for turn in found)


def test_nothing_as_large_as_all_rows_times_the_vocabulary_is_allocated() -> None:
    """Of every tensor made during a decode, those with a vocabulary axis have at most a block of rows."""
    vocabulary, seen = model("tiny-llada").config.vocab, []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.dim() > 1 and out.shape[-1] == vocabulary and out.is_floating_point():
                seen.append(out.shape[:-1].numel())
            return out

    with Watch():
        list(turns(Combination("confidence", "fixed"), requests()[:1]))
    assert seen
    assert max(seen) <= 8


@pytest.mark.parametrize("weight", [0.0, 1.5])
def test_guidance_mixes_conditional_and_unconditional_logits(weight: float) -> None:
    from dllm.contract.setting import Sampling

    sampling = Sampling(guidance=weight)
    turn = next(iter(turns(Combination("static", "whole"), requests()[:1], sampling)))
    network, request = model("tiny-llada"), requests()[0]
    tokens = torch.tensor([request.tokens])
    blank = torch.where(torch.tensor([request.masked]), tokens, 60)
    with torch.inference_mode():
        given, free = network.head(network.encode(tokens)), network.head(network.encode(blank))
    logits = free + (weight + 1) * (given - free)
    logits[..., 60] = -torch.inf
    open_ = turn.view.open
    assert torch.equal(turn.view.scores.token[open_], logits.argmax(-1)[open_])
    expected = logits.softmax(-1).amax(-1)[open_]
    assert torch.allclose(turn.view.scores.confidence[open_], expected, atol=1e-9)
    assert int(turn.cost.queries) == len(request.tokens) * (2 if weight else 1)
