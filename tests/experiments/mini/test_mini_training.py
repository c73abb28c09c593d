"""Training the mini models: a run killed at any moment ends as one that was not, and does not go on with other data."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dllm.parts import ModelConfig, NoCacheMemory, Transformer, UserError, Visible, apart, load_model
from dllm.tasks.mini import lexicon, wordings
from experiments.mini import data, tokenizer, train
from experiments.mini.forward import logits_at
from experiments.mini.objectives import masked
from experiments.mini.recipe import Muon, Recipe, build_model, embeddings, published_config, recipe_of
from experiments.mini.redraw import redraw_of
from tests.support.fake_gpu import GPU, FakeGPUs, place_of, put
from tests.support.killing import killed_after

TINY = Recipe(width=16, head_dim=8, layers=1, mlp_width=24, batch=3, steps=16, hard_share=0.34)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_run_killed_at_any_moment_ends_as_one_that_was_not(tmp_path: Path) -> None:
    train.train(TINY, tmp_path / "straight", save_every=2)
    began = time.monotonic()
    train.train(TINY, tmp_path / "again", save_every=2)
    whole = time.monotonic() - began
    for share in (0.4, 0.5):
        killed_after(whole * share, train.train, TINY, tmp_path / "killed", 0, 2)
    train.train(TINY, tmp_path / "killed", save_every=2)
    straight, others = tmp_path / "straight", (tmp_path / "again", tmp_path / "killed")
    for other in others:
        assert (other / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
        for key in ("model", "optimizers"):
            one, two = (torch.load(folder / train.STATE, weights_only=True)[key] for folder in (straight, other))
            assert str(one) == str(two)
        assert losses(other) == losses(straight)
    report = json.loads((tmp_path / "killed" / train.REPORT).read_text())
    assert 1 <= report["starts"] <= 3 and report["step"] == TINY.steps


def test_several_threads_give_the_same_weights(tmp_path: Path) -> None:
    """A step of many groups, shared by three threads."""
    wide = replace(TINY, batch=40, steps=4)
    for threads in (1, 3):
        train.train(wide, tmp_path / str(threads), threads=threads)
    one, three = (tmp_path / name / "model.safetensors" for name in ("1", "3"))
    assert one.read_bytes() == three.read_bytes() and losses(one.parent) == losses(three.parent)


def losses(folder: Path) -> list[Any]:
    lines = [json.loads(line) for line in (folder / train.LOG).read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def test_a_run_goes_on_only_with_its_own_recipe_data_and_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train.train(TINY, tmp_path, stop_at=2)
    with pytest.raises(UserError, match=r"begun with batch=3, not 4; .* or another folder"):
        train.train(replace(TINY, batch=4), tmp_path)
    assert train.main(["mini-llada", "--out", str(tmp_path)]) == 2
    assert "begun with width=16, not 128" in capsys.readouterr().err
    with monkeypatch.context() as other:
        other.setitem(wordings.TRAINED, "copy", ("Say it",))
        with pytest.raises(UserError, match="begun with other data;"):
            train.train(TINY, tmp_path)
    monkeypatch.setattr(tokenizer, "entries", lambda wide=False: ["one", "two"])
    with pytest.raises(UserError, match="begun with another tokenizer"):
        train.train(TINY, tmp_path)


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_losses_on_a_gpu_are_those_on_a_cpu(name: str) -> None:
    """On a GPU that is not there: every tensor is where it must be, and draws are the same."""
    vocab = tokenizer.build(name)
    model = build_model(replace(TINY, model=name), tokenizer.texts(vocab))
    batch = data.make_batches(vocab, name, data.structure(vocab), 6, 0.5, 0, 0)[0]

    def losses(batch: data.Batch) -> tuple[torch.Tensor, data.Batch, dict[str, float]]:
        hard, sums = masked.harden(model, batch, 0.5, 3), train.Sums()
        found = masked.losses_of(model, hard).detach()
        sums.add(hard, found)
        return found * hard.share(), hard, sums.means()

    wanted, hard, means = losses(batch)
    with FakeGPUs():
        for parameter in model.parameters():
            put(parameter, GPU)
        found, other, sums = losses(batch.to(torch.device("cuda")))
        assert place_of(found) == GPU and place_of(other.masked) == GPU
    assert torch.equal(wanted, found) and torch.equal(hard.masked, other.masked) and means == sums


def test_a_line_of_the_log_cut_by_a_kill_is_forgotten(tmp_path: Path) -> None:
    train.train(TINY, tmp_path, stop_at=4, save_every=2)
    with (tmp_path / train.LOG).open("a") as file:
        file.write(json.dumps({"step": 6, "loss": {}}) + '\n{"step": 8, "lo')
    assert [step for step, _ in losses_after(tmp_path)] == [2, 4]


def losses_after(folder: Path) -> list[Any]:
    train.Run(TINY, folder)
    return losses(folder)


def test_the_checkpoint_is_bfloat16_and_loads_as_published(tmp_path: Path) -> None:
    for name in ("mini-llada", "mini-dream"):
        recipe = replace(TINY, model=name, steps=1)
        model = train.train(recipe, tmp_path / name)
        loaded = dict(apart(load_model(tmp_path / name)))
        for key, weight in model.named_parameters():
            assert torch.equal(loaded[key], weight.to(torch.bfloat16).to(loaded[key].dtype)), key
        published = json.loads((tmp_path / name / "config.json").read_text())
        assert published["torch_dtype"] == "bfloat16" and model.config.prediction_shift == (name == "mini-dream")


def test_default_recipes_keep_to_the_limits() -> None:
    for name in tokenizer.SPECIAL:
        size = tokenizer.build(name).get_vocab_size()
        with torch.device("meta"):
            model = Transformer(ModelConfig.from_published(published_config(recipe_of(name), size)))
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count <= 5_000_000 and 2 * count <= 10_000_000


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
def test_chosen_logits_are_those_of_the_whole_network(name: str) -> None:
    torch.manual_seed(0)
    vocab = tokenizer.build(name)
    model = build_model(replace(TINY, model=name, layers=2), tokenizer.texts(vocab))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    shift = model.config.prediction_shift
    for batch in data.make_batches(vocab, name, data.structure(vocab), 7, 0.5, 0, 3):
        rows, columns = batch.masked.nonzero(as_tuple=True)
        positions = torch.arange(batch.tokens.shape[1]).expand_as(batch.tokens)
        hidden = model(batch.tokens, positions, NoCacheMemory(Visible(batch.visible(shift))))[0]
        wanted = model.head(hidden[rows, columns - shift])
        assert torch.allclose(
            logits_at(model, batch.tokens, batch.visible(shift), rows, columns - shift), wanted, atol=1e-4
        )


def test_prompts_that_stand_alone_do_not_depend_on_the_answer() -> None:
    """With another answer, hidden rows of the prompt stay as they are in rows that are alone, and only there."""
    for name in ("mini-llada", "mini-dream"):
        vocab = tokenizer.build(name)
        model = build_model(replace(TINY, model=name, layers=2, seed=1), tokenizer.texts(vocab))
        shift = model.config.prediction_shift
        batch = data.make_batches(vocab, name, data.structure(vocab), 12, 0.5, 0, 1)[0]
        batch = replace(batch, alone=torch.arange(len(batch.tasks)) % 2 == 0)
        positions = torch.arange(batch.tokens.shape[1]).expand_as(batch.tokens)
        other = torch.where(batch.answer, batch.tokens + 1, batch.tokens)
        visible = Visible(batch.visible(shift))
        one, two = (model(tokens, positions, NoCacheMemory(visible))[0] for tokens in (batch.tokens, other))
        start = batch.answer.int().argmax(1)
        for row, alone in enumerate(batch.alone.tolist()):
            prompt = slice(0, int(start[row]) - shift)
            assert torch.equal(one[row, prompt], two[row, prompt]) == alone
            # What predicts the first token of the answer always sees the others.
            assert not torch.equal(one[row, start[row] - shift], two[row, start[row] - shift])


def test_muon_is_torchs() -> None:
    """The same steps as torch.optim.Muon, but for its rounding to bfloat16."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 16), (16, 16), (24, 16), (16, 24)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    optimizers = (Muon(ours, 0.02, 0.1), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1))
    for _ in range(5):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            two.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = torch.cat([(one - 1).flatten() for one in ours])
    apart = torch.cat([(one - two).flatten() for one, two in zip(ours, theirs, strict=True)])
    assert apart.norm() < 0.02 * moved.norm()


