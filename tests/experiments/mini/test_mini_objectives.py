"""What the causal mini models learn from: a term of the loss sees what decoding sees, and counts as published."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dllm import Decoder, load, part
from dllm.parts import CausalByRank, ContextCausal, Transformer, UserError, load_model
from experiments.mini import data, tokenizer, train
from experiments.mini.forward import logits_at
from experiments.mini.objectives import OBJECTIVES
from experiments.mini.objectives.next_block import block_at
from experiments.mini.objectives.streams import NEXT, Streams, noise
from experiments.mini.recipe import Recipe, build_model, recipe_of

SMALL: dict[str, Any] = {"width": 16, "head_dim": 8, "layers": 2, "mlp_width": 24, "batch": 5, "steps": 10}
CAUSAL = ("mini-ar", "mini-wedlm", "mini-nbdiff")
VOCAB = tokenizer.build("mini-ar")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(name: str, **changed: Any) -> Recipe:
    return recipe_of(name, **{**SMALL, "base": "", **changed})


def noisy_model(name: str) -> Transformer:
    model = build_model(small(name), tokenizer.texts(VOCAB))
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def groups(name: str, step: int = 9) -> list[tuple[Streams, int]]:
    """Groups of the last steps, where blocks have their full length, and how many columns of text each has."""
    found = OBJECTIVES[name].batches(VOCAB, small(name), step)
    return [(one, int(one.positions.max()) + 1) for one in found]


def as_decoded(batch: Streams, width: int, row: int, block: range, end: int) -> tuple[Tensor, Tensor]:
    """The canvas and its masks when ``block`` is active: text before it, the copy inside, masks behind."""
    tokens, masked = batch.tokens[row, :width].clone(), torch.zeros(width, dtype=torch.bool)
    for column in range(width, batch.tokens.shape[1]):
        at = int(batch.positions[row, column])
        if at in block and batch.tokens[row, column] == tokenizer.MASK:
            masked[at] = True
    masked[block.stop : end] = True
    return tokens.masked_fill(masked, tokenizer.MASK), masked


@pytest.mark.parametrize("name", CAUSAL)
def test_a_term_of_the_loss_sees_what_decoding_sees(name: str) -> None:
    """Against ``Transformer.encode``, which knows the decoder's attention, one block of one row at a time."""
    model, copied = noisy_model(name), 0
    shift = model.config.prediction_shift
    for batch, width in groups(name):
        with torch.inference_mode():
            found = logits_at(model, batch.tokens, batch.visible, batch.row, batch.column, batch.positions)
        text, copy = ((batch.column < width).nonzero()[:, 0], (batch.column >= width).nonzero()[:, 0])
        for term in [*text[::23].tolist(), *copy[::7].tolist()]:
            row, column = int(batch.row[term]), int(batch.column[term])
            own = batch.row == row
            start = int(batch.column[own].min()) + 1  # the first term of the clean text predicts the answer's first
            end = start + int(canvas_of(batch, width, row))
            tokens, masked, at = batch.tokens[row, :width], torch.zeros(width, dtype=torch.bool), column
            if column >= width:
                at = int(batch.positions[row, column])
                tokens, masked = as_decoded(batch, width, row, block_of(name, at + shift, start, end), end)
                copied += 1
            with torch.inference_mode():
                hidden = model.encode(tokens[None, :end], None, masked[None, :end], torch.tensor([start]))
                wanted = model.logits(hidden[0, at])
            assert torch.allclose(found[term], wanted, atol=2e-4), (name, row, column)
            assert int(batch.target[term]) == int(batch.tokens[row, at + (1 if column < width else shift)])
    assert copied > 5 or name == "mini-ar"


def canvas_of(batch: Streams, width: int, row: int) -> int:
    """Columns of a row's answer: all that its text's last column sees, without the prompt."""
    start = int(batch.column[batch.row == row].min()) + 1
    return int(batch.visible[row, width - 1, :width].sum()) - start


def block_of(name: str, column: int, start: int, end: int) -> range:
    """Of 16 columns from the text's first, or of 32 from the answer's."""
    first, length = (0, 16) if name == "mini-wedlm" else (start, 32)
    begin = first + (column - first) // length * length
    return range(max(start, begin), min(end, begin + length))


@pytest.mark.parametrize(("name", "following"), [("mini-ar", 1.0), ("mini-wedlm", 1.0), ("mini-nbdiff", 0.5)])
def test_both_parts_of_the_loss_have_their_weights(name: str, following: float) -> None:
    clean = copies = 0.0
    for batch, width in groups(name):
        text = batch.column < width
        clean, copies = clean + float(batch.shares[text].sum()), copies + float(batch.shares[~text].sum())
        assert (batch.tasks[-1] == NEXT) == (name != "mini-ar")
        hidden = batch.tokens[:, width:] == tokenizer.MASK
        assert int(hidden.sum()) == int((~text).sum()) and not (batch.tokens[:, :width] == tokenizer.MASK).any()
        if name == "mini-nbdiff":  # a block's first column is decoded from the text before it
            starts = torch.stack([batch.column[batch.row == row].min() + 1 for row in range(len(batch.tokens))])
            place = batch.positions[:, width:] - starts[:, None]
            assert not (hidden & (place % 32 == 0)).any()
    assert clean == pytest.approx(following, abs=1e-4) and copies == pytest.approx(float(name != "mini-ar"), abs=1e-4)


