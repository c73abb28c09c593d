"""The table of all kinds of models: its figures by hand, and from one command on small checkpoints of each kind."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean, stdev

import pytest

from dllm import Result, load
from dllm.parts import HEADS, task_cells
from experiments.bench.wedlm import Way
from experiments.compare import kinds as compare_kinds
from experiments.compare.kinds import HEAD, Line, one_forward_each
from experiments.compare.samplers import Column, Comparison, tokens_per_forward
from experiments.mini.decoders import CACHES, LEFT_TO_RIGHT, NBDIFF, WEDLM, settings_of
from tests.support.tiny import MODELS, make_tiny


def result(tokens: int, nfe: int, queries: int, reason: str = "eos") -> Result:
    return Result([1], [5] * tokens, "", [5] * 8, nfe, queries, 0.1, reason, 0, [1] * 8)


def test_a_line_by_hand() -> None:
    """Two items of 4 and 6 tokens in 5 and 2 forwards, 40 and 60 rows: 10 of 100 rows are useful."""
    one = Line("it", [result(4, 5, 40), result(6, 2, 60)], [1.0, 0.0])
    assert str(one) == "| it | 50 (9-91) | 3.5 | 1.43 | 50 | 10.0 % |"
    assert one_forward_each(one)
    assert not one_forward_each(Line("it", [result(4, 6, 40)], [1.0]))
    assert not one_forward_each(Line("it", [result(4, 5, 40, "length")], [1.0]))


def test_a_run_and_all_tables_of_experiments_print_one_number_of_tokens_per_forward() -> None:
    """10 tokens in 7 forwards; the mean of the two ratios, 1.90, is another number."""
    found = [result(4, 5, 40), result(6, 2, 60)]
    product = task_cells(
        [{**one.to_json(), "task": "t", "scores": {}, "batch": str(at)} for at, one in enumerate(found)]
    )
    comparison = Comparison.__new__(Comparison)
    comparison.columns = {name: Column(name, found, [1.0, 0.0]) for name in ("static", "oracle")}
    ours = str(Line("it", found, [1.0, 0.0])).split(" | ")[3]
    way = Way("it", lambda _: found[0], found, 1.0, 1.0)
    printed = [product[HEADS.index("TPF")], ours, comparison._line(comparison.columns["static"])[3].split()[0],
               way.cells(way)[2]]  # fmt: skip
    assert printed == ["1.43"] * 4


def test_the_interval_of_a_ratio_is_that_of_resampled_items() -> None:
    draw = random.Random(0)
    rows = [result(draw.randrange(1, 20), draw.randrange(1, 9), 9) for _ in range(200)]
    ratios = []
    for _ in range(1000):
        some = draw.choices(rows, k=len(rows))
        ratios.append(sum(row.useful_tokens for row in some) / sum(row.nfe for row in some))
    ratio, half = map(float, tokens_per_forward(rows).split(" ±"))
    assert ratio == pytest.approx(fmean(ratios), abs=0.02) and half == pytest.approx(1.96 * stdev(ratios), rel=0.1)


def test_all_kinds_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_tiny(tmp_path / name, MODELS / name) for name in ("tiny-wedlm", "tiny-nbdiff", "tiny-llada")]
    short = {label: WEDLM[label] for label in ("left to right", "threshold 0.4")}
    kinds = {"tiny-wedlm": short, "tiny-nbdiff": {"threshold 0.9": NBDIFF["threshold 0.9"]},
             "tiny-llada": {"cache=dual": CACHES["cache=dual"]}}  # fmt: skip
    assert [settings_of(load(folder)) for folder in folders] == [WEDLM, NBDIFF, CACHES]
    monkeypatch.setattr(compare_kinds, "settings_of", lambda model: kinds[model.name])
    assert compare_kinds.main([*map(str, folders), "--tasks", "copy", "--count", "1"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[:2] == HEAD.splitlines() and [line.split(" | ")[0] for line in lines[2:]] == [
        "| tiny-wedlm, left to right", "| tiny-wedlm, threshold 0.4", "| tiny-nbdiff, threshold 0.9",
        "| tiny-llada, cache=dual",
    ]  # fmt: skip
    assert compare_kinds.main(["nothing/here/at/all"]) == 2


def test_blocks_of_one_column_are_decoded_from_left_to_right(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "ar", MODELS / "tiny-nbdiff")
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"bias"', '"block_length": 1, "bias"'))
    assert settings_of(load(folder)) == LEFT_TO_RIGHT