def test_first_embeddings_are_akin_by_word_and_by_first_letters() -> None:
    made = embeddings(["list", " list", "List", "live", "copy"], 20_000, 0.85, torch.Generator().manual_seed(0))
    alike = torch.corrcoef(made)
    assert torch.allclose(made.std(1), torch.ones(5), atol=0.02)
    assert alike[0, 1] == pytest.approx(0.85**2, abs=0.03)  # each keeps 0.85 of what they share
    assert 0.1 < alike[0, 3] - alike[0, 4] < 0.5  # two letters in common


def test_what_is_copied_is_proposed_before_training() -> None:
    """The head begins as the embedding: a row's own token has the largest logit, for names never trained on too."""
    vocab = tokenizer.build("mini-llada")
    model = build_model(Recipe(), tokenizer.texts(vocab))
    new, every = torch.tensor(tokenizer.new_ids(vocab)), torch.arange(3, vocab.get_vocab_size())
    for ids, least in ((new, 1.0), (every, 0.97)):
        assert (model.head(model.norm(model.embed(ids))[1]).argmax(-1) == ids).float().mean() >= least


def test_names_never_trained_on_keep_their_first_rows(tmp_path: Path) -> None:
    vocab = tokenizer.build("mini-llada")
    ids = tokenizer.new_ids(vocab)
    before = build_model(TINY, tokenizer.texts(vocab)).state_dict()
    after = train.train(TINY, tmp_path, stop_at=4).state_dict()
    for name in ("embed.weight", "lm_head.weight"):
        assert torch.equal(before[name][ids], after[name][ids]) and not torch.equal(before[name], after[name])


