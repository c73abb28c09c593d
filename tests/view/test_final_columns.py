"""Traces of rows that changed their lengths, on columns that keep their places."""

from __future__ import annotations

import pytest

from dllm import Decoder, load, part
from dllm.parts import on_final_columns


@pytest.mark.parametrize(
    ("name", "options"),
    [("daedal", {"factor": 3, "checked": 4, "doubt": 0.99}), ("rho_eos", {"factor": 3, "checked": 4, "high": 0.7})],
)
def test_the_canvases_are_those_of_the_trace_with_masks_where_columns_are_not_there(name: str, options: dict) -> None:  # type: ignore[type-arg]
    length = part("length", name, **options)
    assert length is not None
    decoder = Decoder(load("mini-llada"), length=length, eos="none", gen_length=6)
    trace = decoder('Copy the list:\n["Kai", "Emma", "Hugo"]', trace=True)[0].traced()
    laid = on_final_columns(trace)
    assert any(turn.length for turn in trace.turns) and not any(turn.length for turn in laid.turns)
    mask = trace.mask_id
    assert len({len(one) for one in laid.canvases()}) == 1
    for was, now in zip(trace.canvases(), laid.canvases(), strict=True):
        assert [one for one in was if one != mask] == [one for one in now if one != mask]
    assert on_final_columns(laid) is laid
