"""The page's table of caches and runtimes is what the runtimes take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from harness import model

from dllm import UserError, part
from dllm.compose.fitted import Parts
from dllm.compose.parts import choices
from dllm.runtime.runtime import Runtime

PAGE = Path(__file__).parents[2] / "docs/kernels.md"
RUNTIMES = ("static", "cudagraph", "compile", "compile_cudagraph")


def takes(runtime: str, cache: str) -> bool:
    """Whether a cache runs on a GPU, beside usual parts."""
    made = Parts(part("sampler", "confidence"), part("blocks", "fixed"), part("cache", cache), part("eos", "none"))
    try:
        Runtime(runtime).check(made, model("tiny-llada").config, torch.device("cuda"))
    except UserError:
        return False
    return True


def test_the_page_lists_what_each_cache_runs_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.runtime.runtime.check_compiler", lambda *_: None)  # asks the GPU what it can
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)*|none) \|$", PAGE.read_text(), re.MULTILINE)
    told = {
        cache: set(re.findall(r"\w+", names)) - {"none"} for caches, names in rows
        for cache in re.findall(r"\w+", caches)
    }  # fmt: skip
    assert told == {cache: {name for name in RUNTIMES if takes(name, cache)} for cache in choices("cache")}
