"""Token frequencies for sampler=pc."""

from __future__ import annotations

import pytest

from dllm import UserError
from experiments.token_frequencies import frequencies


def test_frequencies_add_up_and_an_empty_corpus_is_refused() -> None:
    table = frequencies("Copy the list Kai Kai", "mini-llada")
    assert sum(table.values()) == pytest.approx(1) and max(table.values()) > min(table.values())
    with pytest.raises(UserError, match="corpus is empty"):
        frequencies("", "mini-llada")
