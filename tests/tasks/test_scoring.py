"""Our scorers against numbers that the benchmark's own metric functions gave on made-up predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dllm.tasks.parallelbench import scoring

ROWS = json.loads((Path(__file__).parents[1] / "data" / "parallelbench_scoring.json").read_text())


def ours(metric: str, prediction: str, truth: Any) -> scoring.Scores:
    match metric:
        case "list_match_score":
            return scoring.list_match(prediction, scoring.read_lenient(truth))
        case "list_shuffle_score":
            return scoring.list_shuffle(prediction, truth["input"])
        case "list_random_insert_score":
            return scoring.list_random_insert(prediction, truth["input"], truth["word"])
        case "list_random_remove_score":
            return scoring.list_random_remove(prediction, truth["input"])
        case "list_random_replace_score":
            return scoring.list_random_replace(prediction, truth["input"], truth["word"])
        case "latin_square_score":
            return scoring.latin_square(prediction, truth["symbols"])
        case "sudoku_score":
            return scoring.sudoku(prediction, truth)
    return scoring.inclusion(prediction, truth["words"])


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['metric']}-{row['case']}-{i}" for i, row in enumerate(ROWS)])
def test_scores_equal_the_reference(row: dict[str, Any]) -> None:
    scores = ours(row["metric"], row["prediction"], row["ground_truth"])
    assert scores == {key: row[key] for key in scores}
