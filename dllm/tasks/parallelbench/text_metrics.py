"""ROUGE, BLEU and BERTScore from their libraries (the extra ``text``). None where a library is not installed."""

from __future__ import annotations

from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dllm.common.errors import UserError, first_line, nearest
from dllm.common.installing import not_installed

ROUGE = ("rouge1", "rouge2", "rougeL")


def has_rouge() -> bool:
    return find_spec("rouge_score") is not None


def has_bleu() -> bool:
    return find_spec("sacrebleu") is not None


def rouge(prediction: str, reference: str) -> dict[str, float] | None:
    """F-measures of ROUGE-1, -2 and -L, stemmed."""
    if not has_rouge():
        return None
    scores = _rouge_scorer().score(reference, prediction)
    return {name: float(scores[name].fmeasure) for name in ROUGE}


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)


def bleu(prediction: str, reference: str) -> float | None:
    """BLEU-4 in [0, 1], 13a tokens, no smoothing: 0 as soon as one order of n-grams has no match."""
    if not has_bleu():
        return None
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(tokenize="13a", smooth_method="none", effective_order=False)
    return float(scorer.corpus_score([prediction], [[reference]]).score) / 100


class BERTScore:
    """F1 of matched contextual embeddings, with the model's standard layer. ``model``: a hub id or a folder.

    Raises UserError when the library or the model is not there; the weights are read at the first question.
    """

    def __init__(self, model: str) -> None:
        if find_spec("bert_score") is None:
            raise not_installed(f"task.bertscore={model!r}", "bert-score", "text")
        from bert_score.utils import model2layers

        name = Path(model).name if model not in model2layers else model
        if name not in model2layers:
            some = ", ".join(sorted(model2layers)[:6])
            raise UserError(
                f"task.bertscore={model!r} is not a model whose best layer is known. Use roberta-large, or a folder "
                f"named like one of {some}, ...{nearest(name, model2layers)}"
            )
        self.model, self.name, self.layer = model, name, int(model2layers[name])
        self._refuse_absent()

    def _refuse_absent(self) -> None:
        from transformers import AutoConfig

        try:
            AutoConfig.from_pretrained(self.model)
        except (OSError, ValueError) as error:
            raise UserError(
                f"task.bertscore={self.model!r} cannot be read: {first_line(error)}. Download it where there is a "
                "network and give its folder, or set task.bertscore=null to leave the score out."
            ) from None

    def __call__(self, prediction: str, reference: str) -> float:
        *_, f1 = self._scorer.score([prediction], [reference])
        return float(f1[0])

    @cached_property
    def _scorer(self) -> Any:
        from bert_score import BERTScorer

        return BERTScorer(model_type=self.model, num_layers=self.layer)
