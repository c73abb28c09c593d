"""``task=quantize`` on the command line: a folder, or one sentence and nothing."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from dllm import Decoder, load
from dllm.models.weights import narrow_writer, weights
from dllm.parts import Fixed, composed_settings, loaded_model, locate, weights_of
from tests.app.command_line.conftest import Run
from tests.support.adapters import DATA, adapted

MINI = locate("mini-llada")
ARGUMENTS = ("task=quantize", f"model.path={MINI}", "quantize.to=narrow", "model.quantize=int4")


def test_a_folder_that_decodes(run: Run, tmp_path: Path) -> None:
    done = run(*ARGUMENTS)
    assert done.code == 0 and re.fullmatch(
        r"narrow: int4, \d\.\d MiB\. Load it by model\.path=narrow model\.dtype=bfloat16\.\n", done.out
    )
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
    assert done.code == 0 and re.match(r"narrow: int4, embedding and head int8, \d\.\d MiB\. Load it by", done.out)
    folder = tmp_path / "narrow"
    assert run("model.dtype=bfloat16", "prompt=Latin square: A,B", model=folder).code == 0
    told = " ".join(run("task=check", f"model.path={folder}").out.split())
    assert "int4 of task=quantize, embedding and head int8, 7 files" in told and "memory int4, head int8" in told
    alone = run("model.quantize_head=int8", "model.dtype=bfloat16")
    assert alone.code == 2 and "goes with layers in int8 or int4, and there is model.quantize=null. Set" in alone.err


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ("model.quantize_head=int3", "model.quantize_head='int3' must be null, int8 or int4."),
        ("model.quantize=null", "model.quantize=null: task=quantize needs a kind. Set model.quantize=int8 or int4."),
        (
            "model.quantize=float8",
            "model.quantize=float8: float8 is made in a moment on the GPU that needs it, and not "
            "stored. Set model.quantize=int8 or int4.",
        ),
        ("model.quantize=int5", "task=quantize needs a kind. Set model.quantize=int8 or int4."),
        ("quantize.to=null", "task=quantize needs quantize.to=FOLDER, which it writes. Add it."),
        ("gen_length=9", "gen_length has no meaning for task=quantize. Drop it."),
        ("model.adapter=nowhere", "nowhere"),
        ("model.path=nowhere", "is not a shipped model"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    changed: str, sentence: str, run: Run, tmp_path: Path
) -> None:
    name = changed.split("=")[0]
    done = run(*(one for one in ARGUMENTS if not one.startswith(name + "=")), changed)
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "narrow").exists()


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "Stopped. Run the same command again: it goes on in narrow\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "narrow/x"),
            2,
            "Error: narrow/x: No space left on device. Put",
        ),
        (MemoryError("no"), 2, "Error: there is not enough memory (no). Choose a smaller model.\n"),
    ],
)
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


def test_a_run_decodes_with_its_adapter_and_goes_on_with_no_other(run: Run, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    adapted(tiny, folder, lora_alpha=60)
    plain, changed = (
        Decoder(load(tiny, adapter=one), blocks=Fixed(8), gen_length=16)("w1 w2")[0] for one in (None, folder)
    )
    assert plain.tokens != changed.tokens
    outcome = run("prompt=w1 w2", f"model.adapter={folder}", "name=one")
    config = composed_settings({"model.path": str(tiny), "model.adapter": str(folder)})
    assert loaded_model(**weights_of(config)).adapter == folder  # as evaluations load it
    assert outcome.code == 0 and [row["tokens"] for row in outcome.rows()] == [changed.tokens]
    adapted(tiny, folder, lora_alpha=50)  # its content counts, not its name
    again = run("prompt=w1 w2", f"model.adapter={folder}", "name=one")
    assert again.code == 2 and "checkpoint" in again.err


def test_an_adapter_counts_by_content_and_a_run_from_before_adapters_goes_on(
    run: Run, tiny: Path, tmp_path: Path
) -> None:
    adapted(tiny, tmp_path / "lora")
    first = run("prompt=w1", f"model.adapter={tmp_path / 'lora'}", "name=one")
    (tmp_path / "lora").rename(tmp_path / "moved")
    assert run("prompt=w1", f"model.adapter={tmp_path / 'moved'}", "name=one").code == 0 and len(first.rows()) == 1
    assert "checkpoint" in (other := run("prompt=w1", "name=one")).err and other.code == 2
    plain = run("prompt=w1", "name=two", "output=plain")
    assert plain.code == 0
    file = tmp_path / "plain" / "two" / "config.yaml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if "adapter:" not in line))
    assert run("resume=plain/two").code == 0


def test_checking_a_model_checks_its_adapter(run: Run, tiny: Path, tmp_path: Path) -> None:
    adapted(tiny, tmp_path / "lora")
    found = run("task=check", f"model.path={tiny}", f"model.adapter={tmp_path / 'lora'}")
    assert found.code == 0 and "adapts 29 of its matrices" in found.out


def test_an_adapter_of_another_base_is_refused_before_weights_are_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted(DATA / "dream_gqa", tmp_path / "lora")
    monkeypatch.setattr(weights, "fill", lambda *_: pytest.fail("weights were read"))
    outcome = run("prompt=w1", f"model.adapter={tmp_path / 'lora'}")
    assert outcome.code == 2 and outcome.err.startswith("Error: model.adapter=") and outcome.err.count("\n") == 1
    assert "was made for another base than model.path=" in outcome.err and not outcome.folder.exists()