def test_a_uniform_share_of_each_block_is_masked() -> None:
    number = (torch.arange(48) // 16).expand(4000, 48)
    free = torch.ones(4000, 48, dtype=torch.bool)
    free[:, 16] = False
    masked, ratio = noise(number, free, 16, torch.Generator().manual_seed(0))
    count = masked.view(4000, 3, 16).sum(2)
    for block, most in enumerate((16, 15, 16)):
        shares = torch.bincount(count[:, block], minlength=17)[: most + 1] / 4000
        assert torch.allclose(shares[1:-1], torch.tensor(1 / most), atol=0.02)  # rounding: the ends come half as often
        assert torch.allclose(ratio[:, 16 * block], count[:, block] / most)
    assert not masked[:, 16].any()
    later, sooner = masked[:, 8:16].float().mean(), masked[:, :8].float().mean()
    assert 0.05 < later - sooner < 0.5, "later columns are hidden rather than earlier ones"


def test_blocks_grow_to_those_of_the_model() -> None:
    assert [block_at(progress) for progress in (0.0, 0.1, 0.2, 0.3, 0.33, 1.0)] == [2, 4, 8, 16, 32, 32]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "mini-ar"
    train.train(small("mini-ar", steps=2), folder)
    return folder


def test_a_model_is_adapted_from_its_base_and_goes_on_where_it_stopped(base: Path, tmp_path: Path) -> None:
    recipe, straight, parts = small("mini-wedlm", steps=2, base=str(base)), tmp_path / "straight", tmp_path / "parts"
    fresh, before = build_model(recipe, tokenizer.texts(VOCAB)), load_model(base, fuse=False).state_dict()
    assert all(torch.equal(one, before[name]) for name, one in fresh.state_dict().items())
    train.train(recipe, straight)
    train.train(recipe, parts, stop_at=1)
    train.train(recipe, parts)
    one, two = ((folder / "model.safetensors").read_bytes() for folder in (straight, parts))
    assert one == two and one != (base / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="begun with another base;"):
        train.train(replace(recipe, base=str(straight)), parts)
    with pytest.raises(UserError, match="has other tensors than"):
        train.train(replace(recipe, width=24), tmp_path / "wide")
    with pytest.raises(UserError, match="base='nowhere' is neither a shipped model nor a folder"):
        train.train(replace(recipe, base="nowhere"), tmp_path / "lost")


def test_what_a_base_lacks_begins_afresh_and_what_it_has_too_much_is_refused(tmp_path: Path) -> None:
    """As mini-dream begins: with the weights of a model without biases and with fewer layers."""
    base = tmp_path / "mini-llada"
    train.train(small("mini-llada", steps=2), base)
    before, texts = load_model(base, fuse=False).state_dict(), tokenizer.texts(tokenizer.build("mini-dream"))
    model = build_model(small("mini-dream", layers=3, base=str(base)), texts)
    after = model.state_dict()
    assert all(torch.equal(after[name], one) for name, one in before.items())
    new = {name: one for name, one in after.items() if name not in before}
    assert {name.split(".")[1] for name in new if not name.endswith("bias")} == {"2"}
    assert all(one.any() != name.endswith("bias") for name, one in new.items())
    with pytest.raises(UserError, match="at most as many layers"):
        build_model(small("mini-dream", layers=1, base=str(base)), texts)


def test_a_model_that_has_a_base_gets_no_easy_items_first() -> None:
    for base in ("", "mini-llada"):
        recipe = small("mini-dream", batch=60, base=base)
        batches = OBJECTIVES["mini-dream"].batches(tokenizer.build("mini-dream"), recipe, 0)
        longest = max(int(batch.answer.sum(1).max()) for batch in batches)
        assert (longest > 64) == bool(base)


def test_checkpoints_say_how_they_attend_and_decode(base: Path, tmp_path: Path) -> None:
    kinds = {"mini-ar": ContextCausal(1), "mini-wedlm": CausalByRank(), "mini-nbdiff": ContextCausal(32)}
    for name, kind in kinds.items():
        folder = base if name == "mini-ar" else tmp_path / name
        if name != "mini-ar":
            train.train(small(name, steps=1, base=str(base)), folder)
        model = load(folder)
        assert model.config.attention == kind and model.config.prediction_shift == (name != "mini-wedlm")
        assert model.ids.mask == tokenizer.MASK and model.ids.eos == tokenizer.EOS
        rule = part("sampler", "order", positions="left_to_right") if name == "mini-ar" else "confidence"
        (row,) = Decoder(model, rule, cache="finished", gen_length=4)(["Copy the list:\nAda"])
        assert row.nfe >= 1
        report = json.loads((folder / train.REPORT).read_text())
        assert (report["base"] is None) == (name == "mini-ar")


def test_a_run_begun_before_there_were_bases_goes_on() -> None:
    """The state of a run holds what it was made from, key by key."""
    recipe = Recipe()
    found = train.made_from(recipe, "spelling")
    kept = {key: value for key, value in asdict(recipe).items() if key != "base"}
    assert found == {**kept, "data": data.digest(0, data.MIXES["wide"]), "tokenizer": "spelling"}
