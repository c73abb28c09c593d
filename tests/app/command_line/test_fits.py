"""``dllm fits``: the verdict is that of a decoder, and so is each choice that it lists."""

from __future__ import annotations

import re

import pytest

from dllm import Decoder, UserError, load
from tests.app.command_line.conftest import Run

POLICIES = ("none", "fill_after_block", "stop_front", "eotp", "truncate_at_eos")


def told(run: Run, *words: str) -> tuple[int, dict[str, list[str]], str]:
    """The exit code, the choices that are listed by group, and the verdict."""
    outcome = run("task=fits", *words)
    verdict, *rest = re.split(r"^(sampler|blocks|cache|eos): ", outcome.out, flags=re.MULTILINE)
    listed = zip(rest[::2], rest[1::2], strict=True)
    return outcome.code, {group: re.findall(r"\w+", text) for group, text in listed}, verdict


@pytest.mark.usefixtures("no_weights")
def test_parts_that_do_not_fit_are_told_with_what_would(run: Run) -> None:
    code, listed, verdict = told(run, "sampler=klass", "cache=dual")
    assert code == 1 and "do not fit mini-llada. cache=dual computes only the open blocks" in verdict
    assert "prefix" in listed["cache"] and "dual" not in listed["cache"]
    assert "confidence" in listed["sampler"] and "klass" not in listed["sampler"]


def test_what_is_listed_is_what_a_decoder_takes(run: Run) -> None:
    model, works = load("mini-llada"), []
    for eos in POLICIES:
        try:
            Decoder(model, "confidence", cache="dual", eos=eos, gen_length=32)
        except UserError:
            continue
        works.append(eos)
    code, listed, verdict = told(run, "sampler=confidence", "cache=dual", "gen_length=32")
    assert code == 0 and "fit mini-llada" in verdict and len(works) > 0
    assert [eos for eos in POLICIES if eos in listed["eos"]] == works
