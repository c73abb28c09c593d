"""Batches of the mini models: only answers are masked, canvases fit, templates are the shipped ones, pieces spell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoTokenizer

from dllm.parts import Draw, locate
from dllm.tasks.mini import lexicon, tasks
from experiments.mini import data, tokenizer
from experiments.mini.masks import BLOCK

MODELS = tuple(tokenizer.SPECIAL)
TEXTS = ("Tab\there", "naïve 東京 🙂", "  two  spaces\n\n\nlines ", '["Zoltan", "Ada"]', "a1b22.,:;", "12+7=19")


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_round_trips(text: str) -> None:
    built = tokenizer.build("mini-llada")
    assert built.decode(built.encode(text).ids, skip_special_tokens=False) == text


def test_names_are_one_token_wherever_they_stand_and_spelt_ones_are_pieces() -> None:
    built = tokenizer.build("mini-llada")
    for word in (*lexicon.NAMES, *lexicon.NEW_NAMES, *lexicon.TOWNS, "Shuffle", "37"):
        alone = built.encode(word).ids
        assert len(alone) == 1 and built.encode(f" {word}").ids[1:] == alone, word
    assert [len(built.encode(text).ids) for text in ("shuffle", " shuffle", "Shuffle", "SHUFFLE")] == [1, 1, 1, 1]
    rng = Random(0)
    for seen in (True, False):
        lengths = [len(built.encode(lexicon.invent(rng, seen)).ids) for _ in range(300)]
        assert min(lengths) >= 1 and 2 < sum(lengths) / 300 < 4.5


def test_new_names_have_the_last_ids() -> None:
    built = tokenizer.build("mini-llada")
    last = built.get_vocab_size()
    assert tokenizer.new_ids(built) == list(range(last - len(tokenizer.new_words()), last))


@pytest.mark.parametrize("task", tasks.TASKS)
def test_answers_fit_their_budget_with_an_end(task: str) -> None:
    built = tokenizer.build("mini-llada")
    lengths = [len(built.encode(sample.answer).ids) for sample in tasks.generate(task, 0, 100)]
    assert max(lengths) < tasks.longest(task) and (task in tasks.SHORT_ANSWERS or max(lengths) >= 64)


@pytest.mark.parametrize("model", MODELS)
def test_training_writes_the_shipped_tokenizer(model: str, tmp_path: Path) -> None:
    tokenizer.save(model, tmp_path)
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(written) == 3 and written == {name: (locate(model) / name).read_bytes() for name in written}


@pytest.mark.parametrize("model", MODELS)
def test_training_renders_the_shipped_template(model: str) -> None:
    shipped = AutoTokenizer.from_pretrained(locate(model))
    before, now = tasks.generate("copy", 1, 2)[0], tasks.generate("sort", 1, 1)[0]
    turns = [*before.messages, {"role": "assistant", "content": before.answer}, *now.messages]
    wanted = shipped.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert data.render(model, data.Conversation(now, (before,))) == wanted


@pytest.mark.parametrize("progress", [0.0, 0.06, 0.15, 0.5])
def test_batches_mask_answers_only(progress: float) -> None:
    built = tokenizer.build("mini-llada")
    marks = data.structure(built)
    for step in range(4):
        batches = data.make_batches(built, "mini-llada", marks, 12, progress, 0, step)
        assert sum(len(batch.tasks) for batch in batches) == 12
        for batch in batches:
            assert batch.masked.any(1).all() and not (batch.masked & ~batch.answer).any()
            assert (batch.tokens[batch.masked] == tokenizer.MASK).all()
            assert torch.equal(batch.tokens[~batch.masked], batch.target[~batch.masked])
            assert (batch.target != tokenizer.MASK).all() and not (batch.answer & ~batch.valid).any()


def test_all_canvases_and_names_and_earlier_turns_come_up() -> None:
    built = tokenizer.build("mini-llada")
    marks, lengths, turns = data.structure(built), set(), set()
    for step in range(40):
        for batch in data.make_batches(built, "mini-llada", marks, 40, 0.5, 0, step):
            lengths |= set(batch.answer.sum(1).tolist())
            starts = (batch.target == built.token_to_id("<|start_header_id|>")).sum(1)
            turns |= {int(count) // 2 for count in starts}
    assert lengths >= {32, 64, 128, 256} and turns == {1, 2, 3}


def test_batches_are_a_function_of_seed_and_step() -> None:
    built = tokenizer.build("mini-dream")
    marks = data.structure(built)
    one, two, other = (data.make_batches(built, "mini-dream", marks, 9, 0.5, seed, 4) for seed in (1, 1, 2))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(one, two, strict=True))
    assert len(one) != len(other) or any(a.tokens.shape != b.tokens.shape for a, b in zip(one, other, strict=True))


def test_the_least_expected_are_masked() -> None:
    built = tokenizer.build("mini-llada")
    batch = max(
        data.make_batches(built, "mini-llada", data.structure(built), 6, 0.5, 0, 0), key=lambda one: len(one.tokens)
    )
    expected = torch.rand(batch.answer[-2:].shape, generator=torch.Generator().manual_seed(0))
    hard = data.mask_least_expected(batch, expected, 2, torch.Generator().manual_seed(1))
    for row in (-2, -1):
        masked, seen = (expected[row][at] for at in (hard.masked[row], batch.answer[row] & ~hard.masked[row]))
        assert len(masked) >= 1 and masked.max() < seen.min()
        assert (hard.tokens[row][hard.masked[row]] == tokenizer.MASK).all()
    assert torch.equal(hard.masked[:-2], batch.masked[:-2])


def test_the_digest_follows_the_items() -> None:
    wide, narrow = data.MIXES["wide"], data.MIXES["narrow"]
    assert data.digest(0, wide) == data.digest(0, wide) != data.digest(1, wide)
    assert data.digest(0, wide) != data.digest(0, narrow) == "1d71230bea346148"  # mini-ar's card says so
    assert tasks.draw("copy", Draw(Random(0)), "train").split == "train"


@pytest.mark.parametrize("shift", [0, 1])
def test_committed_tokens_that_are_kept_do_not_see_later_ones(shift: int) -> None:
    """Brute force over every query and key of a row; what predicts a mask sees all of the answer."""
    name = "mini-dream" if shift else "mini-llada"
    vocab = tokenizer.build(name)
    batch = data.make_batches(vocab, name, data.structure(vocab), 12, 0.5, 0, 3)[0]
    batch = replace(batch, alone=torch.zeros_like(batch.alone), kept=torch.arange(len(batch.tasks)) % 2 == 0)
    visible, hidden = batch.visible(shift), 0
    for row in range(len(batch.tasks)):
        for query in range(batch.tokens.shape[1]):
            predicts = query + shift < batch.tokens.shape[1] and bool(batch.masked[row, query + shift])
            for key in range(batch.tokens.shape[1]):
                both = all(batch.answer[row, at] and not batch.masked[row, at] for at in (query, key))
                later = bool(batch.rank[row, key] > batch.rank[row, query])
                out = both and later and not predicts and bool(batch.kept[row])
                assert bool(visible[row, query, key]) == (bool(batch.valid[row, key]) and not out)
                hidden += out
    assert hidden > 20


@pytest.mark.parametrize("shift", [0, 1])
def test_what_lies_outside_a_half_decided_block_does_not_see_what_it_has(shift: int) -> None:
    """Brute force: only the block's own columns, and what predicts its first one, see its committed tokens."""
    name = "mini-dream" if shift else "mini-llada"
    vocab, mix, hidden = tokenizer.build(name), replace(data.MIXES["adapted"], frozen=0.5), 0
    for batch in data.make_batches(vocab, name, data.structure(vocab), 12, 0.5, 0, 3, mix):
        batch = replace(batch, alone=torch.zeros_like(batch.alone), kept=torch.zeros_like(batch.kept))
        visible = batch.visible(shift)
        for row in batch.outside.any(1).nonzero().flatten().tolist():
            inside = (~batch.outside[row]).nonzero().flatten().tolist()
            first, last = inside[0], inside[-1]
            assert inside == list(range(first, last + 1)) and len(inside) <= BLOCK
            assert batch.answer[row, inside].all()
            behind = batch.answer[row].clone()
            behind[: last + 1] = False
            assert batch.masked[row, behind].all() and not batch.masked[row, :first].any()
            for query in range(batch.tokens.shape[1]):
                own = first - shift <= query <= last
                for key in inside:
                    out = not own and not bool(batch.masked[row, key])
                    assert bool(visible[row, query, key]) == (bool(batch.valid[row, key]) and not out)
                    hidden += out
    assert hidden > 20


def test_other_mixes_have_no_half_decided_blocks() -> None:
    vocab = tokenizer.build("mini-llada")
    batches = data.make_batches(vocab, "mini-llada", data.structure(vocab), 12, 0.5, 0, 3)
    assert not any(bool(batch.outside.any()) for batch in batches)
