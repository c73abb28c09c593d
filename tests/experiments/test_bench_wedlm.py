"""WeDLM in seconds: the arithmetic of its cells, and a table of a tiny model with random weights."""

from __future__ import annotations

from dataclasses import replace

from dllm import Result
from experiments.bench.wedlm import Way, qwen, random_table


def test_cells_by_hand() -> None:
    """Nine tokens and an end in 5 forwards of 4 rows and 2 s, against 4 tokens in 4 s."""
    rows = [Result([1], [2] * 9, "", [2] * 9, 5, 20, 1.0, "eos", 0, [1] * 9)]
    one = Way("it", lambda number: rows[number], rows, 2.0, 1.0)
    other = Way("other", lambda number: rows[number], [replace(rows[0], tokens=[2] * 4, stop_reason="length")], 4.0)
    assert one.cells(other, "50") == ["it", "50", "2.00", "4.0", "400.00", "200.00", "100.00", "5.00"]


def test_random_weights_bring_the_tokens_that_are_prescribed() -> None:
    config = replace(qwen(), width=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_width=32, vocab=500, mask_id=499,
                     eos_id=498, pad_id=498, rotary_dim=16)  # fmt: skip
    lines = [line.split(" | ") for line in random_table(config, 5, 16, 1).splitlines()[4:]]
    assert [line[2] for line in lines] == ["1.00", "2.00", "4.00", "8.00"]