def test_a_step_redraws_known_names_alone_and_puts_their_rows_back() -> None:
    """Half of a new row's variance is that of its letters, which sorting goes by."""
    vocab = tokenizer.build("mini-llada")
    model = build_model(Recipe(), tokenizer.texts(vocab))
    before = [matrix.detach().clone() for matrix in (model.embed.weight, model.lm_head.weight)]
    names = {vocab.encode(name).ids[0] for name in lexicon.NAMES if name not in lexicon.TOWNS}
    drawn = redraw_of(vocab, model.embed.weight.detach())
    with drawn.drawn(model, 0.5, "0/1"):
        embed, head = (matrix.detach().clone() for matrix in (model.embed.weight, model.lm_head.weight))
    changed = (embed != before[0]).any(1).nonzero().flatten().tolist()
    assert set(changed) < names and 0.4 < len(changed) / len(names) < 0.6
    assert (head != before[1]).any(1).nonzero().flatten().tolist() == changed
    assert torch.allclose(head[changed], embed[changed] * Recipe().width ** -0.5)
    rows = torch.stack([embed[changed].flatten(), before[0][changed].flatten()])
    assert torch.allclose(rows.std(1), torch.ones(2), atol=0.02)
    assert 0.4 < float(torch.corrcoef(rows)[0, 1]) < 0.6
    with drawn.drawn(model, 0.5, "0/1"):
        assert torch.equal(model.embed.weight, embed)
    with drawn.drawn(model, 0.5, "0/2"):
        assert not torch.equal(model.embed.weight, embed)
    assert all(torch.equal(*pair) for pair in zip(before, (model.embed.weight, model.lm_head.weight), strict=True))


def test_further_wordings_hold_no_word_that_lists_of_new_words_are_made_of() -> None:
    """Training cuts those out of its vocabulary."""
    vocab = tokenizer.build("mini-llada")
    new, new_ids = {*tokenizer.new_words()}, {*tokenizer.new_ids(vocab)}
    said = {
        word for templates in wordings.more().values() for text in templates for word in wordings.request_words(text)
    }
    forms = {form(word) for word in said for form in (str, str.lower, str.upper, str.title)}
    assert not forms & new and not {f" {form}" for form in forms} & new
    assert all(vocab.encode(form).ids[0] not in new_ids for form in forms)
