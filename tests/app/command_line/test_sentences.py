"""Sentences that lead out: memory, classes of one's own, no network, half characters, and nothing left behind."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, UserError, load
from dllm.common import hub
from dllm.models import bundle
from dllm.models.weights.checkpoint_path import locate
from dllm.parts import help_text, in_words, loaded_model, memory_advice, read_as_utf8
from tests.app.command_line.conftest import Run
from tests.app.conftest import ROOT

MODULES = {
    "syntax": "class A:\n    def x(self:\n        pass\n",
    "lacking": "import numpyy\n",
    "name": "x = y\n",
    "sound": "from dllm.contract.traits import SamplerTraits\nfrom dllm.parts.samplers.base import Sampler\n\n\n"
    "class Rising(Sampler):\n    traits = SamplerTraits(stateless=True, deterministic=True, "
    "by_confidence=True)\n\n    def __init__(self, low=0.4):\n"
    "        self.low = {}['x']\n\n\nclass Other:\n    pass\n",
}
UNIMPORTED = {
    "syntax.A": "syntax.py, line 2: '(' was never closed in 'def x(self:'. Mend that line.",
    "lacking.A": "lacking.py, line 1: ModuleNotFoundError: No module named 'numpyy'. Mend that line.",
    "name.A": "name.py, line 1: NameError: name 'y' is not defined. Mend that line.",
    "sound.Risin": "names no class: sound has Rising. Did you mean 'Rising'?",
    "sound.Other": "is no Sampler: derive it from dllm.parts.samplers.base.Sampler",
    "sound.Rising": "sampler cannot be built with low=0.4: ",
    "nowhere.A": "there is no module nowhere. Write MODULE.CLASS, with the module's folder in PYTHONPATH.",
}


def test_an_argument_that_the_locale_cannot_read_is_read_as_utf8() -> None:
    """Python shows bytes that ``LANG=C`` does not know as half surrogates."""
    shown = "prompt=Käse".encode().decode("ascii", "surrogateescape")
    assert read_as_utf8(shown) == "prompt=Käse" and read_as_utf8("a=ä") == "a=ä"
    latin = "prompt=Käse".encode("latin-1").decode("ascii", "surrogateescape")
    assert read_as_utf8(latin) == latin  # which is refused in a sentence


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(("target", "said"), UNIMPORTED.items(), ids=UNIMPORTED)
def test_a_class_that_cannot_be_had_is_a_sentence_with_its_line(
    target: str, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run("prompt=w1", f"sampler._target_={target}")
    assert outcome.code == 2 and said in outcome.err and outcome.err.count("\n") == 1
    assert not outcome.folder.exists()


@pytest.mark.parametrize(("settings", "said"), [
    ([], "model.dtype=bfloat16, gen_length=16 or a smaller model"),
    (["batch_size=8", "model.dtype=bfloat16"], "model.quantize=int8, batch_size=4, gen_length=16 or a smaller model"),
    (["model.dtype=bfloat16", "model.quantize=int8", "gen_length=1"], "model.quantize=int4 or a smaller model"),
    (["model.dtype=bfloat16", "model.quantize=int4", "gen_length=1"], "model.quantize_head=int8 or a smaller model"),
    (["model.dtype=bfloat16", "model.quantize=int4", "gen_length=1", "model.device=cuda"], "Choose a smaller model."),
    (["model.dtype=bfloat16", "model.quantize=int4", "model.quantize_head=int4", "gen_length=1"], "Choose a smaller"),
    (["task=serve", "task.max_rows=1", "task.max_tokens_in_flight=9"], "task.max_tokens_in_flight=4, gen_length=16"),
    (["sampler=static,eb", "batch_size=4,2", "gen_length=64"], "gen_length=32"),
])  # fmt: skip
def test_memory_advice_names_nothing_that_is_set_already(settings: list[str], said: str) -> None:
    advice = memory_advice(settings)
    assert said in advice and not any(setting in advice for setting in settings)


def out_of_memory(*_: Any, **__: Any) -> None:
    raise RuntimeError("CUDA out of memory")


def refused_load(*_: Any, **__: Any) -> None:
    raise UserError("no.")


@pytest.mark.parametrize("load", [out_of_memory, refused_load])
@pytest.mark.parametrize(
    "line",
    [
        ["prompt=w1"],
        ["prompt=w1", "name=x", "output=a/b"],
        ["chat=true"],
        ["task=parallelbench", "task.tasks=copy", "task.count=1", "gen_length=8"],
    ],
)
def test_what_fails_while_loading_leaves_no_folder(
    line: list[str], load: Any, run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "load", load)
    loaded_model.cache_clear()  # another test of this process may have loaded it
    before = set(tmp_path.rglob("*"))
    given = line if "task" not in line[0] else [f"model.path={tiny}", "output=runs", "task.suite=r1", *line]
    outcome = run(*given)
    assert outcome.code == 2 and set(tmp_path.rglob("*")) == before


def test_a_folder_of_ones_own_stays(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "load", refused_load)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "notes.txt").write_text("kept")
    assert run("prompt=w1", "name=mine").code == 2 and run("prompt=w1").code == 2
    assert [file.name for file in (tmp_path / "runs").rglob("*")] == ["mine", "notes.txt"]


def test_half_a_character_is_named_wherever_a_text_comes_from(
    run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "holds half of a surrogate pair, which is not a character"
    lines = [
        {"prompt": "bad \ud83d half"},
        {"prompt": "w1", "id": "\ud83d"},
        {"infill": ["\udc00", 2]},
        {"messages": [{"role": "user", "content": "\ud83d"}]},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = run("prompts=p.jsonl")
    assert outcome.code == 2 and outcome.err.count(said) == 4 and not outcome.folder.exists()
    decoder = Decoder(load(tiny), gen_length=8)
    for prompt in ("bad \ud83d half", [{"role": "user", "content": "\ud83d"}]):
        with pytest.raises(UserError, match=said):
            decoder(prompt)
    stdin = io.TextIOWrapper(io.BytesIO(b"w1 \xff\nw2\n/exit\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    outcome = run("chat=true")
    assert "Your message holds bytes that are not UTF-8." in outcome.err
    assert [row["prompt"] for row in outcome.rows()] == ["w2"]


def test_without_a_network_it_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hub.OFFLINE, raising=False)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        hub.hub_reachable.cache_clear()
        assert hub.hub_reachable()
        hub.hub_reachable.cache_clear()
        monkeypatch.setenv(hub.OFFLINE, "1")
        assert not hub.hub_reachable()
    monkeypatch.delenv(hub.OFFLINE)
    hub.hub_reachable.cache_clear()
    assert not hub.hub_reachable()  # nobody listens any more
    monkeypatch.setenv(hub.OFFLINE, "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=r"owner/model.*\(the hub cannot be reached from here\).* path=FOLDER"):
        locate("owner/model")
    hub.hub_reachable.cache_clear()


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["compare=statik"], "compare='statik': sampler must be one of adas, "),
        (["-m", "sampler=static,eb"], "a prompt without an answer is decoded without -m."),
        (["task=lm_eval"], "task=lm_eval needs task.harness=NAME, a task of lm-eval that generates"),
    ],
)
def test_a_way_out_is_named(line: list[str], said: str, run: Run) -> None:
    outcome = run(*([] if "task" in line[0] else ["prompt=w1"]), *line)
    assert outcome.code == 2 and said in outcome.err


def test_a_python_without_the_libraries_is_told_which_one(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-E", str(ROOT / "run.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("Error: this Python lacks ")
    assert "Activate the environment" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["none", "dpad", "vicinity"])
def test_help_marks_what_runs_and_explains_it_by_its_own_comments(name: str) -> None:
    marked = {line.split()[1] for line in help_text([f"cache={name}"], 110).splitlines() if line.startswith("    * ")}
    assert name in marked
    if name == "none":
        text = help_text([], 200)
        assert "    * none " in text and "    * dpad" not in text and "no mask further away stays" not in text


def test_help_speaks_of_the_program_that_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv, called in ((["/bin/dllm", "serve"], "dllm serve"), (["dllm"], "dllm"), (["run.py"], "python run.py")):
        monkeypatch.setattr(sys, "argv", argv)
        text = help_text(["task=serve"] if called == "dllm serve" else [], 100)
        head = text.split("To choose from")[0]
        assert f": {called} NAME=VALUE ..." in head and ("python run.py" in head) == (called == "python run.py")
    monkeypatch.setattr(sys, "argv", ["dllm", "serve"])
    settings = help_text(["task=serve"], 100).split("Settings (")[1].splitlines()
    assert settings[2].startswith("  task.host=")


def test_errors_in_words() -> None:
    assert in_words(KeyError("trace")) == "it lacks 'trace'" and in_words(StopIteration()) == "it ends too early"
    assert in_words(TypeError("'int' object")) == "it holds something else"
    assert in_words(ValueError("a\nb")) == "a" and in_words(OSError(2, "gone")) == "gone"


def test_a_run_whose_disk_is_full_can_be_resumed_as_it_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dllm.app.runs.folder.RunFolder._append", full)
        outcome = run("prompt=w1", "name=there")
    assert outcome.code == 2 and "go on with resume=runs/there" in outcome.err
    assert run("resume=runs/there").code == 0
