"""Our scorers against numbers that the benchmark's own metric functions gave on made-up predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import METRICS, AnswerScores, Judges, has_bleu, has_rouge, metric_scores
from tests.scoring import differs, main, rows_of

GOLDEN = Path(__file__).parents[1] / "data" / "goldens" / "parallelbench" / "scoring.json"
ROWS = rows_of(GOLDEN)


@pytest.mark.parametrize("metric", sorted({row["metric"] for row in ROWS}))
def test_scores_equal_the_reference(metric: str) -> None:
    rows = [row for row in ROWS if row["metric"] == metric]
    assert len(rows) >= 48 and not [row["case"] for row in rows if differs(row)]


def test_replay_counts_rows_and_finds_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(GOLDEN)]) == 0 and "981 of 981 rows equal" in capsys.readouterr().out
    rows = [dict(row) for row in ROWS[:40]]
    for row in (rows[0], rows[7]):
        row["score"] = 1 - row["score"]
    rows[3]["metric"] = "no_such_score"
    rows[4]["some_score"] = 1.0  # which we do not give
    (tmp_path / "changed.json").write_text(json.dumps({"rows": rows}))
    assert main([str(tmp_path / "changed.json")]) == 1
    assert "36 of 40 rows equal" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{", '{"rows": [{"metric": "sudoku_score"}]}'])
def test_replay_refuses_what_is_no_file_of_scores(text: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "broken.json").write_text(text)
    assert main([str(tmp_path / "broken.json")]) == 2
    assert "no file of scores" in capsys.readouterr().err
    assert main([str(tmp_path / "absent.json")]) == 2


NAMES = ["Ann", "Bob", "Cid"]
TRUTHS: dict[str, Any] = {
    "list_match_score": '["Ann", "Bob", "Cid"]',
    "latin_square_score": {"symbols": ["A", "B", "C", "D"]},
    "sudoku_score": "1234\n3412\n2143\n4321",
    "sentence_to_words_score": {"words": NAMES},
    "sentence_to_words_grammar": {"words": NAMES},
    "summary_score": {"summary": "Ann met Bob."},
    "paraphrase_score": {"text": "Ann met Bob."},
}
LIBRARIES = {"summary_score": has_rouge, "paraphrase_score": has_bleu}
ODD = [
    "[" * 200_000,
    ",\n" * 200_000,
    '["' + 'A", "' * 100_000 + '"]',
    "9" * 300_000,
    "\x00\udc80\u202e",
    "\r\n",
    "\u0661\u00b2\u2460\n" * 4,
    "]" + "[" * 3,
    '"',
    "\\",
]


@pytest.mark.daily(4)
@pytest.mark.parametrize("metric", METRICS)
def test_odd_and_huge_predictions_are_wrong_answers(metric: str) -> None:
    if metric in LIBRARIES and not LIBRARIES[metric]():
        pytest.skip("needs the extra text")
    truth = TRUTHS.get(metric, {"input": NAMES, "word": "Dora"})
    judges = Judges(lambda text: 0.0, lambda a, b: 0.0)
    for prediction in [text for text in ODD if len(text) < 20 or metric != "paraphrase_score"]:
        assert metric_scores(metric, prediction, truth, judges)["score"] == 0


def test_sudoku_digits_are_digits_in_any_script_and_nothing_else() -> None:
    truth = TRUTHS["sudoku_score"]
    arabic = truth.translate({ord(str(n)): chr(0x660 + n) for n in range(10)})
    assert metric_scores("sudoku_score", arabic, truth, Judges()) == {"score": 1.0, "score_strict": 1.0}
    superscript = truth.replace("1", "\u00b9")
    assert metric_scores("sudoku_score", superscript, truth, Judges()) == {"score": 0.0, "score_strict": 0.0}


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        (["A,B,C,D", "B,C,D,A", "C,D,A,B", "D,A,B,C"], 1.0),
        (["A,B,C,D", "A,B,C,D", "B,C,D,A", "C,D,A,B", "D,A,B,C"], 0.0),  # a header counts as a row
        (["A,B,C,D", "B,C,D,A", "C,D,A,B", "D,A,B,C,D"], 1.0),  # five cells, columns of four
        (["A,B,C,D,A"] + ["B,C,D,A,A", "C,D,A,B,A", "D,A,B,C,A"], 0.0),  # a fifth column of nothing but A
        (["A,B,C,D", "B,A,D,C", "C,D,A,B", "D,A,B,C"], 0.0),
    ],
)
def test_latin_squares_with_rows_of_other_lengths(rows: list[str], right: float) -> None:
    truth = TRUTHS["latin_square_score"]
    assert metric_scores("latin_square_score", "\n".join(rows), truth, Judges())["score"] == right


@pytest.mark.parametrize("metric", ["sentence_to_words_score", "sentence_to_words_grammar", "summary_score"])
@pytest.mark.parametrize("prediction", ["Ann, Bob and Cid met.", "", "dog cat"])
def test_without_a_judge_of_grammar_the_score_is_missing(metric: str, prediction: str) -> None:
    scores = metric_scores(metric, prediction, TRUTHS[metric], Judges())
    assert scores["score"] is None and scores["grammar_score"] is None


@pytest.mark.parametrize(
    ("metric", "included", "grammar", "expected"),
    [
        ("sentence_to_words_score", True, 1.0, 1.0),
        ("sentence_to_words_score", False, 1.0, 0.0),
        ("sentence_to_words_score", True, 0.0, 0.0),
        ("sentence_to_words_grammar", False, 1.0, 1.0),
        ("sentence_to_words_grammar", True, 0.0, 0.0),
    ],
)
def test_words_count_in_the_release_and_not_in_the_rewrite(
    metric: str, included: bool, grammar: float, expected: float
) -> None:
    text = "Ann met Bob and Cid." if included else "Ann met Bob and cid."
    scores: AnswerScores = metric_scores(metric, text, TRUTHS[metric], Judges(lambda _: grammar))
    assert scores == {"score": expected, "inclusion_score": float(included), "grammar_score": grammar}
