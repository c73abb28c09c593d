"""The decode by hand beside which turns are measured gives our tokens, drift included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dllm import Decoder, load, part
from experiments.bench import turns
from experiments.bench.by_hand import decoded
from experiments.bench.turns import main

BLOCKS = {"elastic": "whole", "window": "whole"}


@pytest.mark.parametrize(
    ("cache", "options"),
    [("none", {}), ("dual", {}), ("elastic", {"gamma": 0.995}), ("elastic", {}), ("window", {})],
    ids=str,
)
def test_the_decode_by_hand_gives_our_tokens(cache: str, options: dict[str, Any]) -> None:
    model = load("mini-llada", pack=False)
    schedule = part("blocks", "whole") if cache in BLOCKS else part("blocks", "fixed", block_length=8)
    rule = part("sampler", "static", steps=24)
    ours = Decoder(model, rule, schedule, part("cache", cache, **options), "none", gen_length=24)
    ids = ours.encode("Latin square:\nA,B,C,D")
    found = list(ours.turns(ids))
    if "gamma" in options:  # a third of the turns compute some layers anew
        assert sum(int(turn.cost.refreshed.any()) for turn in found[1:]) > 3
    with torch.inference_mode():
        expected, turned = decoded(model.transformer, ids, 24, 8 if cache not in BLOCKS else 32, cache, **options)
        assert len(list(turned)) == len(found)
    assert torch.equal(found[-1].candidates.tokens[0], expected)


def test_the_table_has_a_line_for_each_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns, "ANSWER", 32)
    assert main(["--caches", "dual", "--repeats", "1"]) == 0
    cells = [float(cell) for cell in capsys.readouterr().out.splitlines()[-1].split("|")[2:-1]]
    assert all(cell > 0 for cell in cells) and cells[5] > cells[6], "ours takes more operations than by hand"
