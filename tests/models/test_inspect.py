"""The checkpoint inspector: facts without loading, problems as sentences, a verdict."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from model_folders import DATA, copy_of, edit_config, edit_weights, llada_tokenizer, published, random_folder, shard
from rich.console import Console

from dllm.app.commands import checkpoint as module
from dllm.parts import Report, UserError, fact_rows, inspect_checkpoint, print_report


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=400)
    print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["llada_mha_untied", "llada_gqa_tied", "dream_gqa", "sdar_b4", "tiny-llada", "wedlm_bias", "tiny-nbdiff"]
)
def test_a_complete_checkpoint_is_ready(name: str) -> None:
    report = inspect_checkpoint(DATA / name)
    assert report.problems == ()
    assert report.verdict == "ready"
    assert printed(report).rstrip().endswith("ready")


@pytest.mark.parametrize(
    ("name", "attention", "cache"),
    [
        ("dream_gqa", "full, both ways", "approximate"),
        ("sdar_b4", "block-causal; decode with blocks.block_length=4", "exact"),
        ("wedlm_qknorm", "causal, known tokens before masks", "exact"),
        ("tiny-nbdiff", "causal; both ways inside the block that is decoded, of 32 columns", "exact"),
    ],
)
def test_attention_is_told_with_what_it_means_for_caches(name: str, attention: str, cache: str) -> None:
    rows = dict(fact_rows(inspect_checkpoint(DATA / name, mask_id=60)))
    assert rows["attention"].startswith(attention) and rows["caches"].startswith(cache)
    assert ("guidance" in rows) == (name in ("dream_gqa", "sdar_b4"))


def test_sizes_are_those_of_the_file() -> None:
    report = inspect_checkpoint(DATA / "llada_mha_untied")
    assert report.parameters == report.active == 121280
    assert report.weight_bytes("bfloat16") == 2 * report.parameters
    assert report.kv_bytes("float32") == 2 * 3 * 64 * 4
    assert report.dtypes == (("F32", 30),)
    assert report.shards == 1


def test_routed_experts_count_only_where_they_are_met() -> None:
    report = inspect_checkpoint(DATA / "llada2_moe", mask_id=130)
    assert report.usable
    assert report.parameters - report.active == 2 * (8 - 3) * 3 * 48 * 24
    assert "active per token" in printed(report)


def test_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "to", lambda *_: pytest.fail("a tensor was moved"))
    assert inspect_checkpoint(DATA / "llada_mha_untied").usable


def test_shards_are_counted(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    shard(folder)
    assert inspect_checkpoint(folder).shards == 2


def test_missing_weights_are_a_verdict_not_an_error(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    (folder / "model.safetensors").unlink()
    report = inspect_checkpoint(folder)
    assert report.verdict.startswith(f"not usable: {folder} holds neither model.safetensors")
    assert report.parameters == 121280
    assert "no readable weights" in printed(report)


def test_an_unknown_architecture_is_said_once_with_the_way_out(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    edit_config(folder, architectures=["GlimmerModelLM"])
    said = printed(inspect_checkpoint(folder))
    assert said.count("GlimmerModelLM") == 1 and said.rstrip().endswith("not usable")
    assert "if it is one by another name, say which by family=LLaDAModelLM" in said
    edit_config(folder, architectures=["LLaDAModelLM"])
    assert inspect_checkpoint(folder).usable


def test_every_tensor_problem_is_a_sentence(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    changes = {"model.transformer.ln_f.weight": None, "model.transformer.wte.weight": torch.zeros(2, 2)}
    edit_weights(folder, model__extra=torch.ones(1), **changes)
    problems = inspect_checkpoint(folder).problems
    assert problems == (
        "tensor model.transformer.wte.weight has shape [2, 2], config.json implies [128, 64].",
        "tensor model.transformer.ln_f.weight is missing.",
        "tensor model.extra is not part of this architecture.",
    )
    assert inspect_checkpoint(folder).verdict.endswith("(and 2 more)")


def test_many_problems_are_summed_up(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    edit_config(folder, d_model=32)
    problems = inspect_checkpoint(folder).problems
    assert len(problems) == module.MAX_PROBLEMS + 1
    assert problems[-1] == "20 further tensors of the 30 expected do not fit."


def test_sizes_beyond_the_weights_are_not_counted(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    edit_config(folder, n_layers=9000)
    report = inspect_checkpoint(folder)
    assert report.problems == (
        "config.json has n_layers=9000: that takes 54000 tensors or more, and the weights hold 30. "
        "Copy config.json and weights of one checkpoint.",
    )
    assert report.parameters == 0
    assert "not counted" in printed(report)
    assert "of weights" not in printed(report)


def test_a_differing_tied_head_is_found(tmp_path: Path) -> None:
    folder = copy_of("llada_gqa_tied", tmp_path)
    edit_weights(folder, model__transformer__ff_out__weight=torch.zeros(128, 64))
    assert "differs from" in inspect_checkpoint(folder).verdict


@pytest.mark.parametrize(
    ("text", "sentence"), [("{", "not valid JSON"), ('{"model_type": "gpt2"}', "known architectures")]
)
def test_a_bad_config_is_a_verdict(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    report = inspect_checkpoint(tmp_path)
    assert sentence in report.verdict
    assert "problem" in printed(report)


def test_an_empty_folder_is_a_verdict_and_no_folder_an_error(tmp_path: Path) -> None:
    assert "no config.json" in inspect_checkpoint(tmp_path).verdict
    with pytest.raises(UserError):
        inspect_checkpoint("nowhere")


def test_tokenizer_and_ids_are_shown_with_their_strings(tmp_path: Path) -> None:
    ids = {"mask_token_id": 258, "eos_token_id": 257, "pad_token_id": 257}
    random_folder(tmp_path, published("llada_mha_untied", vocab_size=264, embedding_size=264, **ids))
    llada_tokenizer(tmp_path)
    text = printed(inspect_checkpoint(tmp_path))
    for part in (
        "258 <|mdm_mask|>",
        "257 <|endoftext|>, 261 <|eot_id|>",
        "262 ids in the tokenizer, 264 logit columns",
        "2 logit columns lie beyond",
    ):
        assert part in text


def test_a_tokenizer_larger_than_the_logits_is_a_problem(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    llada_tokenizer(folder, chat=False)
    report = inspect_checkpoint(folder)
    assert report.problems == (
        "the tokenizer has 262 ids, the model's logits only 128 columns. Copy tokenizer and weights of one checkpoint.",
    )
    assert any("No chat template" in note for note in report.notes)


def test_a_broken_tokenizer_is_a_problem(tmp_path: Path) -> None:
    folder = copy_of("llada_mha_untied", tmp_path)
    (folder / "tokenizer.json").write_text("{")
    assert "cannot be read" in inspect_checkpoint(folder).verdict


def test_features_follow_the_family() -> None:
    dream, sdar = (
        dict(fact_rows(inspect_checkpoint(DATA / "dream_gqa"))),
        dict(fact_rows(inspect_checkpoint(DATA / "sdar_b4"))),
    )
    assert dream["prediction"] == "position i is read from position i-1"
    assert dream["attention"].startswith("full")
    assert dream["caches"].startswith("approximate")
    assert "blocks.block_length=4" in sdar["attention"]
    assert sdar["caches"].startswith("exact")
