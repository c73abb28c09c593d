"""Sentences of the command line, in the names of requests."""

from __future__ import annotations

import pytest

from dllm.serve.api_errors import ApiError, in_requests, param_of


@pytest.mark.parametrize(("sentence", "told", "param"), [
    ("gen_length=40 must be a multiple of blocks.block_length=32.",
     "max_tokens=40 must be a multiple of diffusion.blocks.block_length=32.", "max_tokens"),
    ("cache=dkv_greedy reads sampling.top_p=0.5. The nearest that works is cache=dual.",
     "diffusion.cache=dkv_greedy reads top_p=0.5. The nearest that works is diffusion.cache=dual.", "diffusion.cache"),
    ("put credit inside: sampler=prophet sampler/inner=credit sampler/inner@sampler.inner.inner=eb.",
     "put credit inside: diffusion.sampler=prophet diffusion.sampler.inner=credit diffusion.sampler.inner.inner=eb.",
     "diffusion.sampler"),
    ("infill=['a'] has nothing to fill in.", "diffusion.canvas=['a'] has nothing to fill in.", None),
    ("constraint=regex: its text is long. Raise gen_length to 5.",
     "response_format of type regex: its text is long. Raise max_tokens to 5.", "response_format"),
    ("constraint.schema at #/a: lower constraint.depth.",
     "response_format.json_schema.schema at #/a: lower diffusion.constraint.depth.", "response_format"),
    ("sampling.eos_last=true is the server's. The sampler is slow; infilling, too.",
     "sampling.eos_last=true is the server's. The sampler is slow; infilling, too.", None),
    ("stop='gen_length' is a value, and so is \"cache=dual\".",
     "stop='gen_length' is a value, and so is \"cache=dual\".", None),
])  # fmt: skip
def test_settings_are_called_as_requests_call_them(sentence: str, told: str, param: str | None) -> None:
    assert in_requests(sentence) == told
    assert param is None or param_of(sentence) == param


def test_a_field_with_several_names_is_called_as_it_was_sent() -> None:
    names = {"diffusion.sampler.threshold": "diffusion.threshold", "max_tokens": "max_completion_tokens"}
    refused = ApiError(400, "diffusion.sampler.threshold=2 must be 1.", "diffusion.sampler").renamed(names)
    assert (refused.message, refused.param) == ("diffusion.threshold=2 must be 1.", "diffusion.threshold")
    refused = ApiError(400, "max_tokens=0 must be 1.", "max_tokens", "c").renamed(names)
    assert (refused.message, refused.param, refused.code) == ("max_completion_tokens=0 must be 1.",
                                                              "max_completion_tokens", "c")  # fmt: skip
    both = "max_tokens and max_completion_tokens differ."
    assert ApiError(400, both, "max_tokens").renamed(names).message == both
