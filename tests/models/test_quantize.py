"""Weights in eight bits: the same answers from a model that is sure, close logits, and sentences for what cannot be."""

from __future__ import annotations

import pytest
import torch

from dllm import Decoder, UserError, load
from dllm.models import quantize

PROMPT = 'Copy the list:\n["Emma", "Hugo", "Kai"]'


def test_int8_weights_answer_as_before_and_the_head_is_no_plain_product() -> None:
    pytest.importorskip("torchao")
    before, after = load("mini-llada"), load("mini-llada", quantize="int8")
    assert after.transformer.head_weight is None
    tokens = torch.tensor([before.tokenizer.encode(PROMPT)]) if before.tokenizer else torch.arange(9)[None]
    with torch.inference_mode():
        expected, found = (m.transformer.head(m.transformer.encode(tokens)) for m in (before, after))
    error = (expected - found).abs().max() / expected.abs().max()
    assert 0 < error < 0.05
    answers = [Decoder(model, gen_length=16)(PROMPT)[0].tokens for model in (before, after)]
    assert answers[0] == answers[1]


def test_what_cannot_be_quantised_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="model.quantize='int4' must be null or int8"):
        load("mini-llada", quantize="int4")
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs torchao: pip install 'dllm\[quantize\]', or set it to null"):
        load("mini-llada", quantize="int8")
