"""Token frequencies for sampler=pc."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest

from dllm import UserError
from dllm.parts import Frequencies
from experiments.mini.token_frequencies import counts, main


def test_the_command_writes_what_the_sampler_reads(tmp_path: Path) -> None:
    corpus, table = tmp_path / "corpus.txt", tmp_path / "table.json"
    corpus.write_text("Copy the list Kai Kai")
    assert main([str(corpus), "--out", str(table)]) == 0
    found = counts(corpus.read_text(), "mini-llada")
    written = json.loads(table.read_text())
    assert written["num_token"] == found.total() and sum(written["p_baseline_dict"].values()) == found.total()
    (often, times), *_ = found.most_common()
    surprise = Frequencies.read(table).surprise()
    assert float(surprise[often]) == pytest.approx(-log(times / found.total() + 1e-9))
    assert float(surprise[-1]) == pytest.approx(-log(1 / found.total() + 1e-9))  # a token that is absent


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(UserError, match="corpus is empty"):
        counts("", "mini-llada")
