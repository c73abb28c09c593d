"""``task=quantize`` on the command line: a folder, or one sentence and nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dllm.models import narrow_writer
from dllm.models.bundle import locate
from tests.app.command_line.conftest import Run

MINI = locate("mini-llada")
ARGUMENTS = ("task=quantize", f"model.path={MINI}", "quantize.to=narrow", "model.quantize=int4")


def test_a_folder_that_decodes(run: Run, tmp_path: Path) -> None:
    done = run(*ARGUMENTS)
    assert done.code == 0 and done.out == "narrow: int4, 0.0 GB. Load it by model.path=narrow model.dtype=bfloat16.\n"
    folder = tmp_path / "narrow"
    assert (folder / "chat_template.jinja").read_text() == (MINI / "chat_template.jinja").read_text()
    assert run("model.dtype=bfloat16", "prompt=Latin square: A,B", model=folder).code == 0
    assert "int4 of task=quantize" in run("task=check", f"model.path={folder}").out
    again = run(*ARGUMENTS)
    assert again.code == 2 and "quantize.to=narrow is not empty" in again.err
    twice = run("task=quantize", f"model.path={folder}", "quantize.to=twice", "model.quantize=int8")
    assert twice.code == 2 and "its weights are int4 already" in twice.err


def test_embedding_and_head_too(run: Run, tmp_path: Path) -> None:
    done = run(*ARGUMENTS, "model.quantize_head=int8")
    assert done.code == 0 and done.out.startswith("narrow: int4, embedding and head int8, 0.0 GB. Load it by")
    folder = tmp_path / "narrow"
    assert run("model.dtype=bfloat16", "prompt=Latin square: A,B", model=folder).code == 0
    told = " ".join(run("task=check", f"model.path={folder}").out.split())
    assert "int4 of task=quantize, embedding and head int8, 7 files" in told and "memory int4, head int8" in told
    alone = run("model.quantize_head=int8", "model.dtype=bfloat16")
    assert alone.code == 2 and "goes with layers in int8 or int4, and model.quantize is null. Set" in alone.err


@pytest.mark.parametrize(("changed", "sentence"), [
    ("model.quantize_head=int3", "model.quantize_head='int3' must be null, int8 or int4."),
    ("model.quantize=null", "model.quantize=null: task=quantize needs a kind. Set model.quantize=int8 or int4."),
    ("model.quantize=float8", "model.quantize=float8: float8 is made in a moment on the GPU that needs it, and not "
                              "stored. Set model.quantize=int8 or int4."),
    ("model.quantize=int5", "task=quantize needs a kind. Set model.quantize=int8 or int4."),
    ("quantize.to=null", "task=quantize needs quantize.to=FOLDER, which it writes. Add it."),
    ("gen_length=9", "gen_length has no meaning for task=quantize. Drop it."),
    ("model.adapter=nowhere", "nowhere"), ("model.path=nowhere", "is no shipped model"),
])  # fmt: skip
def test_what_is_wrong_is_told_before_anything_is_written(
    changed: str, sentence: str, run: Run, tmp_path: Path
) -> None:  # fmt: skip
    name = changed.split("=")[0]
    done = run(*(one for one in ARGUMENTS if not one.startswith(name + "=")), changed)
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "narrow").exists()


@pytest.mark.parametrize(("error", "code", "sentence"), [
    (KeyboardInterrupt(), 130, "Stopped. Run the same command again: it goes on in narrow\n"),
    (OSError(errno.ENOSPC, "No space left on device", "narrow/x"), 2, "Error: narrow/x: No space left on device. Put"),
    (MemoryError("no"), 2, "Error: there is not enough memory (no). Choose a smaller model.\n"),
])  # fmt: skip
def test_a_conversion_that_stops_says_how_to_go_on(
    error: BaseException, code: int, sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> memoryview:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(narrow_writer, "_bytes_of", stop)
        done = run(*ARGUMENTS)
    assert done.code == code and sentence in done.err
    assert [file.name for file in (tmp_path / "narrow").iterdir()] == ["quantizing.json"]
    assert "has not ended" in run("task=check", "model.path=narrow").out
    assert run(*ARGUMENTS).code == 0
