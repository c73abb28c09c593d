"""Checkpoints as people have them, by the command that they type: the text of the sound one, or a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from dllm.parts import locate, warn_once, with_command
from tests.app.command_line.conftest import Run
from tests.support.gguf_files import mini_gguf
from tests.support.tiny import MODELS, make_tiny

pytestmark = pytest.mark.filterwarnings(
    "always::dllm.common.errors.SettingWarning"
)  # pyproject.toml ignores them elsewhere
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:aaaa\nsize 12\n"
UNSCALED = {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5}


def edited(folder: Path, source: str, gone: tuple[str, ...] = (), **changes: Any) -> Path:
    """A complete checkpoint with the weights of a tiny model and an edited config.json."""
    file = make_tiny(folder, MODELS / source) / "config.json"
    content = {key: value for key, value in json.loads(file.read_text()).items() if key not in gone}
    file.write_text(json.dumps(content | changes))
    return folder


def answer(run: Run, model: Path, *asked: str) -> dict[str, Any]:
    """What a prompt gives: the line of its results, without times."""
    warn_once.cache_clear()
    runs = model.parent / "runs"
    outcome = run(
        *(asked or ("prompt=w1 w2", "sampler=static", "sampling.temperature=0.5")), f"output={runs}", model=model
    )
    assert outcome.code == 0, outcome.err
    (line,) = runs.glob("*/results.jsonl")
    row = json.loads(line.read_text())
    said = outcome.err.partition("\N{BOX DRAWINGS LIGHT DOWN AND RIGHT}")[0]  # without the table, which has times
    return {"text": row["text"], "err": said, "nfe": row["nfe"]}


def test_half_a_head_of_llada2_rotates_however_the_file_says_so(run: Run, tmp_path: Path) -> None:
    rotary = ("partial_rotary_factor", "rotary_dim", "rope_theta", "rope_scaling")
    spellings = {
        "reference": {"rope_theta": 10000, "partial_rotary_factor": 0.5, "rotary_dim": 8},
        "rotary_dim": {"rope_theta": 10000, "rotary_dim": 8},
        "parameters": {"rope_parameters": UNSCALED},
    }
    found = [
        answer(run, edited(tmp_path / name / "m", "tiny-llada21", rotary, **keys)) for name, keys in spellings.items()
    ]
    assert found == [found[0]] * len(spellings) and found[0]["text"]
    whole = edited(tmp_path / "whole" / "m", "tiny-llada21", rotary, rope_theta=10000, partial_rotary_factor=1.0)
    assert answer(run, whole)["text"] != found[0]["text"]


def test_a_single_file_counts_and_what_is_left_out_gets_one_line(run: Run, tmp_path: Path) -> None:
    sound, stale, unknown = (edited(tmp_path / name / "m", "tiny-dream") for name in ("sound", "stale", "unknown"))
    old = {name: torch.full_like(one, 0.01) for name, one in load_file(stale / "model.safetensors").items()}
    save_file(old, stale / "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(old, "model-00001-of-00001.safetensors")
    (stale / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    edited_config = json.loads((unknown / "config.json").read_text()) | {"new_gate": 1}
    (unknown / "config.json").write_text(json.dumps(edited_config))
    expected = answer(run, sound)
    assert "Warning" not in expected["err"]
    for folder, line in {stale: "model.safetensors.index.json is not read", unknown: "not read: new_gate."}.items():
        found = answer(run, folder)
        assert found["text"] == expected["text"] and found["err"].count("Warning:") == 1 and line in found["err"]


@pytest.mark.parametrize(
    ("source", "changes", "file", "sentence"),
    [
        ("sdar_b4", {"block_size": 3}, None, ["block_size=3", "I-DLM"]),
        ("tiny-dream", {"quantization_config": {"quant_method": "hqq"}}, None, ["'hqq'", "unquantised"]),
        ("tiny-dream", {}, "model.safetensors", ["model.safetensors is a Git LFS pointer", "git lfs pull"]),
    ],
)
def test_what_cannot_be_decoded_is_refused_without_a_folder(
    run: Run, tmp_path: Path, source: str, changes: dict[str, Any], file: str | None, sentence: list[str]
) -> None:
    folder = edited(tmp_path / "m", source, **changes)
    if file is not None:
        (folder / file).write_text(POINTER)
    outcome = run("prompt=w1", model=folder)
    assert outcome.code == 2 and outcome.err.startswith("Error: ") and "Traceback" not in outcome.err
    assert all(part in outcome.err for part in sentence)
    assert not outcome.folder.exists() or not list(outcome.folder.iterdir())
    assert run("task=check", f"model.path={folder}").code == 1


def test_a_dream_folder_under_lladas_name_gets_a_line(run: Run, tmp_path: Path) -> None:
    folder = edited(tmp_path / "m", "tiny-dream")
    warn_once.cache_clear()
    for command in (["prompt=w1", "model.dtype=float32"], ["task=check", f"model.path={folder}"]):
        outcome = run("model=llada-8b-instruct", *command, model=folder)
        warn_once.cache_clear()
        assert outcome.code == 0 and outcome.err.count("Warning:") == 1
        assert "holds a checkpoint of DreamModel, and model=llada-8b-instruct names one of LLaDAModelLM" in outcome.err


@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_a_gguf_file_answers_as_its_folder(run: Run, tmp_path: Path, kind: str) -> None:
    """Checked and decoded by the short command, too."""
    file = mini_gguf(tmp_path / "x" / "mini.gguf", Kind[kind])
    (tmp_path / "y").mkdir()
    folder = Path(shutil.copytree(locate("mini-llada"), tmp_path / "y" / "mini"))
    asked = ("prompt=Copy the list:\\n[1, 2]", "gen_length=16")
    found, expected = (answer(run, model, *asked) for model in (file, folder))
    assert found["text"] == expected["text"] and found["nfe"] == expected["nfe"]
    assert ("30 matrices as Q8_0: they are widened to float32" in found["err"]) == (kind == "Q8_0")
    assert run("task=check", f"model.path={file}").code == 0
    assert with_command(["check", str(file)])[-1] == f"model.path={file}"
    assert f"model.path={file}" in with_command(["run", str(file), "Hi"])


def test_a_gguf_file_that_is_no_model_of_ours_is_refused(run: Run, tmp_path: Path) -> None:
    file = mini_gguf(tmp_path / "mini.gguf")
    sound = file.read_bytes()
    for data, sentence in (
        (sound[: len(sound) // 2], "the file is cut off. Finish the download."),
        (sound.replace(b"llada", b"mamba"), "read from GGUF are llada, llada-moe, dream"),
        (b"no model", "does not begin as a GGUF file does"),
    ):
        file.write_bytes(data)
        outcome = run("prompt=w1", model=file)
        assert outcome.code == 2 and outcome.err.startswith("Error: ") and sentence in outcome.err
        assert not outcome.folder.exists() or not list(outcome.folder.iterdir())
        assert run("task=check", f"model.path={file}").code == 1
