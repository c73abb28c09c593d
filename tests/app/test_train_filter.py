"""``dllm train filter``: its records by hand, what it leaves, how it goes on, what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from dllm import Decoder, UserError, load
from dllm.app.command_line.main import settings_of_words
from dllm.app.commands import filter_training, train_filter
from dllm.app.commands.filter_training import Records, ReplayedAnswers
from dllm.models import bundle
from dllm.models.fingerprint import fingerprint
from dllm.parts import Fixed, Learn2PD
from dllm.parts.samplers import learn2pd
from dllm.parts.samplers.learn2pd import read_filter
from tests.samplers.game import PROMPT, Game
from tests.support.mini_llama import mini_llama


def test_what_equals_the_reference_is_committed_and_a_stuck_block_is_filled() -> None:
    game = Game(ReplayedAnswers([[5, 6, 7, 8]]), 4, block=2)
    assert game.turn(0.5, token=[5, 1, 7, 8]) == [0]
    assert game.turn(0.5, token=[5, 2, 7, 8]) == []  # nothing right, another guess than before
    assert game.turn(0.5, token=[5, 2, 7, 8]) == [1]  # the same again: it will not get there
    assert game.turn(0.5, token=[5, 2, 7, 8]) == [2, 3]
    assert game.canvas.tokens[0, PROMPT:].tolist() == [5, 6, 7, 8]


def test_records_hold_whole_blocks(tiny: Path) -> None:
    model, prompts = load(tiny), ["w1 w2", "w3"]
    plain = Decoder(model, "static", eos="none", gen_length=16)(list(prompts))
    reference = [row.canvas for row in plain]
    records = Records(reference, 8)
    decoder = Decoder(model, ReplayedAnswers(reference), Fixed(8), eos="none", gen_length=16, batch_size=2)
    found = decoder(list(prompts), observe=records)
    assert [row.canvas for row in found] == reference
    assert len(records.right) == sum(row.nfe for row in found)
    assert all(row.shape == (8,) for row in (*records.confidence, *records.right))
    assert all(float(confidence.min()) > 0 for confidence in records.confidence)  # committed positions count too


@pytest.fixture
def train(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``dllm train filter model.path=FOLDER`` with a cache of its own; the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    lines = [json.dumps({"prompt": f"w{n} w{2 * n}"}) for n in range(1, 6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))

    def call(*words: str) -> Path:
        own = [f"model.path={folder}", "gen_length=16", "batch_size=2", "epochs=6"]
        own += ["blocks.block_length=8"] * ("blocks=whole" not in words)
        given = [f"prompts={tmp_path / 'prompts.jsonl'}"] * (not any(word.startswith("prompts=") for word in words))
        train_filter.run([*own, *given, *words], settings_of_words)
        return folder

    return call


def decoded(folder: Path, **options: Any) -> list[tuple[Any, int]]:
    decoder = Decoder(load(folder), Learn2PD(threshold=0.4, **options), Fixed(8), gen_length=16)
    return [(row.canvas, row.nfe) for row in decoder(["w1 w2", "w7"])]


def test_a_filter_is_saved_beside_the_checkpoint_and_found(
    train: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = train()
    said, file = capsys.readouterr().out, folder / "learn2pd-b8.filter"
    assert re.search(r"5 prompts, 16 masks after each, blocks of 8\. About [\d.]+ minutes and [\d.]+ GiB", said)
    assert "test: loss" in said and f"{file}: of " in said
    assert not [*(tmp_path / "cache" / "dllm" / "filters").iterdir()], "what was begun is gone"
    with safe_open(file, framework="pt") as stored:
        checkpoint = fingerprint(folder)
        assert stored.metadata() == {"model": "model", "block_length": "8", "checkpoint": checkpoint}
    file.rename(tmp_path / "aside")
    assert fingerprint(folder) == checkpoint, "the filter is no part of the checkpoint"
    with pytest.raises(UserError, match="Make one with: dllm train filter MODEL"):
        decoded(folder)
    (tmp_path / "aside").rename(file)
    assert decoded(folder) == decoded(folder, filter=str(file))
    strict = [nfe for _, nfe in decoded(folder, filter=str(file), steps=None)]
    assert max(strict) <= 16
    folder.rename(tmp_path / "renamed")
    assert decoded(tmp_path / "renamed") == decoded(
        tmp_path / "renamed", filter={**read_filter(tmp_path / "renamed" / file.name)[0]}
    )


def test_only_a_filter_in_the_cache_costs_a_fingerprint(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13 s for an 8B model at every start, for those who have no filter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    taken: list[Path] = []

    def noted(checkpoint: Path) -> str:
        taken.append(checkpoint)
        return fingerprint(checkpoint)

    monkeypatch.setattr(learn2pd, "fingerprint", noted)
    model, cached = load(tiny), tmp_path / "dllm" / "filters" / "0123456789abcdef-learn2pd-b8.filter"
    for length, expected in ((8, 0), (4, 0), (8, 1)):
        with pytest.raises(UserError, match="Make one with: dllm train filter MODEL"):
            Decoder(model, Learn2PD(), Fixed(length), gen_length=16)
        assert len(taken) == expected
        if length == 4:  # of another checkpoint
            cached.parent.mkdir(parents=True)
            cached.write_bytes(b"")


@pytest.mark.parametrize("where", ["records", "training"])
def test_it_goes_on_where_it_was_killed_to_the_same_filter(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = train() / "learn2pd-b8.filter"
    whole = read_filter(file)
    file.unlink()
    name = "filter_records" if where == "records" else "binary_cross_entropy_with_logits"
    place = train_filter if where == "records" else filter_training.F
    usual, calls = getattr(place, name), []

    def killed(*given: Any) -> Any:
        calls.append(given)
        # of three portions the second; of training the fourth epoch, after those that measure how long one takes
        if len(calls) == (2 if where == "records" else 30 + 4):
            raise RuntimeError("killed")
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, killed)
        patch.setattr(filter_training, "STATE_SECONDS", 0)
        with pytest.raises(RuntimeError, match="killed"):
            train()
    calls.clear()
    monkeypatch.setattr(place, name, lambda *given: (calls.append(given), usual(*given))[1])
    capsys.readouterr()
    weights, trained = read_filter(train() / file.name)
    assert trained == whole[1] and all(torch.equal(weights[name], values) for name, values in whole[0].items())
    done = capsys.readouterr().out
    if where == "records":
        assert "1 of 3 portions are done" in done and len(calls) == 2
    else:
        assert "3 of 3 portions are done" in done and len(calls) == 30 + 3 + 2, "three epochs, and two measurements"


def test_a_folder_that_cannot_be_written_has_its_filter_in_the_cache(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = tempfile.TemporaryFile

    def read_only(dir: Path) -> Any:
        if dir == tmp_path / "model":
            raise OSError(30, "Read-only file system")
        return usual(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    folder = train()
    file = tmp_path / "cache" / "dllm" / "filters" / f"{fingerprint(folder)}-learn2pd-b8.filter"
    assert file.is_file() and not (folder / "learn2pd-b8.filter").exists()
    assert decoded(folder) == decoded(folder, filter=str(file))


def test_a_filter_of_other_weights_or_of_another_shape_is_refused(train: Callable[..., Path]) -> None:
    folder = train()
    file = folder / "learn2pd-b8.filter"
    file.rename(folder / "learn2pd-b4.filter")
    sampler = Learn2PD()
    with pytest.raises(UserError, match=r"learn2pd-b4.filter is beside .* for blocks of 8\. Train it again"):
        Decoder(load(folder), sampler, Fixed(4), gen_length=16)
    (folder / "learn2pd-b4.filter").rename(file)
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(UserError, match=r"trained on other weights \(\w{16}\)\. Train it again.*block_length=8; or"):
        Decoder(load(folder), sampler, Fixed(8), gen_length=16)
    train()  # over the old one
    assert Decoder(load(folder), sampler, Fixed(8), gen_length=16).sampler.width == 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["prompts=null"], "no prompts to train a filter by. Give prompts=FILE, or a task's by task=NAME"),
        (["prompts=nowhere"], "prompts='nowhere' cannot be read"),
        (["task=gsm8k"], "exclude each other"),
        (["gen_length=12"], "gen_length=12 must be a multiple of blocks.block_length=8"),
        (["items=0"], "items=0 must be"),
        (["epochs=many"], "epochs="),
        (["blocks=whole"], "Set blocks=fixed"),
        (["out=/proc/none/x"], "cannot write /proc/none/x .*Name a file of another folder by out=FILE"),
        (["out=/tmp"], "it is a folder"),
        (["left to right"], "llama predicts the next token alone. Decode it with experiment=ar"),
        (["left to right", "blocks=whole"], "llama predicts the next token alone"),
        (["model.path=mini-ar"], "mini-ar predicts the next token alone"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_weights_are_read(
    train: Callable[..., Path], words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundle, "load", None)
    if words[0] == "left to right":
        words = [f"model.path={mini_llama(tmp_path / 'llama')}", *words[1:]]
    with pytest.raises(UserError, match=sentence):
        train(*words)
