"""``dllm pull`` and ``dllm list``: with the hub's own library on a cache made here, and with a stand-in for the hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from dllm.common import hub
from dllm.models.weights import checkpoint_path
from dllm.parts import run_list, run_pull, user_errors

GIB = 2**30
Outcome = SimpleNamespace
Run = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code and what was printed."""

    def act(name: str, *words: str) -> Outcome:
        code: Any = 0
        try:
            with user_errors([]):
                {"pull": run_pull, "list": run_list}[name](words)
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return Outcome(code=code, out=out, err=err)

    return act


@pytest.fixture
def cache(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with a model, and with one that is not ours."""
    folder = tmp_path / "hub"
    for name, revision in (("owner--tiny", "abc"), ("owner--gpt", "def")):
        place = folder / f"models--{name}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(revision)
        snapshot = place / "snapshots" / revision
        shutil.copytree(tiny, snapshot)
        (place / "blobs").mkdir()
        for file in [*snapshot.iterdir()]:  # as the hub's library keeps them
            blob = place / "blobs" / file.name
            shutil.move(file, blob)
            file.symlink_to(blob)
    (folder / "models--owner--gpt/blobs/config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.OFFLINE, "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for module in (hub, checkpoint_path):
        monkeypatch.setattr(module, "hub_reachable", lambda: False)


@pytest.fixture
def online(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Puts a repository with these files on a hub of its own, and returns what is fetched of it."""

    def put(files: dict[str, int], folder: str = "models--owner--tiny/snapshots/abc") -> list[dict[str, Any]]:
        told = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=size) for name, size in files.items()])
        fetched = list[dict[str, Any]]()

        def snapshot(repo: str, **asked: Any) -> str:
            fetched.append({"repo": repo, **asked})
            return str(cache / folder)

        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=lambda *_, **__: told))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
        for module in (hub, checkpoint_path):
            monkeypatch.setattr(module, "hub_reachable", lambda: True)
        return fetched

    return put


def test_what_is_here_is_listed_and_found_without_the_hub(run: Run, cache: Path, offline: None) -> None:
    listed = run("list")
    (line,) = [line for line in listed.out.splitlines() if line.startswith("owner/")]
    assert line.split()[0] == "owner/tiny" and line.endswith("GiB, llada") and "mini-llada" in listed.out
    pulled = run("pull", "owner/tiny")
    assert pulled.code == 0 and pulled.out.splitlines()[0] == str(cache / "models--owner--tiny/snapshots/abc")
    assert "dllm run owner/tiny 'PROMPT'" in pulled.out
    assert run("pull", "mini-llada").out == "mini-llada is here: dllm run mini-llada 'PROMPT'\n"
    missing = run("pull", "owner/other")
    assert missing.code == 2 and "the hub cannot be reached from here" in missing.err


def test_small_files_come_first_and_then_weights_alone(run: Run, online: Any) -> None:
    fetched = online({"config.json": 500, "model.safetensors": 3 * GIB // 1000, "pytorch_model.bin": 9 * GIB})
    outcome = run("pull", "owner/tiny@v1")
    assert outcome.code == 0 and "owner/tiny@v1: 2 files, 0.00 GiB" in outcome.out
    assert [(one["repo"], one["revision"]) for one in fetched] == [("owner/tiny", "v1")] * 2
    assert "*.safetensors" not in fetched[0]["allow_patterns"] and "*.safetensors" in fetched[1]["allow_patterns"]
    assert not any("bin" in pattern or "py" in pattern for one in fetched for pattern in one["allow_patterns"])


@pytest.mark.parametrize(
    ("typed", "files", "words"),
    [
        ("llama3.2", {}, "Names without an owner, as Ollama's, are of autoregressive models."),
        (
            "owner/old",
            {"config.json": 1, "pytorch_model.bin": 9},
            "has no safetensors and no GGUF file, only .bin, .json",
        ),
        ("owner/huge", {"config.json": 1, "model.safetensors": 2**60}, "takes 1073741824.0 GiB, and "),
        (
            "hf.co/owner/some:Q4_K_M",
            {"a-Q8_0.gguf": 1, "a-Q5_K_M.gguf": 1},
            "owner/some has a-Q5_K_M.gguf, a-Q8_0.gguf. Write owner/some/FILE.gguf.",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_weights_are_fetched(
    run: Run, online: Any, typed: str, files: dict[str, int], words: str
) -> None:
    fetched = online(files)
    outcome = run("pull", typed)
    assert outcome.code == 2 and words in outcome.err and len(outcome.err.splitlines()) == 1
    assert not any("*.safetensors" in pattern for one in fetched for pattern in one["allow_patterns"])


def test_another_kind_of_model_is_refused_by_its_config(run: Run, online: Any) -> None:
    fetched = online({"config.json": 1, "model.safetensors": 9}, "models--owner--gpt/snapshots/def")
    outcome = run("pull", "owner/gpt")
    assert outcome.code == 2 and "GPT2LMHeadModel" in outcome.err and len(fetched) == 1


def test_a_file_of_a_kind_is_found_among_several(run: Run, online: Any, cache: Path) -> None:
    fetched = online({"a-Q4_K_M.gguf": 1, "a-Q8_0.gguf": 1}, "models--owner--tiny/snapshots/abc")
    outcome = run("pull", "hf.co/owner/some:q4_k_m")
    assert [one["allow_patterns"] for one in fetched] == [["a-Q4_K_M.gguf"]]
    assert outcome.code == 2 and "owner/some on the hub has no file a-Q4_K_M.gguf" in outcome.err, json.dumps(fetched)
