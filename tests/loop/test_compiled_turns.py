"""Turns around whose network torch.compile runs: they are the plain ones, or run plainly and say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from harness import Combination, forward_of, model, parts_of, requests, with_mask
from recording import FakeGraph, as_recorded
from torch import Tensor

from dllm.common import debug
from dllm.parts import STAGE_VARIANTS, Canvas, CompiledStages, RecordedTurns, Sampling, TakeTurn, denoise, settle_into

CASES = [("aot_eager", "none", "eb"), ("aot_eager", "dual", "confidence"), ("inductor", "dual", "confidence")]


@pytest.fixture(autouse=True)
def as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tests' own checks, which ask the device and so break a graph. A stage has 8 variants at most, and
    torch.compile counts those of all backends."""
    monkeypatch.setattr(debug, "ON", False)
    torch._dynamo.reset()


def decoded(kv: str, sampler: str, take: TakeTurn | None, lag: int | None = 1) -> dict[int, Any]:
    """Tokens and commit turns of every request."""
    case = Combination(sampler, "whole" if kv == "window" else "fixed", kv, "fill_after_block", "tiny-llada")
    network, parts = model(case.model), parts_of(case)
    forward = forward_of(network, parts, Sampling(tempered=parts.sampler.traits.tempered))
    batch, out = [with_mask(request, network.config.mask_id or 0) for request in requests()], {}
    with torch.inference_mode():
        for turn in denoise(Canvas.of(batch, network.config.pad_id or 0), forward, parts, lag, take):
            for row in turn.finished:
                told = turn.candidates.tokens[row].tolist(), turn.ledger.commit_turn[row].tolist()
                out[int(turn.candidates.row_id[row])] = told
    return out


@pytest.mark.program  # 10 to 60 s each, of which torch.compile takes all
@pytest.mark.parametrize(("backend", "kv", "sampler"), CASES)
def test_turns_around_compiled_stages_are_eager_ones(backend: str, kv: str, sampler: str) -> None:
    stage = CompiledStages(backend)
    assert decoded(kv, sampler, partial(as_recorded, stage)) == decoded(kv, sampler, None, None)
    assert settle_into in stage.compiled and not stage.failures


def test_a_compiler_that_errs_is_found_before_anything_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    def erring(stage: Callable[..., Any], *args: Any) -> Any:
        made = stage(*args)
        if stage is settle_into:
            outputs: list[Tensor] = args[0]
            outputs[0][:, -1] += 1  # tokens of the canvas
        return made

    take = RecordedTurns(model("tiny-llada"), lambda: FakeGraph([]), stage=erring)
    expected = decoded("dual", "confidence", None, None)
    assert [decoded("dual", "confidence", take) for _ in range(2)] == [expected] * 2
    assert take.stage is not erring and take.recorded
    assert capsys.readouterr().err.count("torch.compile changes what a turn decides") == 1


@pytest.mark.program
def test_what_torch_compile_cannot_follow_runs_plainly_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    def asks(one: Tensor) -> Tensor:
        return one + 1 if bool(one.any()) else one

    stage = CompiledStages("eager")
    assert [stage(asks, torch.ones(2)).tolist() for _ in range(2)] == [[2, 2]] * 2
    said = capsys.readouterr().err
    assert said.count("cannot follow") == 1 and len(stage.failures) == 1


def test_every_decoder_of_a_process_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    """torch.compile counts variants by code object, which decoders must not share."""
    decoders = [CompiledStages("eager") for _ in range(STAGE_VARIANTS + 2)]
    found = [one(shown_as, torch.ones(2), "up").tolist() for one in decoders]
    assert found == [[2, 2]] * len(decoders) and not capsys.readouterr().err
    assert not any(one.failures or one.full for one in decoders)


def test_the_last_variant_is_said_once_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    stage = CompiledStages("eager")
    ways = [f"up{number}" for number in range(STAGE_VARIANTS + 2)]
    assert [stage(shown_as, torch.ones(1), way).tolist() for way in ways] == [[2]] * len(ways)
    assert capsys.readouterr().err.count(f"{STAGE_VARIANTS} variants are the most") == 1
    assert stage.full and not stage.failures
    assert [stage.compiled[shown_as](torch.ones(1), way).tolist() for way in ways[:STAGE_VARIANTS]] == [[2]] * 8
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        stage.compiled[shown_as](torch.ones(1), ways[-1])


def shown_as(one: Tensor, way: str) -> Tensor:
    """A stage whose text torch.compile takes for a constant."""
    return one + 1 if way.startswith("up") else one
