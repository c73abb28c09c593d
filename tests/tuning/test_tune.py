"""``dllm tune``: what is chosen from decodes, what it leaves, how it goes on, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from dllm import Decoder, UserError, load, tune, tuned
from dllm.app.command_line.commands import COMMANDS
from dllm.app.command_line.main import settings_of_words
from dllm.app.runs.folder import RunFolder
from dllm.app.tuning.decoded import DecodedLosses
from dllm.app.tuning.outcome import Tuned
from dllm.app.tuning.space import space_for
from dllm.app.tuning.tune import tuning_of
from dllm.app.tuning.tune_options import TuneOptions, split
from dllm.compose.tuned import TUNED_FILES, read_tuned, warn_of_another_model, with_tuned
from dllm.models import bundle
from dllm.parts import SettingWarning

TINY = "tests/data/models/tiny-llada"
Ask = Callable[..., Tuned]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"tokens": [5 + n, 9, 3 * n % 40 + 4]}) + "\n" for n in range(24)))
    return file


@pytest.fixture
def ask(tmp_path: Path, prompts: Path) -> Ask:
    def asked(name: str = "mine", **more: Any) -> Tuned:
        common = {"gen_length": 8, "output": str(tmp_path / "runs"), "model.dtype": "float32"}
        given = {"prompts": str(prompts), "max_loss": 0.4, "alpha": 0.2, "cost": "forwards", **more}
        grid = given.pop("grid", {"sampler": ["confidence", "eb"], "cache": ["none", "dual"]})
        return tune(TINY, name=name, settings={**common, **given.pop("settings", {})}, grid=grid, **given)

    return asked


def table(done: Tuned) -> dict[str, dict[str, str]]:
    with (done.folder / "table.csv").open() as file:
        return {row["setting"]: row for row in csv.DictReader(file)}


def test_what_is_chosen_can_be_taken(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    done = ask()
    rows, words = table(done), " ".join(done.settings)
    assert done.report in capsys.readouterr().out
    assert len(rows) == 5
    base = next(row for setting, row in rows.items() if setting.endswith("(reference)"))
    assert (base["loss %"], base["x reference"], base["items"]) == ("0.00", "1.00", "24")
    assert float(base["forwards an item"]) == 8.0  # one token a forward
    if done.certified:
        assert float(rows[words]["p"]) <= 0.2
        assert float(rows[words]["forwards an item"]) < 8.0
    file = done.folder / "tuned.yaml"
    assert read_tuned(file)[0] == list(done.settings)
    origin = yaml.safe_load(file.read_text())["tuned"]
    assert origin["checkpoint"] == bundle_print()
    assert (origin["items"], origin["alpha"], origin["max_loss"]) == (24, 0.2, 0.4)
    assert with_tuned([f"experiment={file}", "gen_length=8"]) == [*done.settings, "gen_length=8"]
    taken = Decoder(load(TINY), **tuned(file), gen_length=8)([[5, 9, 4]])[0]
    config = settings_of_words([f"model.path={TINY}", *done.settings])
    assert taken.nfe <= 8
    with pytest.warns(SettingWarning, match="was chosen for tiny-llada"):
        tuned(file, load("tests/data/models/tiny-dream"))
    assert type(tuned(file)["sampler"]).__name__ == config["sampler"]["_target_"].rpartition(".")[2]
    page = (done.folder / "index.html").read_text()
    assert "<svg" in page or "data:image/png" in page


def bundle_print() -> str:
    from dllm.models.fingerprint import fingerprint

    return fingerprint(bundle.describe(TINY).path)


def test_losses_and_costs_are_those_of_the_rows(tmp_path: Path, prompts: Path) -> None:
    words = [
        f"model.path={TINY}",
        "gen_length=8",
        f"prompts={prompts}",
        f"output={tmp_path}",
        "name=here",
        "max_loss=0.4",
        "alpha=0.2",
        "cost=computed_tokens",
        "sampler=confidence",
        "sampler.threshold=0.1",
    ]
    run = tuning_of(words, settings_of_words)
    decoded = DecodedLosses(run.settings, run.configured, run.folder, 24, 0, "computed_tokens", True)
    found = decoded.search([0, 1], 8)
    assert list(found[0][0]) == [0.0] * 8
    texts = [{key: row["text"] for key, row in decoded.rows[k].items()} for k in (0, 1)]
    assert sum(found[1][0]) == sum(texts[0][key] != text for key, text in texts[1].items())
    assert found[1][1] == sum(row["computed_tokens"] for row in decoded.rows[1].values()) / 8
    confirming = decoded.confirm(1)
    assert confirming is not None
    assert len(confirming) == 16
    assert len(decoded.rows[1]) == 24  # no item serves both


def test_a_run_that_was_killed_goes_on_to_the_same_answer(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, write, left = ask("whole"), RunFolder.write, [0]

    def killed(self: RunFolder, row: Any, trace: Any = None) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(self, row, trace)

    monkeypatch.setattr(RunFolder, "write", killed)
    for rows in (7, 33):
        left[0] = rows
        with pytest.raises(KeyboardInterrupt):
            ask("again")
    left[0] = 10_000
    again = ask("again")
    assert (again.settings, table(again)) == (whole.settings, table(whole))
    before = left[0]
    assert table(ask("again")) == table(whole)
    assert left[0] == before  # nothing is decoded twice
    with pytest.raises(UserError, match="holds another tuning"):
        ask("again", max_loss=0.3)


def test_a_setting_that_fails_in_the_middle_is_left_out(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    run = DecodedLosses._run

    def failing(self: DecodedLosses, cells: Any) -> None:
        if any("sampler=eb cache=dual" in cell.place for cell in cells) and len(self.orders) > 0:
            raise RuntimeError("out of memory")
        run(self, cells)

    monkeypatch.setattr(DecodedLosses, "_run", failing)
    done = ask()
    assert table(done)["sampler=eb cache=dual"]["what became of it"] == "left out: out of memory"
    assert done.settings != ("sampler=eb", "cache=dual")


def test_the_time_may_be_up(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    done = ask(budget="0.001s")
    assert not done.certified
    assert done.settings == ("sampler=static", "cache=none", "blocks=fixed")
    assert "The time was up" in capsys.readouterr().out


def test_refused_settings_are_left_out_before_decoding(ask: Ask) -> None:
    done = ask(grid={"sampler": ["klass", "confidence"], "cache": ["dual"]})
    row = table(done)["sampler=klass cache=dual"]
    assert row["what became of it"].startswith("left out: cache=dual computes only the open blocks")
    assert row["items"] == ""


def test_a_prompt_that_stands_twice_is_one_item(ask: Ask, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts.write_text(prompts.read_text() * 2)
    ask()
    terminal_table = capsys.readouterr()
    assert "24 of 24 items" in terminal_table.out
    assert "holds 24 prompts a second time" in terminal_table.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_loss": 0.0}, "no number of items proves that nothing is lost"),
        ({"alpha": 1.0}, "must lie between 0 and 1"),
        ({"cost": "euros"}, "one of seconds, forwards, computed_tokens"),
        ({"budget": "soon"}, "a time such as 90s"),
        ({"max_loss": 0.05, "alpha": 0.05}, "there are 24 items, and .* needs 88, 59 of them to confirm"),
        ({"items": 3, "max_loss": 0.1}, "items=3, and"),
        ({"prompts": None}, "needs prompts=FILE"),
        ({"task": "parallelbench"}, "exclude each other"),
        ({"settings": {"samples": 2}}, "Set samples=1"),
        ({"reference": "sampler=klass cache=dual"}, "cache=dual computes only the open blocks"),
        ({"prompts": "none.jsonl"}, "cannot be read"),
        ({"grid": {"sampler": ["conf"]}}, "conf"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(ask: Ask, more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ask(**more)


@pytest.mark.parametrize("line", ['{"question": "x"}', '{"prompt": ""}', '{"prompt": 3}', '{"tokens": []}', "{"])
def test_a_line_without_a_prompt_is_refused_with_its_number(ask: Ask, prompts: Path, line: str) -> None:
    prompts.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(UserError, match="2"):
        ask()


@pytest.mark.parametrize(
    "word",
    [
        "sampler._target_=os.system",
        "model.path=/etc",
        "task=serve",
        "prompt=x",
        "sampler=${oc.env:HOME}",
        "hydra.run.dir=x",
        "sampler=my_module.Mine",
        "sampler={_target_: os.system}",
        "sampler/inner=my_module.Mine",
        "sampler.inner={_target_: my_module.Mine}",
    ],
)
def test_a_file_of_others_sets_parts_of_a_decode_alone(tmp_path: Path, word: str) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump({"settings": [word], "tuned": {}}))
    with pytest.raises(UserError, match="no part of a decode"):
        read_tuned(file)


@pytest.mark.parametrize("text", ["", "[1]", "settings: 3", "a: b", "settings: [3]"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match="holds no settings"):
        with_tuned([f"experiment={file}"])
    with pytest.raises(UserError, match="cannot be read"):
        with_tuned([f"experiment={file}.yaml"])


def test_a_setting_of_another_model_warns() -> None:
    TUNED_FILES[:] = [("experiment=a.yaml", {"model": "mini-llada", "checkpoint": "123"})]
    warn_of_another_model("123")
    with pytest.warns(SettingWarning, match="was chosen for mini-llada"):
        warn_of_another_model("456")
    TUNED_FILES.clear()


@pytest.mark.parametrize("model", ["llada_gqa_tied", "sdar_b4", "dream_gqa", "fastdllm_v2", "nbdiff_gqa"])
def test_the_list_that_ships_has_20_to_60_settings_that_fit(model: str) -> None:
    config = bundle.describe(f"tests/data/models/{model}", mask_id=3).config
    settings = space_for(config, [], None)
    assert 14 <= len(settings) <= 60
    assert len(set(settings)) == len(settings)


def test_a_model_of_noise_needs_a_grid_and_a_reference() -> None:
    config = bundle.describe("tests/data/models/dg_dev").config
    with pytest.raises(UserError, match="models of noise"):
        space_for(config, [], None)
    settings = space_for(config, ["sampler=renoise", "sampler.steps=8,16"], ["sampler=renoise"])
    assert settings == (
        ("sampler=renoise",),
        ("sampler=renoise", "sampler.steps=8"),
        ("sampler=renoise", "sampler.steps=16"),
    )


def test_the_help_lists_every_option_with_its_default() -> None:
    listed = [option for option, _ in COMMANDS["tune"].options]
    assert listed == [
        f"{field.name}={'null' if field.default is None else field.default}" for field in fields(TuneOptions)
    ]


def test_options_are_told_from_settings() -> None:
    options, others = split(
        ["max_loss=0.05", "sampler=eb", "items=30", "budget=2h", "reference='sampler=eb'"], TuneOptions
    )
    assert (options.max_loss, options.items, options.seconds, options.reference) == (0.05, 30, 7200, "sampler=eb")
    assert others == ["sampler=eb"]
    with pytest.raises(UserError, match="items"):
        split(["items=many"], TuneOptions)
