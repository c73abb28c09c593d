"""``model.adapter`` on the command line: what it decodes, what its run is resumed with, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm import Decoder, load
from dllm.app.lm_eval.configuration import composed_settings
from dllm.app.runs.evaluation import loaded_model
from dllm.app.runs.plan import weights_of
from dllm.blocks.fixed import Fixed
from dllm.models import weights
from tests.app.command_line.conftest import Run
from tests.support.adapters import DATA, adapted


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
