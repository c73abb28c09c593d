"""Canvases of one prompt on causal models: the beginning is computed once, and every number stays."""

from __future__ import annotations

from random import Random

import pytest

from dllm.parts import ReadCanvas, ReadQuery, load, read_canvases
from tests.support.harness import DATA, full

# Columns of two prompts, and what is computed of them: all but what lies before the last cut that canvases share.
KINDS = {
    "tiny-nbdiff": (13, 9),
    "tiny-wedlm": (13, 9),
    "tiny-a2d-bd3lm": (13, 9),
    "tiny-diffcoder": (12, 8),
    "sdar_b4": (12, 8),
    "tiny-fastdllm-v2": (8, 8),
    "dreamreasoner": (8, 8),
    "tiny-nemotron": (13, 9),
    "tiny-llada": (0, 0),
    "tiny-dream": (0, 0),
}
DAILY = ("tiny-nbdiff", "tiny-wedlm", "tiny-diffcoder", "tiny-dream")


def queries_of(mask: int, count: int = 5) -> list[ReadQuery]:
    """Two prompts of 13 and 9 tokens, each with ``count`` canvases of two masks behind 0 to 2 tokens."""
    rng, found = Random(1), []
    for length in (13, 9):
        prompt = tuple(rng.randrange(5, 50) for _ in range(length))
        for number in range(count):
            head = tuple(rng.randrange(5, 50) for _ in range(min(number, 2)))
            tokens = (*prompt, *head, mask, mask)
            masked = frozenset({len(tokens) - 2, len(tokens) - 1})
            found.append(ReadQuery(ReadCanvas(tokens, masked, length), ((len(tokens) - 2, (5, 6, 7)),)))
    return found


@pytest.mark.parametrize("name", KINDS if full() else DAILY)
def test_numbers_are_those_of_each_canvas_alone(name: str) -> None:
    model = load(DATA / "models" / name, dtype="float64", mask_id=60)
    queries = queries_of(model.ids.placeholder)
    together, alone = read_canvases(model, queries), [read_canvases(model, [one])[0] for one in queries]
    for one, other in zip(together, alone, strict=True):
        assert one.log_p[0] == pytest.approx(other.log_p[0], abs=1e-12) and one.top == other.top
    shift = model.config.prediction_shift or model.config.seed_shift or 0
    cuts = [cut - (cut in (13, 9) and shift) for cut in KINDS[name]]  # the prompt's last row may predict the first mask
    expected = sum(4 * cut for cut in cuts)
    assert sum(one.cached_tokens for one in together) == expected
    assert sum(one.query_tokens + one.cached_tokens for one in together) == sum(one.query_tokens for one in alone)
    assert sum(one.forwards for one in together) == (2 if expected else 1)


def test_what_is_kept_is_that_of_the_canvas_s_own_prompt() -> None:
    """One token of the second prompt changed: its readings move, the first one's do not."""
    model = load(DATA / "models" / "tiny-nbdiff", dtype="float64", mask_id=60)
    queries = queries_of(60)
    changed = [
        one
        if one.canvas.start == 13
        else ReadQuery(ReadCanvas((51, *one.canvas.tokens[1:]), one.canvas.masked, 9), one.targets)
        for one in queries
    ]
    before, after = read_canvases(model, queries), read_canvases(model, changed)
    assert [a.log_p == b.log_p for a, b in zip(before, after, strict=True)] == [True] * 5 + [False] * 5
