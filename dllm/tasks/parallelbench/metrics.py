"""The benchmark's metrics by name: scores of a prediction against a truth in the benchmark's own shape.

``scoring`` judges lists and puzzles. Texts need judges that may be missing; the scores that depend on them are then
None. The one called ``score`` counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dllm.tasks.base import AnswerScores
from dllm.tasks.parallelbench import scoring
from dllm.tasks.parallelbench.text_metrics import ROUGE, bleu, rouge

Verdict = Callable[[str], float | None]
Similarity = Callable[[str, str], float]


@dataclass(frozen=True)
class Judges:
    grammar: Verdict | None = None  # 1 for a text without mistakes, else 0 (None: cannot say)
    bertscore: Similarity | None = None  # similarity of two texts

    def grammatical(self, text: str) -> float | None:
        return None if self.grammar is None else self.grammar(text)


Metric = Callable[[str, Any, Judges], AnswerScores]


def metric_scores(metric: str, prediction: str, truth: Any, judges: Judges) -> AnswerScores:
    """Scores of a prediction. truth: what ``HOLDS`` says of the metric, or else a text."""
    return METRICS[metric](prediction, truth, judges)


def _without_judges(score: Callable[..., AnswerScores], *keys: str) -> Metric:
    """A metric that compares with what the truth holds under ``keys``."""
    return lambda prediction, truth, judges: score(prediction, *(truth[key] for key in keys))


def _words(prediction: str, truth: Any, judges: Judges) -> AnswerScores:
    """All words are there and the grammar is right."""
    inclusion = scoring.inclusion(prediction, truth["words"])
    grammar = judges.grammatical(prediction)
    return {"score": product(inclusion, grammar), "inclusion_score": inclusion, "grammar_score": grammar}


def _words_grammar(prediction: str, truth: Any, judges: Judges) -> AnswerScores:
    """As the rewrite scores: only the grammar counts."""
    scores = _words(prediction, truth, judges)
    return {**scores, "score": scores["grammar_score"]}


def _summary(prediction: str, truth: Any, judges: Judges) -> AnswerScores:
    """ROUGE-L with the reference summary, times grammar."""
    prediction = prediction.strip()
    scores = rouge(prediction, truth["summary"].strip())
    by_name: AnswerScores = {f"{name}_score": None if scores is None else scores[name] for name in ROUGE}
    grammar = judges.grammatical(prediction)
    return {"score": product(by_name["rougeL_score"], grammar), **by_name, "grammar_score": grammar}


def _paraphrase(prediction: str, truth: Any, judges: Judges) -> AnswerScores:
    """Unlike in words (1 - BLEU), alike in meaning (BERTScore), grammatical. An empty answer gets 0 throughout."""
    prediction, source = prediction.strip(), truth["text"]
    same = bleu(prediction, source)
    unlike = None if same is None else (1 - same) * bool(prediction)
    alike: float | None = None
    if judges.bertscore is not None:
        alike = judges.bertscore(prediction, source) if prediction else 0.0
    grammar = judges.grammatical(prediction)
    scores: AnswerScores = {"inv_bleu_score": unlike, "bertscore_score": alike, "grammar_score": grammar}
    return {"score": product(unlike, alike, grammar), **scores}


def product(*factors: float | None) -> float | None:
    """The product, or None when a factor is unknown: a missing judge never counts as 0 or 1."""
    total = 1.0
    for factor in factors:
        if factor is None:
            return None
        total *= factor
    return total


# Names as in the benchmark's files.
METRICS: dict[str, Metric] = {
    "list_match_score": lambda prediction, truth, _: scoring.list_match(prediction, scoring.read_lenient(truth)),
    "list_shuffle_score": _without_judges(scoring.list_shuffle, "input"),
    "list_random_insert_score": _without_judges(scoring.list_random_insert, "input", "word"),
    "list_random_remove_score": _without_judges(scoring.list_random_remove, "input"),
    "list_random_replace_score": _without_judges(scoring.list_random_replace, "input", "word"),
    "latin_square_score": _without_judges(scoring.latin_square, "symbols"),
    "sudoku_score": lambda prediction, truth, _: scoring.sudoku(prediction, truth),
    "sentence_to_words_score": _words,
    "sentence_to_words_grammar": _words_grammar,
    "summary_score": _summary,
    "paraphrase_score": _paraphrase,
}
# What the truth of a metric must hold; metrics that are not here take a text.
HOLDS: dict[str, tuple[str, ...]] = {
    "list_shuffle_score": ("input",),
    "list_random_insert_score": ("input", "word"),
    "list_random_remove_score": ("input",),
    "list_random_replace_score": ("input", "word"),
    "latin_square_score": ("symbols",),
    "sentence_to_words_score": ("words",),
    "sentence_to_words_grammar": ("words",),
    "summary_score": ("summary",),
    "paraphrase_score": ("text",),
}
