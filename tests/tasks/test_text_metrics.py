"""ROUGE, BLEU and BERTScore against values worked out by hand."""

from __future__ import annotations

from importlib.util import find_spec
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch

from dllm import UserError
from dllm.parts import BERTScore, Judges, ParallelBench, bleu, has_bleu, has_rouge, metric_scores, rouge
from dllm.tasks.parallelbench import text_metrics
from tests.tasks.test_sources import write

with_rouge = pytest.mark.skipif(not has_rouge(), reason="needs the extra text")
with_bleu = pytest.mark.skipif(not has_bleu(), reason="needs the extra text")
with_bertscore = pytest.mark.skipif(find_spec("bert_score") is None, reason="needs the extra text")
SOURCE = "the small dog ran to the old mill"


@with_rouge
def test_rouge_of_stemmed_words() -> None:
    # 3 of 4 words, 1 of 3 pairs, "anna bake cake" in order; baking and bakes share a stem.
    found = rouge("Anna was baking cakes", "Anna bakes cakes daily")
    assert found is not None
    assert found["rouge1"] == pytest.approx(3 / 4) and found["rouge2"] == pytest.approx(1 / 3)
    assert found["rougeL"] == pytest.approx(3 / 4)
    assert rouge("", SOURCE) == {"rouge1": 0, "rouge2": 0, "rougeL": 0}


@with_rouge
def test_a_summary_is_rouge_times_grammar() -> None:
    truth = {"summary": "Anna bakes cakes daily"}
    scores = metric_scores("summary_score", " Anna was baking cakes ", truth, Judges(lambda text: 1.0))
    assert scores["score"] == pytest.approx(3 / 4) and scores["rouge2_score"] == pytest.approx(1 / 3)
    assert metric_scores("summary_score", "Anna was baking cakes", truth, Judges(lambda text: 0.0))["score"] == 0


@with_bleu
def test_bleu_is_a_geometric_mean_with_a_penalty_for_brevity() -> None:
    # 7 tokens of 8: 7 of 7, 5 of 6, 4 of 5 and 3 of 4 n-grams.
    precision = (7 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25
    assert bleu("the small dog ran to the mill", SOURCE) == pytest.approx(precision * exp(1 - 8 / 7))
    assert bleu(SOURCE, SOURCE) == pytest.approx(1)


@with_bleu
@pytest.mark.parametrize("text", ["", "dog", "the small dog", "a mill stands where dogs run", "old the mill ran the"])
def test_bleu_without_a_match_of_every_order_is_nothing(text: str) -> None:
    assert bleu(text, SOURCE) == 0


@with_bleu
def test_bleu_tokens_are_those_of_13a() -> None:
    assert bleu("It's 3.5 miles, he said.", "It's 3.5 miles , he said .") == pytest.approx(1)


@with_bleu
def test_a_paraphrase_is_unlike_alike_and_grammatical() -> None:
    truth, judges = {"text": SOURCE}, Judges(lambda text: 1.0, lambda one, other: 0.8)
    scores = metric_scores("paraphrase_score", "To the old mill the small dog ran", truth, judges)
    unlike = 1 - (bleu("To the old mill the small dog ran", SOURCE) or 0)
    assert 0 < unlike < 1 and scores["score"] == pytest.approx(unlike * 0.8)
    assert metric_scores("paraphrase_score", " ", truth, Judges(lambda text: 0.0, lambda one, other: 0.8)) == {
        "score": 0,
        "inv_bleu_score": 0,
        "bertscore_score": 0,
        "grammar_score": 0,
    }


@pytest.mark.parametrize("judges", [Judges(), Judges(lambda text: 1.0), Judges(None, lambda one, other: 0.8)])
def test_a_paraphrase_without_one_of_its_judges_has_no_score(judges: Judges) -> None:
    for text in ("To the mill ran the dog", ""):
        assert metric_scores("paraphrase_score", text, {"text": SOURCE}, judges)["score"] is None


def test_without_the_libraries_scores_are_missing_and_the_way_to_them_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_metrics, "find_spec", lambda name: None)
    for name, answer in (("samsum", {"summary": "Hello."}), ("chatgpt-paraphrases", {"text": "Hi."})):
        rows = [{"input": {"text": "Hi."}, "answer": answer}] * 3
        write(tmp_path, "r1", f"paraphrase_summarize/{name}", None, rows)
    task = ParallelBench(tasks=["paraphrase_summarize"], count=3, path=str(tmp_path))
    assert task.score(task.items()[0], "Hello there.")["inv_bleu_score"] is None
    assert task.score(task.items()[3], "Hello there.")["rougeL_score"] is None
    missing = task.missing()
    assert set(missing) == {"grammar_score", "bertscore_score", "inv_bleu_score", "rougeL_score"}
    assert all("[text]'" in missing[name] for name in ("inv_bleu_score", "rougeL_score"))
    with pytest.raises(UserError, match="needs bert-score, which is not installed"):
        BERTScore("roberta-large")


@with_bertscore
@pytest.mark.parametrize("model", ["roberta-lrage", "/nowhere/bert", "roberta-large"])
def test_a_model_of_similarity_that_is_not_there_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def offline(name: str) -> None:
        raise OSError("We couldn't connect to the hub\nand more")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    words = "couldn't connect.*give its folder" if model == "roberta-large" else "best layer"
    with pytest.raises(UserError, match=words):
        BERTScore(model)


@with_bertscore
def test_similarity_is_the_f1_of_matched_embeddings(tmp_path: Path) -> None:
    folder = make_roberta(tmp_path / "roberta-base")
    judge = BERTScore(str(folder))
    assert judge("the dog ran", "the dog ran") == pytest.approx(1, abs=1e-5)
    one, other = "the small dog ran", "the old mill"
    assert judge(one, other) == pytest.approx(by_hand(folder, one, other), abs=1e-5)
    assert judge(one, other) == pytest.approx(judge(other, one), abs=1e-5)


def make_roberta(folder: Path) -> Path:
    """A random encoder with the depth of roberta-base and a word-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted(set(SOURCE.split()))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=32,
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=12,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    RobertaModel(config).save_pretrained(folder)
    return folder


def by_hand(folder: Path, one: str, other: str) -> float:
    """BERTScore's definition: each word with its most similar one on the other side; special tokens carry no weight."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    sides: list[Any] = []
    for text in (one, other):
        with torch.no_grad():
            found = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        hidden = found.hidden_states[10][0]  # roberta-base's standard layer
        sides.append(hidden / hidden.norm(dim=-1, keepdim=True))
    alike = sides[0] @ sides[1].T
    precision, recall = alike[1:-1].max(1).values.mean(), alike[:, 1:-1].max(0).values.mean()
    return float(2 * precision * recall / (precision + recall))
