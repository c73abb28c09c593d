"""The page's table of caches and runtimes is what the runtimes take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from harness import model

from dllm import UserError, part
from dllm.parts import Parts, Runtime, choices

PAGE = Path(__file__).parents[2] / "docs/kernels.md"
RUNTIMES = ("static", "cudagraph", "compile", "compile_cudagraph")


def takes(
    runtime: str, cache: str, sampler: str = "confidence", blocks: str = "fixed", kind: str = "tiny-llada"
) -> bool:
    """Whether a cache runs on a GPU, beside usual parts."""
    made = Parts(part("sampler", sampler), part("blocks", blocks), part("cache", cache), part("eos", "none"))
    try:
        Runtime(runtime).check(made, model(kind).config, torch.device("cuda"))
    except UserError:
        return False
    return True


def test_the_page_lists_what_each_cache_runs_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.loop.runtime.runtime.check_compiler", lambda *_: None)  # asks the GPU what it can
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)*|none) \|$", PAGE.read_text(), re.MULTILINE)
    told = {
        cache: set(re.findall(r"\w+", names)) - {"none"}
        for caches, names in rows
        for cache in re.findall(r"\w+", caches)
    }
    assert told == {cache: {name for name in RUNTIMES if takes(name, cache)} for cache in choices("cache")}


def test_the_page_lists_what_rules_between_mask_and_token_run_under(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tests/laws/test_law_runtimes.py`` decodes with them."""
    monkeypatch.setattr("dllm.loop.runtime.runtime.check_compiler", lambda *_: None)
    (told,) = re.findall(r"under `sampler=dmax` or `d2f`, `prefix` under `remix` \| (.*) \|", PAGE.read_text())
    for case in (
        ("finished", "dmax", "fixed", "sdar_b4"),
        ("prefix", "remix", "fixed", "tiny-llada"),
        ("finished", "d2f", "pipelined", "tiny-llada-d2f"),
    ):
        assert set(re.findall(r"\w+", told)) == {name for name in RUNTIMES if takes(name, *case)}
