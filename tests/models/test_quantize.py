"""Weights in eight bits: the same answers from a model that is sure, close logits, and sentences for what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dllm import Decoder, UserError, load
from dllm.app.command_line import main as cli
from dllm.models import bundle, quantize
from dllm.runtime.compiled import Compiled

PROMPT = 'Copy the list:\n["Emma", "Hugo", "Kai"]'


def test_int8_weights_answer_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao")
    before, after = load("mini-llada"), load("mini-llada", quantize="int8")
    assert after.transformer.head_weight is not None, "the head is not compiled, and would be widened in every call"
    tokens = torch.tensor([before.tokenizer.encode(PROMPT)]) if before.tokenizer else torch.arange(9)[None]
    with torch.inference_mode():
        expected, found = (m.transformer.head(m.transformer.encode(tokens)) for m in (before, after))
    error = (expected - found).abs().max() / expected.abs().max()
    assert 0 < error < 0.05
    monkeypatch.setattr(Compiled.__init__, "__defaults__", ("aot_eager",))
    answers = [
        Decoder(model, gen_length=16, cache="dual", runtime=runtime)(PROMPT)[0].tokens
        for model, runtime in ((before, "eager"), (after, "compile"))
    ]
    assert answers[0] == answers[1]


def test_runtimes_that_would_widen_every_weight_in_every_call_are_refused() -> None:
    eight = replace(load("mini-llada"), quantize="int8")
    for runtime in ("eager", "static", "cudagraph"):
        sentence = f"model.quantize=int8 with runtime={runtime} would widen .* Use runtime=compile, or set"
        with pytest.raises(UserError, match=sentence):
            Decoder(eight, runtime=runtime)


def test_the_command_line_refuses_them_before_it_reads_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quantize, "find_spec", lambda name: True)
    monkeypatch.setattr(bundle, "load_model", None)
    monkeypatch.setattr("sys.argv", ["run.py", "model.quantize=int8", "live=false"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2 and "model.quantize=int8 with runtime=auto" in capsys.readouterr().err


def test_what_cannot_be_quantised_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="model.quantize='int4' must be null or int8"):
        load("mini-llada", quantize="int4")
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs torchao: pip install 'dllm\[quantize\]', or set it to null"):
        load("mini-llada", quantize="int8")
